"""Is a file a sound LMDB database? Asked before LMDB opens it, which trusts every byte and may crash on a wrong one.

LMDB keeps no checksums of its own. Its pages are walked here: both trees (entries and free
pages), every page number, offset, length and the order of the keys. What an entry holds is not
read: entries have checksums of their own, compared when one is used.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

_PAGE = struct.Struct("<QHHHH")  # number, padding, flags, end of the node list, start of the nodes
_OVERFLOW_COUNT = struct.Struct("<12xI")
_NODE = struct.Struct("<HHHH")  # size or page number in the first two (and the flags, in a branch), flags, key size
_META = struct.Struct("<16xIIQQ48s48sQQ")
_TREE = struct.Struct("<IHHQQQQQ")
_NUMBER = struct.Struct("<Q")
_BRANCH, _LEAF, _OVERFLOW, _METAPAGE = 1, 2, 4, 8
_BIG = 1
_NONE = (1 << 64) - 1
_MAGIC, _VERSION = 0xBEEFC0DE, 1
_MAX_DEPTH = 32
_TRIES = 20


class DamagedFileError(Exception):
    """The file is not a sound database; the text says where not."""


@dataclass(frozen=True)
class _Tree:
    flags: int
    depth: int
    entries: int
    root: int


@dataclass(frozen=True)
class _Meta:
    number: int
    last_page: int
    page_size: int
    free: _Tree
    main: _Tree


def check_file(path: Path) -> None:
    """Check the structure of a database file; other processes may be writing to it.

    Args:
        path: The data file; a missing or empty one is sound.

    Raises:
        DamagedFileError: If something in it is wrong.
        OSError: If it cannot be read.
    """
    if not path.exists() or path.stat().st_size == 0:
        return
    failed: tuple[int, DamagedFileError] | None = None
    for _ in range(_TRIES):
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            meta = _latest(data)
            try:
                _Walk(data, meta).check()
                return
            except (DamagedFileError, struct.error) as error:
                # A commit during the walk may have reused pages of the state that was walked: then look again.
                wrong = error if isinstance(error, DamagedFileError) else DamagedFileError(f"cut off ({error})")
                if failed is not None and failed[0] == meta.number:
                    raise wrong from None
                failed = (meta.number, wrong)
    # The file changes faster than it can be walked: it is being written, by a process that opened it soundly.


def _latest(data: mmap.mmap) -> _Meta:
    """The newer of the two meta pages."""
    first = _meta(data, 0)
    if first is None:
        raise DamagedFileError("it is no LMDB file, or its first page is damaged")
    second = _meta(data, first.page_size)
    if second is None or second.page_size != first.page_size:
        raise DamagedFileError("its second page is damaged")
    return max(first, second, key=lambda meta: meta.number)


def _meta(data: mmap.mmap, at: int) -> _Meta | None:
    if at + _META.size > len(data):
        return None
    flags = _PAGE.unpack_from(data, at)[2]
    magic, version, _, _, free, main, last, number = _META.unpack_from(data, at)
    size = _TREE.unpack(free)[0]
    if magic != _MAGIC or version != _VERSION or not flags & _METAPAGE:
        return None
    if size < 512 or size > 1 << 16 or size & (size - 1):
        return None
    return _Meta(number, last, size, _tree(free), _tree(main))


def _tree(data: bytes) -> _Tree:
    _, flags, depth, _, _, _, entries, root = _TREE.unpack(data)
    return _Tree(flags, depth, entries, root)


class _Walk:
    """Walks one state of a file."""

    def __init__(self, data: mmap.mmap, meta: _Meta) -> None:
        self._data = data
        self._meta = meta
        self._size = meta.page_size
        self._used: set[int] = set()

    def check(self) -> None:
        """Raise where something is wrong."""
        self._check_tree(self._meta.main, by_number=False)
        free: list[int] = []
        for value in self._check_tree(self._meta.free, by_number=True):
            free += self._free_pages(value)
        wrong = len(set(free)) != len(free) or not self._used.isdisjoint(free)
        if wrong or any(not 2 <= page <= self._meta.last_page for page in free):
            raise DamagedFileError("its list of free pages is damaged")

    def _check_tree(self, tree: _Tree, *, by_number: bool) -> list[bytes]:
        """Walk a tree; return the values of the tree of free pages, whose keys are numbers."""
        # Plain trees only: sorted duplicates and reversed or dupsort keys (flags) are never used here.
        if tree.flags & ~0x8 or (tree.flags & 0x8 and not by_number):
            raise DamagedFileError("its trees are of another kind")
        if tree.root == _NONE:
            if tree.entries:
                raise DamagedFileError("a tree of some entries has no root")
            return []
        values: list[bytes] = []
        last: tuple[int, bytes] | None = None
        count = 0
        for key, value in self._leaves(tree.root, 1, tree.depth):
            if by_number and len(key) != _NUMBER.size:
                raise DamagedFileError("a key of a free page list is damaged")
            rank = (_NUMBER.unpack(key)[0], b"") if by_number else (0, key)
            if last is not None and rank <= last:
                raise DamagedFileError("keys are out of order")
            last, count = rank, count + 1
            if by_number:
                values.append(self._data[value])
        if count != tree.entries:
            raise DamagedFileError(f"{count} entries where {tree.entries} are counted")
        return values

    def _leaves(self, page: int, level: int, depth: int) -> Iterator[tuple[bytes, slice]]:
        start, flags = self._take(page)
        if level > min(depth, _MAX_DEPTH) or flags != (_LEAF if level == depth else _BRANCH):
            raise DamagedFileError(f"page {page} is of the wrong kind")
        for number, node in enumerate(self._nodes(page, start)):
            low, high, node_flags, key_size = _NODE.unpack_from(self._data, node)
            key_at = node + _NODE.size
            if key_at + key_size > start + self._size:
                raise DamagedFileError(f"a key of page {page} leaves the page")
            if flags == _BRANCH:
                # The first key of a branch is empty and stands for all that is smaller.
                if key_size == 0 and number:
                    raise DamagedFileError(f"a key of page {page} is empty")
                yield from self._leaves(low | high << 16 | node_flags << 32, level + 1, depth)
                continue
            if key_size == 0:
                raise DamagedFileError(f"a key of page {page} is empty")
            if node_flags not in (0, _BIG):
                raise DamagedFileError(f"an entry of page {page} is of the wrong kind")
            value = self._value(page, start, node_flags, key_at + key_size, low | high << 16)
            yield bytes(self._data[key_at : key_at + key_size]), value

    def _value(self, page: int, start: int, flags: int, at: int, length: int) -> slice:
        if flags == _BIG:
            first = _NUMBER.unpack_from(self._data, at)[0]
            place, kind = self._take(first)
            count = _OVERFLOW_COUNT.unpack_from(self._data, place)[0]
            if kind != _OVERFLOW or not count or length > count * self._size - _PAGE.size:
                raise DamagedFileError(f"the value at page {first} has another length")
            for further in range(first + 1, first + count):
                self._claim(further)
            at = place + _PAGE.size
        elif at + length > start + self._size:
            raise DamagedFileError(f"a value of page {page} leaves the page")
        if at + length > len(self._data):
            raise DamagedFileError("the file is cut off")
        return slice(at, at + length)

    def _nodes(self, page: int, start: int) -> list[int]:
        _, _, _, lower, upper = _PAGE.unpack_from(self._data, start)
        if not _PAGE.size <= lower <= upper <= self._size or lower % 2:
            raise DamagedFileError(f"the borders of page {page} are damaged")
        count = (lower - _PAGE.size) // 2
        offsets = struct.unpack_from(f"<{count}H", self._data, start + _PAGE.size)
        if not count or any(not upper <= offset <= self._size - _NODE.size or offset % 2 for offset in offsets):
            raise DamagedFileError(f"an entry of page {page} leaves the page")
        return [start + offset for offset in offsets]

    def _take(self, page: int) -> tuple[int, int]:
        """Where a page begins, and its flags."""
        self._claim(page)
        start = page * self._size
        number, _, flags, _, _ = _PAGE.unpack_from(self._data, start)
        if number != page:
            raise DamagedFileError(f"page {page} says that it is page {number}")
        return start, flags

    def _claim(self, page: int) -> None:
        """A page is used by one thing only."""
        if not 2 <= page <= self._meta.last_page or (page + 1) * self._size > len(self._data):
            raise DamagedFileError(f"page {page} is outside of the file")
        if page in self._used:
            raise DamagedFileError(f"page {page} is used twice")
        self._used.add(page)

    @staticmethod
    def _free_pages(value: bytes) -> list[int]:
        """A list of free pages: their count, then their numbers."""
        if len(value) < _NUMBER.size or len(value) % _NUMBER.size:
            raise DamagedFileError("a list of free pages is damaged")
        count, *pages = struct.unpack(f"<{len(value) // _NUMBER.size}Q", value)
        # LMDB looks for pages in a row and relies on the order, the highest first.
        if count > len(pages) or any(a <= b for a, b in pairwise(pages[:count])):
            raise DamagedFileError("a list of free pages is damaged")
        return list(pages[:count])
