"""The store tests need many large packages: they run only where they are asked for (`make test-stores`)."""

import os

collect_ignore = [] if os.environ.get("NEST_STORES") else ["stores"]
