"""The key store under hostile files, flipped bytes, kills, full disks, and a clock that jumps."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import lmdb
import numpy as np
import pytest

from nest_engine.datastore.lmdb_store import LmdbKeyStore
from nest_engine.errors import StoreError
from tests.engine.datastore.test_lmdb_store import entry, name, same

ROOT = Path(__file__).parents[2]


@pytest.fixture
def folder(tmp_path):
    """A closed store of 60 entries, of one page and of many."""
    store = LmdbKeyStore(tmp_path / "keys")
    for start in range(0, 60, 6):
        store.put_many({name(n): entry(n, tokens=20 + n) for n in range(start, start + 6)})
    store.close()
    return tmp_path / "keys"


def foreign(path: Path, values: dict[bytes, bytes], **options) -> None:
    environment = lmdb.open(str(path), **options)
    with environment.begin(write=True) as transaction:
        for key, value in values.items():
            transaction.put(key, value)
    environment.close()


def test_another_programs_database_is_refused_and_left_alone(tmp_path):
    foreign(tmp_path, {b"customer": b"data"})
    before = (tmp_path / "data.mdb").read_bytes()
    with pytest.raises(StoreError, match="another program"):
        LmdbKeyStore(tmp_path)
    assert (tmp_path / "data.mdb").read_bytes() == before


@pytest.mark.parametrize("record", [b"", b"{", b"[]", b"7", b'{"version": "2"}', b'{"version": -1}', b"[" * 5000])
def test_a_format_that_makes_no_sense_is_refused(tmp_path, record):
    foreign(tmp_path, {b"format": record, b"x": b"y"})
    with pytest.raises(StoreError, match="remove the folder"):
        LmdbKeyStore(tmp_path)


def test_a_newer_format_is_refused_and_an_older_one_taken_over(tmp_path):
    foreign(tmp_path / "new", {b"format": b'{"version": 3000}'}) if (tmp_path / "new").mkdir() is None else None
    with pytest.raises(StoreError, match="update nest-rag or use another folder"):
        LmdbKeyStore(tmp_path / "new")
    (tmp_path / "old").mkdir()
    foreign(tmp_path / "old", {b"format": b'{"version": 1}', bytes(32): b"an entry of format 1"})
    store = LmdbKeyStore(tmp_path / "old")
    store.put_many({name(1): entry(1)})
    assert same(store.get_many([name(1)])[name(1)], entry(1))
    assert store.prune() == 1


def test_swapped_entries_are_found_and_healed(folder, caplog):
    environment = lmdb.open(str(folder))
    left, right = bytes.fromhex(name(1)), bytes.fromhex(name(2))
    with environment.begin(write=True) as transaction:
        one, two = transaction.get(left), transaction.get(right)
        transaction.put(left, two)
        transaction.put(right, one)
    environment.close()
    store = LmdbKeyStore(folder)
    assert sorted(store.verify()) == sorted([name(1), name(2)])
    assert store.get_many([name(1), name(2), name(3)]).keys() == {name(3)}
    store.put_many({name(n): entry(n, tokens=20 + n) for n in (1, 2)})
    assert store.verify() == []
    assert same(store.get_many([name(1)])[name(1)], entry(1, tokens=21))


def test_a_file_that_is_removed_or_replaced_is_noticed(folder, tmp_path, caplog):
    store = LmdbKeyStore(folder)
    shutil.rmtree(folder)
    assert store.get_many([name(1)]) == {}
    store.put_many({name(1): entry(1)})
    assert store.get_many([name(1)]).keys() == {name(1)}
    assert caplog.text.count("removed or replaced") == 1
    other = LmdbKeyStore(tmp_path / "other")
    other.put_many({name(2): entry(2)})
    other.close()
    (tmp_path / "other" / "data.mdb").replace(folder / "data.mdb")
    assert store.get_many([name(1), name(2)]).keys() == {name(2)}
    assert LmdbKeyStore(folder).info().passages == 1


@pytest.mark.parametrize("now", [-1e12, 0.0, 1e15, float("inf"), float("nan")])
def test_a_clock_that_jumps_changes_nothing(folder, monkeypatch, now):
    store = LmdbKeyStore(folder)
    monkeypatch.setattr(time, "time", lambda: now)
    store.put_many({name(100): entry(100)})
    assert same(store.get_many([name(100)])[name(100)], entry(100))
    assert store.verify() == []
    assert store.prune(max_bytes=0) == 61


CHECK = """
import sys
from nest_engine.datastore.lmdb_store import LmdbKeyStore
from nest_engine.errors import StoreError
from tests.engine.datastore.test_lmdb_store import entry, name, same
import logging; logging.disable(logging.CRITICAL)
for folder in sys.stdin.read().split():
    try:
        store = LmdbKeyStore(folder)
        names = {name(n): entry(n, tokens=20 + n) for n in range(60)}
        found = store.get_many(list(names))
        assert all(same(found[a], names[a]) for a in found), "a wrong entry was believed"
        lost = len(names) - len(found)
        store.verify(); store.put_many(names); store.prune()
        healed = store.get_many(list(names))
        assert len(healed) == 60 and all(same(healed[a], names[a]) for a in names), "not healed"
        print("healed" if lost else "unharmed", flush=True)
        store.close()
    except StoreError as error:
        assert "remove the folder" in str(error) or "another" in str(error) or "newer" in str(error), error
        print("refused", flush=True)
"""


def test_flipped_bytes_and_cut_files_are_refused_or_healed(folder, tmp_path, soak):
    """LMDB itself crashes on some of these files: each must be refused before it, or healed entry by entry."""
    chance, whole, copies = random.Random(7), (folder / "data.mdb").read_bytes(), []
    for number in range(3000 if soak else 300):
        data = bytearray(whole)
        for _ in range(chance.choice((1, 1, 1, 8))):
            # Half of the flips hit the first bytes of a page, where a page's structure is.
            at = chance.randrange(len(data))
            at = at // 4096 * 4096 + chance.randrange(160) if chance.random() < 0.5 else at
            data[at] ^= 1 << chance.randrange(8)
        if number % 20 == 0:
            del data[chance.randrange(1, len(data)) :]
        copies.append(tmp_path / f"copy{number}")
        copies[-1].mkdir()
        (copies[-1] / "data.mdb").write_bytes(data)
    done = subprocess.run(
        [sys.executable, "-c", CHECK], input="\n".join(map(str, copies)), capture_output=True, text=True, cwd=ROOT
    )
    results = done.stdout.split()
    assert done.returncode == 0, f"after {len(results)} files: {done.returncode} {done.stderr[-2000:]}"
    assert len(results) == len(copies)
    assert {"healed", "refused"} <= set(results)
    print({kind: results.count(kind) for kind in set(results)})


def fill(folder: Path, start: int, pipe: int) -> None:
    """In a child: write one entry after the other, and say so, until killed."""
    try:
        store = LmdbKeyStore(folder)
        for number in range(start, 1_000_000):
            store.put_many({name(number): entry(number, tokens=200)})
            os.write(pipe, b"x")
    finally:
        os._exit(1)


def test_kills_at_random_moments_lose_at_most_what_is_in_flight(tmp_path, soak):
    """One store all through: each round fills on where the last one was killed."""
    chance, written = random.Random(3), 0
    for _ in range(100 if soak else 8):
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            fill(tmp_path / "keys", written, writing)
        os.close(writing)
        time.sleep(chance.random() * 0.3)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        with os.fdopen(reading, "rb") as pipe:
            reported = written + len(pipe.read())
        store = LmdbKeyStore(tmp_path / "keys")
        passages = store.info().passages
        assert store.verify() == []
        assert reported <= passages <= reported + 1
        for number in range(written, passages):
            assert same(store.get_many([name(number)])[name(number)], entry(number, tokens=200))
        written = passages
        store.close()
    assert written


def test_a_disk_that_is_full_when_the_store_is_made(tmp_path, monkeypatch, caplog):
    def full(*arguments, **named):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(lmdb, "open", full)
    store = LmdbKeyStore(tmp_path / "keys")
    store.put_many({name(1): entry(1)})
    assert store.get_many([name(1)]).keys() == {name(1)}
    assert caplog.text.count("kept in memory") == 1


def test_thousands_of_passages_take_the_computed_space(tmp_path, soak):
    """Each value has whole pages of its own beside its place in the tree: keys, 8 bytes a token, 68 more."""
    count, tokens, width = (50_000 if soak else 1500), 100, 64
    store = LmdbKeyStore(tmp_path)
    values = np.zeros((tokens - 1, width), np.float16)
    sample = entry(0, tokens=tokens)
    wide = type(sample)(sample.token_ids, sample.ends, type(sample.keys)(values), 1, "a" * 32)
    start = time.perf_counter()
    for first in range(0, count, 500):
        store.put_many({name(n): wide for n in range(first, first + 500)})
    seconds = time.perf_counter() - start
    info = store.info()
    one = 68 + 8 * tokens + 2 * (tokens - 1) * width
    pages = -(-(16 + one) // 4096)
    assert info.passages == count
    assert info.bytes == count * one
    size = (tmp_path / "data.mdb").stat().st_size
    assert count * pages * 4096 <= size <= 1.1 * count * pages * 4096 + (1 << 20)
    store.close()
    start = time.perf_counter()
    assert LmdbKeyStore(tmp_path).info().passages == count
    print(
        f"{count} passages: {size / 1e6:.1f} MB on disk, written in {seconds:.1f} s, opened and counted in "
        f"{time.perf_counter() - start:.2f} s"
    )
