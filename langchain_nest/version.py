"""Version of the distribution."""

from importlib.metadata import PackageNotFoundError, version

try:
    VERSION = version("nest-rag")
except PackageNotFoundError:  # run from a checkout that is not installed
    VERSION = "0"
