"""Keys on disk: an embedded store on LMDB, shared by any number of threads and processes."""

from __future__ import annotations

import json
import logging
import os
import struct
import threading
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nest_engine.datastore.codec import StoredKeys
from nest_engine.datastore.encoded import FORMAT_VERSION, EncodedPassage
from nest_engine.datastore.lmdb_structure import DamagedFileError, check_file
from nest_engine.datastore.store import MemoryKeyStore
from nest_engine.errors import StoreError

try:
    import lmdb
except ImportError as error:  # pragma: no cover - tested by hand
    raise StoreError('a key store on disk needs LMDB: pip install "nest-rag[store]"') from error

logger = logging.getLogger(__name__)

_FORMAT = b"format"
_DATA_FILE = "data.mdb"
_HEADER = struct.Struct("<4sBBBxIIIId32s")
_MAGIC = b"NEST"
_DTYPES = (np.dtype(np.float16), np.dtype(np.float32), np.dtype(np.int8))
_FIRST_MAP = 1 << 28
_CHECKSUM = struct.Struct("<I")
_ADDRESS_BYTES = 32


@dataclass(frozen=True)
class StoreInfo:
    """What a store holds.

    Attributes:
        passages: Number of encoded passages.
        tokens: Tokens in them.
        bytes: Bytes that their entries take.
        models: Number of passages by the fingerprint of the model that encoded them.
    """

    passages: int
    tokens: int
    bytes: int
    models: dict[str, int]


class LmdbKeyStore:
    """A `KeyStore` in a folder.

    Every group of passages is written in one transaction, so a process that is killed loses
    at most what it was writing. Each entry has a checksum over its address and its data; a
    damaged or misplaced one counts as missing, and is replaced when the passage is encoded
    again. The structure of the file is checked before LMDB opens it. Where nothing can be
    written (a full disk, a read-only folder), keys are kept in memory from then on, with one
    warning. A store whose file is removed or replaced while it is open is opened again.
    """

    def __init__(self, folder: str | Path) -> None:
        """Open the store in a folder, or make one there.

        Raises:
            StoreError: If the folder holds a store of a newer format, a damaged one, or another
                program's database.
        """
        self.folder = Path(folder).expanduser()
        self._lock = threading.RLock()
        self._memory: MemoryKeyStore | None = None
        self._environment: Any = None
        self._owner = 0
        self._identity: tuple[int, int] | None = None
        self._open()

    def get_many(self, addresses: Sequence[str]) -> dict[str, EncodedPassage]:
        """Return what is there and sound: see `KeyStore.get_many`."""
        found: dict[str, EncodedPassage] = {}
        with self._transaction() as transaction:
            for address in addresses:
                data = transaction.get(bytes.fromhex(address)) if transaction else None
                encoded = _unpack(bytes.fromhex(address), data) if data is not None else None
                if encoded is not None:
                    found[address] = encoded
                elif data is not None:
                    logger.warning("%s: the entry %s is damaged; its passage is encoded again", self.folder, address)
        if self._memory is not None:
            found |= self._memory.get_many([a for a in addresses if a not in found])
        return found

    def put_many(self, entries: Mapping[str, EncodedPassage]) -> None:
        """Keep encoded passages, in one transaction: see `KeyStore.put_many`."""
        if self._memory is None:
            try:
                self._write({bytes.fromhex(a): _pack(bytes.fromhex(a), e) for a, e in entries.items()})
                return
            except (lmdb.Error, OSError) as error:
                self._degrade(error)
        if self._memory is not None:
            self._memory.put_many(entries)

    def info(self) -> StoreInfo:
        """Count what the store holds."""
        tokens = size = count = 0
        models: dict[str, int] = {}
        for _, data in self._items():
            header = _header(data)
            if header is None:
                continue
            count, size = count + 1, size + len(data)
            tokens += header["tokens"]
            models[header["model"]] = models.get(header["model"], 0) + 1
        return StoreInfo(count, tokens, size, models)

    def verify(self) -> list[str]:
        """Check every entry; return the addresses of damaged ones."""
        return [key.hex() for key, data in self._items() if _unpack(key, data) is None]

    def prune(self, *, keep_models: Sequence[str] | None = None, max_bytes: int | None = None) -> int:
        """Remove damaged entries, those of other models, and the oldest ones.

        Args:
            keep_models: Fingerprints whose entries stay; None keeps those of all models.
            max_bytes: Remove the oldest entries until the rest take at most this many bytes.

        Returns:
            The number of entries removed.

        Raises:
            StoreError: If nothing can be written here.
        """
        doomed: list[bytes] = []
        kept: list[tuple[float, int, bytes]] = []
        for key, data in self._items():
            header = _header(data) if _unpack(key, data) is not None else None
            if header is None or (keep_models is not None and header["model"] not in keep_models):
                doomed.append(bytes(key))
            else:
                kept.append((header["time"], len(data), bytes(key)))
        total = sum(size for _, size, _ in kept)
        for _, size, key in sorted(kept):
            if max_bytes is None or total <= max_bytes:
                break
            doomed.append(key)
            total -= size
        self._delete(doomed)
        return len(doomed)

    def close(self) -> None:
        """Close the store; it opens again when it is used."""
        with self._lock:
            _release(self.folder, self._environment, self._owner)
            self._environment = None

    def __getstate__(self) -> dict[str, Any]:
        """Pickle as the folder's name: another process opens the store for itself."""
        return {"folder": self.folder}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        """Open the store in the folder."""
        self.__init__(state["folder"])  # type: ignore[misc]

    def _open(self) -> None:
        with self._lock:
            if self._environment is not None and self._owner == os.getpid():
                if _identity(self.folder) == self._identity:
                    return
                logger.warning("%s was removed or replaced while it was open: it is opened again", self.folder)
                _abandon(self.folder, self._environment)
            # After a fork the child must not use its parent's handle: it opens its own.
            self._owner, self._environment = os.getpid(), None
            if self._memory is not None and not (self.folder / _DATA_FILE).exists():
                return
            try:
                self._environment = _acquire(self.folder)
                self._identity = _identity(self.folder)
                self._check_format()
            except DamagedFileError as error:
                raise self._unreadable(error) from error
            except (lmdb.Error, OSError) as error:
                if not (self.folder / _DATA_FILE).exists():
                    self._degrade(error)
                    return
                raise self._unreadable(error) from error
            except StoreError:
                self.close()
                raise

    def _unreadable(self, reason: object) -> StoreError:
        return StoreError(
            f"{self.folder} is not a key store that can be read ({reason}): "
            "remove the folder, and its keys are computed again"
        )

    def _check_format(self) -> None:
        """Refuse a newer format and what is no key store; mark a new or older one as of this format."""
        with self._environment.begin() as transaction:
            data = transaction.get(_FORMAT)
            first = next(iter(transaction.cursor()), None)
        if data is None and first is not None:
            raise StoreError(
                f"{self.folder} holds the database of another program: use another folder for keys; nothing was changed"
            )
        version = 0 if data is None else _version(bytes(data))
        if version is None:
            raise self._unreadable("its format is not stated")
        if version > FORMAT_VERSION:
            raise StoreError(
                f"{self.folder} was written by a newer version (format {version}, this one reads {FORMAT_VERSION}): "
                "update nest-rag or use another folder"
            )
        if version == FORMAT_VERSION:
            return
        try:  # entries of an older format have other addresses: they stay until `prune`
            with self._environment.begin(write=True) as transaction:
                transaction.put(_FORMAT, json.dumps({"version": FORMAT_VERSION}).encode())
        except lmdb.Error as error:
            if version == 0:
                self._degrade(error)

    @contextmanager
    def _transaction(self) -> Iterator[Any]:
        """A read transaction, or None where there is no store to read."""
        self._open()
        if self._environment is None:
            yield None
            return
        try:
            transaction = self._environment.begin(buffers=True)
        except lmdb.MapResizedError:  # another process has made the store larger
            with self._lock:
                self._environment.set_mapsize(0)
            transaction = self._environment.begin(buffers=True)
        with transaction:
            try:
                yield transaction
            except lmdb.Error as error:
                raise self._unreadable(error) from error

    def _items(self) -> Iterator[tuple[bytes, memoryview]]:
        with self._transaction() as transaction:
            for key, data in transaction.cursor() if transaction else ():
                if bytes(key) != _FORMAT:
                    yield bytes(key), data

    def _write(self, values: Mapping[bytes, bytes]) -> None:
        """Write what is not there yet or is damaged, making the map larger as needed."""
        self._open()
        with self._lock:
            while True:
                try:
                    with self._environment.begin(write=True) as transaction:
                        for key, data in values.items():
                            there = transaction.get(key)
                            if there is None or (key != _FORMAT and _unpack(key, there) is None):
                                transaction.put(key, data)
                    return
                except lmdb.MapFullError:
                    self._environment.set_mapsize(2 * self._environment.info()["map_size"])
                except lmdb.MapResizedError:
                    self._environment.set_mapsize(0)

    def _delete(self, keys: Sequence[bytes]) -> None:
        self._open()
        if not keys:
            return
        try:
            with self._lock, self._environment.begin(write=True) as transaction:
                for key in keys:
                    transaction.delete(key)
        except lmdb.Error as error:
            raise StoreError(f"{self.folder} cannot be written ({error}): check its permissions") from error

    def _degrade(self, error: Exception) -> None:
        """Keep keys in memory from now on."""
        with self._lock:
            if self._memory is None:
                logger.warning("%s cannot be written (%s): keys are kept in memory instead", self.folder, error)
                self._memory = MemoryKeyStore()


_environments: dict[str, tuple[Any, int]] = {}
_environments_lock = threading.Lock()


def _forget_inherited() -> None:
    """Give up the handles of the parent process: LMDB does not let a child use them, nor open the file beside them."""
    global _environments_lock
    _environments_lock = threading.Lock()  # another thread of the parent may have held it
    for environment, _ in _environments.values():
        environment.close()
    _environments.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_inherited)


def _version(data: bytes) -> int | None:
    """The version that a format record states, or None."""
    try:
        version = json.loads(data)["version"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return version if type(version) is int and version > 0 else None


def _identity(folder: Path) -> tuple[int, int] | None:
    """Which file the store's data lies in, or None where there is none."""
    try:
        found = (folder / _DATA_FILE).stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _abandon(folder: Path, environment: Any) -> None:
    """Give up the handle of a file that is gone; transactions of other threads keep it until they end."""
    key = str(folder.resolve())
    with _environments_lock:
        if _environments.get(key, (None, 0))[0] is environment:
            del _environments[key]


def _acquire(folder: Path) -> Any:
    """The process's handle of a store, and the number of its users: LMDB allows one for each file."""
    key = str(folder.resolve())
    with _environments_lock:
        environment, users = _environments.get(key, (None, 0))
        if environment is None:
            environment = _open_environment(folder)
        _environments[key] = (environment, users + 1)
        return environment


def _open_environment(folder: Path) -> Any:
    writable = os.access(folder, os.W_OK) if folder.exists() else True
    if writable:
        folder.mkdir(parents=True, exist_ok=True)
    check_file(folder / _DATA_FILE)
    size = (folder / _DATA_FILE).stat().st_size if (folder / _DATA_FILE).exists() else 0
    return lmdb.open(
        str(folder),
        map_size=max(_FIRST_MAP, 2 * size),
        readonly=not writable,
        lock=writable,
        create=writable,
        max_readers=512,
        metasync=True,
        readahead=True,
    )


def _release(folder: Path, environment: Any, owner: int) -> None:
    if environment is None or owner != os.getpid():
        return
    key = str(folder.resolve())
    with _environments_lock:
        _, users = _environments.get(key, (None, 0))
        if users <= 1:
            _environments.pop(key, None)
            environment.close()
        else:
            _environments[key] = (environment, users - 1)


def _pack(key: bytes, encoded: EncodedPassage) -> bytes:
    """An entry: header, token ids, ends, scales, keys, checksum of its address and of all before."""
    values, scales = encoded.keys.values, encoded.keys.scales
    header = _HEADER.pack(
        _MAGIC, FORMAT_VERSION, _DTYPES.index(values.dtype), scales is not None,
        len(encoded.token_ids), len(values), values.shape[1], encoded.first,
        time.time(), encoded.model.encode()[:32],
    )  # fmt: skip
    parts = [header, encoded.token_ids.tobytes(), encoded.ends.tobytes()]
    parts += [scales.tobytes()] if scales is not None else []
    body = b"".join([*parts, np.ascontiguousarray(values).tobytes()])
    return body + _CHECKSUM.pack(zlib.crc32(body, zlib.crc32(key)))


def _header(data: memoryview | bytes) -> dict[str, Any] | None:
    """The header's fields, or None if this is no entry."""
    if len(data) < _HEADER.size + _CHECKSUM.size:
        return None
    magic, version, dtype, scaled, tokens, keys, width, first, when, model = _HEADER.unpack_from(data)
    if magic != _MAGIC or version != FORMAT_VERSION or dtype >= len(_DTYPES):
        return None
    return {
        "dtype": _DTYPES[dtype], "scaled": bool(scaled), "tokens": tokens, "keys": keys, "width": width,
        "first": first, "time": when, "model": model.rstrip(b"\0").decode("ascii", "replace"),
    }  # fmt: skip


def _body_size(header: Mapping[str, Any]) -> int:
    """Bytes of an entry before its checksum."""
    scales = 4 * header["keys"] if header["scaled"] else 0
    return int(
        _HEADER.size + 8 * header["tokens"] + scales + header["keys"] * header["width"] * header["dtype"].itemsize
    )


def _unpack(key: bytes, data: memoryview | bytes) -> EncodedPassage | None:
    """Read the entry of an address; None if it is damaged, or belongs to another address."""
    header = _header(data)
    if header is None:
        return None
    body, (checksum,) = data[: -_CHECKSUM.size], _CHECKSUM.unpack(data[-_CHECKSUM.size :])
    if zlib.crc32(body, zlib.crc32(key)) != checksum or len(body) != _body_size(header):
        return None
    at = _HEADER.size

    def take(dtype: Any, *shape: int) -> Any:
        nonlocal at
        count = int(np.prod(shape))
        array = np.frombuffer(body, dtype, count, at).reshape(shape).copy()  # the page belongs to the transaction
        at += array.nbytes
        return array

    tokens, keys = header["tokens"], header["keys"]
    ids, ends = take(np.int32, tokens), take(np.int32, tokens)
    scales = take(np.float32, keys) if header["scaled"] else None
    values = take(header["dtype"], keys, header["width"])
    return EncodedPassage(ids, ends, StoredKeys(values, scales), header["first"], header["model"])
