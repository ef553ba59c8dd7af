"""Saved indexes: a folder with a manifest, and passages that are read when needed.

A saved index is one folder. `manifest.json` names its files with their sizes and SHA-256
sums; the other files carry a part of their sum in their name and are never changed. A
save writes new files first and replaces the manifest last, so at every moment the folder
holds one complete index: the old one or the new one. Nothing in it is a pickle.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, overload

import numpy as np
import numpy.typing as npt
from filelock import FileLock

from nest_engine.errors import ConfigError, NestError, PassageError, PromptError, StoreError
from nest_engine.passages import Passage

MANIFEST = "manifest.json"
VERSION = 1
_LOCK = ".lock"


def check_query(query: str, k: int) -> None:
    """Check the arguments of a search.

    Raises:
        PromptError: If the query is not text, or is blank.
        ConfigError: If `k` is below 1.
    """
    if not isinstance(query, str) or not query.strip():
        raise PromptError("the query is empty: search with the user's question")
    if k < 1:
        raise ConfigError(f"k is {k}: ask for at least 1 passage")


# --- a folder with a manifest ---------------------------------------------------------


class Writer:
    """Collects the files of one index in a folder; `commit` makes them the index."""

    def __init__(self, folder: Path) -> None:
        """Start writing into `folder`, which exists."""
        self._folder = folder
        self._files: dict[str, dict[str, object]] = {}

    def add(self, role: str, suffix: str, write: Callable[[Path], None]) -> None:
        """Write one file and enter it into the manifest.

        Args:
            role: What the file is, for example "passages".
            suffix: Ending of its name, with the dot.
            write: Called with the path to write.
        """
        draft = self._folder / f".{role}.{secrets.token_hex(4)}.partial"
        try:
            write(draft)
            digest = sha256(draft)
            name = f"{role}-{digest[:16]}{suffix}"
            size = draft.stat().st_size
            draft.replace(self._folder / name)
        finally:
            draft.unlink(missing_ok=True)
        self._files[role] = {"name": name, "size": size, "sha256": digest}

    def add_folder(self, role: str, save: Callable[[Path], None]) -> None:
        """Save another index into a new folder of this one and enter it into the manifest."""
        folder = self._folder / f"{role}-{secrets.token_hex(8)}"
        try:
            save(folder)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        manifest = folder / MANIFEST
        size, digest = manifest.stat().st_size, sha256(manifest)
        self._files[role] = {"name": folder.name, "size": size, "sha256": digest}

    def commit(self, kind: str, facts: Mapping[str, object]) -> None:
        """Replace the manifest, then remove files that no manifest names any more."""
        body = {"format": kind, "version": VERSION, **facts, "files": self._files}
        draft = self._folder / f".manifest.{secrets.token_hex(4)}.partial"
        with draft.open("w", encoding="utf-8") as file:
            json.dump(body, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(self._folder / MANIFEST)
        self._sweep()

    def _sweep(self) -> None:
        """Remove what earlier saves and interrupted ones left behind."""
        keep = {str(entry["name"]) for entry in self._files.values()} | {MANIFEST, _LOCK}
        for path in self._folder.iterdir():
            ours = path.name.endswith(".partial") or path.name.split("-")[0] in self._files
            if path.name in keep or not ours:
                continue
            try:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            except OSError:  # still mapped by a reader on Windows: the next save tries again
                continue


def save_index(folder: str | os.PathLike[str], fill: Callable[[Writer], None]) -> None:
    """Save an index into a folder that is new, empty, or holds an index already.

    Args:
        folder: The folder; made if needed.
        fill: Adds the files to the writer and commits.

    Raises:
        StoreError: If the folder holds other things, or cannot be written.
    """
    path = Path(folder)
    try:
        path.mkdir(parents=True, exist_ok=True)
        foreign = [p.name for p in path.iterdir() if p.name != _LOCK and not p.name.endswith(".partial")]
        if foreign and MANIFEST not in foreign:
            raise StoreError(f"{path} is not empty and holds no saved index: choose a new folder")
        with FileLock(path / _LOCK):
            fill(Writer(path))
    except OSError as error:
        raise StoreError(f"cannot save the index in {path}: {error}; check permissions and free space") from error


class SavedIndex:
    """An index folder opened for reading: its facts and the paths of its checked files."""

    def __init__(self, folder: str | os.PathLike[str], kind: str, *, verify: bool = True) -> None:
        """Read and check the manifest and the files it names.

        Args:
            folder: The folder given to `save`.
            kind: The format expected.
            verify: Compare every file's SHA-256 (about a second per GB). Sizes are always
                compared.

        Raises:
            StoreError: If there is no index, or it is damaged, newer, or of another kind.
        """
        self.folder = Path(folder)
        self.verify = verify
        self.facts = read_manifest(self.folder)
        if self.facts["format"] != kind:
            raise StoreError(
                f"{self.folder} holds a {self.facts['format']!r}, not a {kind!r}: open it with its own class"
            )
        self._names = {role: self._checked(role, entry) for role, entry in self._entries().items()}

    def _entries(self) -> dict[str, Any]:
        files = self.facts.get("files")
        if not isinstance(files, dict):
            raise damaged(self.folder, "the manifest lists no files")
        return files

    def _checked(self, role: str, entry: Any) -> str:
        """Name of a file of the manifest, after comparing the file with its entry."""
        try:
            name, size, digest = str(entry["name"]), int(entry["size"]), str(entry["sha256"])
        except (TypeError, KeyError, ValueError) as error:
            raise damaged(self.folder, f"the manifest's entry {role!r} is malformed") from error
        if Path(name).name != name or name in {".", ".."} or "\\" in name:
            raise damaged(self.folder, f"the manifest names a file outside the folder ({name!r})")
        path = self.folder / name
        file = path / MANIFEST if path.is_dir() else path
        if not file.is_file() or file.stat().st_size != size:
            raise damaged(self.folder, f"{name} is missing or has another size")
        if self.verify and sha256(file) != digest:
            raise damaged(self.folder, f"{name} has another checksum")
        return name

    def path(self, role: str) -> Path:
        """Path of a file.

        Raises:
            StoreError: If the manifest has no such file.
        """
        if role not in self._names:
            raise damaged(self.folder, f"the manifest has no {role!r}")
        return self.folder / self._names[role]

    def fact(self, name: str, kind: type[Any]) -> Any:
        """An entry of the manifest, checked for its type.

        Raises:
            StoreError: If it is missing or of another type.
        """
        value = self.facts.get(name)
        if not isinstance(value, kind):
            raise damaged(self.folder, f"the manifest's {name!r} is {value!r}")
        return value

    def array(self, role: str, dtype: str) -> npt.NDArray[Any]:
        """A one-dimensional array, memory-mapped read-only.

        Raises:
            StoreError: If the file is no such array.
        """
        path = self.path(role)
        try:
            array = np.load(path, mmap_mode="r", allow_pickle=False)
        except (ValueError, OSError, EOFError) as error:
            raise damaged(self.folder, f"{path.name} is not an array") from error
        if array.dtype != np.dtype(dtype) or array.ndim != 1:
            raise damaged(self.folder, f"{path.name} is {array.dtype} {array.shape}, expected {dtype} in one dimension")
        return np.asarray(array)


def read_manifest(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """Read the manifest of a saved index.

    Raises:
        StoreError: If there is none, or it is unreadable or of a newer version.
    """
    path = Path(folder) / MANIFEST
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise StoreError(f"no saved index in {folder}: give a folder that was written with save()") from error
    except (OSError, ValueError) as error:
        raise damaged(folder, f"{MANIFEST} is unreadable ({error})") from error
    if not isinstance(facts, dict) or not isinstance(facts.get("version"), int) or "format" not in facts:
        raise damaged(folder, f"{MANIFEST} is not that of an index")
    if facts["version"] > VERSION:
        raise StoreError(
            f"{folder} was saved in format {facts['version']}, this version reads up to {VERSION}: upgrade nest-rag"
        )
    return facts


def damaged(folder: str | os.PathLike[str], what: str) -> StoreError:
    """The error for a folder that is not what a save left there."""
    return StoreError(f"the saved index in {folder} is damaged: {what}; restore the folder or save the index again")


def sha256(path: Path) -> str:
    """SHA-256 of a file, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# --- passages -------------------------------------------------------------------------


def unique_passages(passages: Iterable[Passage]) -> list[Passage]:
    """The passages in order, without repetitions.

    Raises:
        PassageError: If there are none, one is no `Passage`, or two different passages
            have the same id.
    """
    seen: dict[str, Passage] = {}
    for passage in passages:
        if not isinstance(passage, Passage):
            raise PassageError(f"expected Passage objects, found {type(passage).__name__}: wrap texts as Passage(text)")
        known = seen.setdefault(passage.id, passage)
        if (known.title, known.text) != (passage.title, passage.text):
            raise PassageError(f"two different passages have the id {passage.id!r}: give each its own, or none")
    if not seen:
        raise PassageError("no passages: give at least one")
    return list(seen.values())


class PassageTable(Sequence[Passage]):
    """Passages by position and by id, in memory or on disk.

    An opened table maps its file and decodes a passage when it is asked for, so opening
    costs no memory per passage.
    """

    def __init__(self, passages: Iterable[Passage]) -> None:
        """Hold unique passages in memory."""
        self._list: list[Passage] | None = list(passages)
        self._positions = {passage.id: i for i, passage in enumerate(self._list)}

    @classmethod
    def open(cls, saved: SavedIndex) -> PassageTable:
        """Open the table of a saved index.

        Raises:
            StoreError: If its files contradict each other.
        """
        table = cls([])
        table._list = None
        table._folder = saved.folder
        table._starts = saved.array("starts", "int64")
        table._hashes = saved.array("hashes", "uint64")
        table._order = saved.array("order", "int64")
        count = len(table._order)
        with saved.path("passages").open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if (
                count == 0
                or len(table._starts) != count + 1
                or len(table._hashes) != count
                or table._starts[-1] != size
            ):
                raise damaged(saved.folder, "the passages do not fit their index")
            table._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return table

    def save(self, writer: Writer) -> None:
        """Write the table's four files."""
        starts, hashes = [0], []

        def write_lines(path: Path) -> None:
            with path.open("wb") as file:
                for passage in self:
                    starts.append(starts[-1] + file.write(_encode(passage)))
                    hashes.append(_id_hash(passage.id))

        writer.add("passages", ".jsonl", write_lines)
        keys = np.array(hashes, dtype=np.uint64)
        order = np.argsort(keys, kind="stable").astype(np.int64)
        for role, array in (("starts", np.array(starts, dtype=np.int64)), ("hashes", keys[order]), ("order", order)):
            writer.add(role, ".npy", array_writer(array))

    def position(self, passage_id: str) -> int | None:
        """Position of the passage with this id, or None."""
        if self._list is not None:
            return self._positions.get(passage_id)
        key = np.uint64(_id_hash(passage_id))
        first, last = np.searchsorted(self._hashes, key, "left"), np.searchsorted(self._hashes, key, "right")
        for place in self._order[first:last]:
            if self[int(place)].id == passage_id:
                return int(place)
        return None

    def __len__(self) -> int:
        """Number of passages."""
        return len(self._order) if self._list is None else len(self._list)

    @overload
    def __getitem__(self, index: int) -> Passage: ...
    @overload
    def __getitem__(self, index: slice) -> list[Passage]: ...
    def __getitem__(self, index: int | slice) -> Passage | list[Passage]:
        """The passage at a position, or those of a slice."""
        if self._list is not None:
            return self._list[index]
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        place = index % len(self)
        return _decode(self._bytes[int(self._starts[place]) : int(self._starts[place + 1])], self._folder)

    def __iter__(self) -> Iterator[Passage]:
        """All passages in order."""
        return (self[i] for i in range(len(self)))

    _folder: Path
    _bytes: mmap.mmap
    _starts: npt.NDArray[Any]
    _hashes: npt.NDArray[Any]
    _order: npt.NDArray[Any]


def array_writer(array: npt.NDArray[Any]) -> Callable[[Path], None]:
    """A function that writes `array` to a path as .npy."""

    def write(path: Path) -> None:
        with path.open("wb") as file:  # given a path, numpy would append its own ending
            np.save(file, array, allow_pickle=False)

    return write


def _id_hash(passage_id: str) -> int:
    """64 bits of the id's SHA-256; ids may be anything, also one-letter ones."""
    return int.from_bytes(hashlib.sha256(passage_id.encode("utf-8", "surrogatepass")).digest()[:8], "little")


def _encode(passage: Passage) -> bytes:
    """One line of JSON."""
    row: dict[str, object] = {"id": passage.id, "document_id": passage.document_id, "text": passage.text}
    row |= {"title": passage.title, "offset": passage.offset, "metadata": dict(passage.metadata)}
    try:
        line = json.dumps(row, ensure_ascii=False)
    except (TypeError, ValueError) as error:
        raise StoreError(
            f"the metadata of passage {passage.id!r} cannot be saved as JSON ({error}): "
            "keep to strings, numbers, lists and dictionaries in it"
        ) from error
    return line.encode("utf-8", "surrogatepass") + b"\n"


def _decode(line: bytes, folder: Path) -> Passage:
    """A passage from its line."""
    try:
        return Passage(**json.loads(line.decode("utf-8", "surrogatepass")))
    except (ValueError, TypeError, NestError) as error:
        raise damaged(folder, f"a passage is unreadable ({error})") from error
