"""Keys that are computed once: the `KeyStore` protocol, a store in memory, and the way through either."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from nest_engine.datastore.encoded import EncodedPassage
from nest_engine.datastore.encoder import PassageEncoder
from nest_engine.metrics import StoreCounts
from nest_engine.passages import Passage


class KeyStore(Protocol):
    """Keeps encoded passages by their address. Implementations are safe to use from several threads."""

    def get_many(self, addresses: Sequence[str]) -> dict[str, EncodedPassage]:
        """Return what is there; addresses that are not, or whose data is damaged, are left out."""
        ...

    def put_many(self, entries: Mapping[str, EncodedPassage]) -> None:
        """Keep encoded passages. What an address holds never changes, so a second copy is dropped."""
        ...


class MemoryKeyStore:
    """A store in memory that forgets what was used longest ago."""

    def __init__(self, max_bytes: int = 1 << 30) -> None:
        """Keep at most `max_bytes` of keys."""
        self._max_bytes = max_bytes
        self._bytes = 0
        self._entries: OrderedDict[str, EncodedPassage] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """Number of passages kept."""
        return len(self._entries)

    def get_many(self, addresses: Sequence[str]) -> dict[str, EncodedPassage]:
        """Return what is there: see `KeyStore.get_many`."""
        with self._lock:
            found = {a: self._entries[a] for a in addresses if a in self._entries}
            for address in found:
                self._entries.move_to_end(address)
            return found

    def put_many(self, entries: Mapping[str, EncodedPassage]) -> None:
        """Keep encoded passages: see `KeyStore.put_many`."""
        with self._lock:
            for address, encoded in entries.items():
                if address not in self._entries:
                    self._entries[address] = encoded
                    self._bytes += encoded.keys.nbytes
            while self._bytes > self._max_bytes and len(self._entries) > 1:
                _, oldest = self._entries.popitem(last=False)
                self._bytes -= oldest.keys.nbytes


def open_store(store: KeyStore | str | Path | None) -> KeyStore:
    """The store itself, the one in a folder, or a new one in memory for None.

    Raises:
        StoreError: If the folder holds something else, or a store of a newer format.
    """
    if store is None:
        return MemoryKeyStore()
    if isinstance(store, str | Path):
        from nest_engine.datastore.lmdb_store import LmdbKeyStore  # an extra: only who keeps keys on disk needs it

        return LmdbKeyStore(store)
    return store


def get_or_encode(
    passages: Sequence[Passage],
    encoder: PassageEncoder,
    store: KeyStore,
    report: Callable[[int], None] | None = None,
    counts: StoreCounts | None = None,
) -> list[EncodedPassage]:
    """Look passages up in a store; encode and keep those that are not there.

    Args:
        passages: In any order; two with the same title and text are encoded once.
        encoder: Encodes what is missing.
        store: Where keys are kept.
        report: Called with the number of passages ready since the last call.
        counts: Counts what was there and what was not.

    Returns:
        The encoded passages, in the order of `passages`.
    """
    addresses = [encoder.address(passage) for passage in passages]
    found = store.get_many(list(dict.fromkeys(addresses)))
    missing = {a: p for a, p in zip(addresses, passages, strict=True) if a not in found}
    if counts is not None:
        counts.hits += len(passages) - len(missing)
        counts.misses += len(missing)
    if report is not None:
        report(len(passages) - len(missing))
    for batch in _groups(missing.items()):
        fresh = dict(zip((a for a, _ in batch), encoder.encode([p for _, p in batch]), strict=True))
        store.put_many(fresh)
        found |= fresh
        if report is not None:
            report(len(batch))
    return [found[a] for a in addresses]


def _groups(items: Iterable[tuple[str, Passage]], size: int = 16) -> list[list[tuple[str, Passage]]]:
    """Small groups, so that what is encoded is kept soon."""
    everything = list(items)
    return [everything[start : start + size] for start in range(0, len(everything), size)]
