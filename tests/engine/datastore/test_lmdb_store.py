"""The key store on disk: kept, checked, shared, and never in the way of an answer."""

from __future__ import annotations

import errno
import json
import logging
import multiprocessing
import os
import pickle
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import lmdb
import numpy as np
import pytest

from nest_engine import Passage
from nest_engine.datastore import lmdb_store
from nest_engine.datastore.codec import StoredKeys
from nest_engine.datastore.encoded import EncodedPassage, address
from nest_engine.datastore.lmdb_store import LmdbKeyStore
from nest_engine.datastore.store import get_or_encode
from nest_engine.errors import StoreError
from tests.texts import passages
from tests.tiny import tiny_engine


def entry(seed: int, tokens: int = 20, model: str = "a" * 32, int8: bool = False) -> EncodedPassage:
    generator = np.random.default_rng(seed)
    keys = generator.standard_normal((tokens - 1, 16)).astype(np.float16)
    stored = StoredKeys(keys)
    if int8:
        stored = StoredKeys((10 * keys).astype(np.int8), generator.random(tokens - 1).astype(np.float32))
    ids = generator.integers(0, 1000, tokens).astype(np.int32)
    return EncodedPassage(ids, np.arange(1, tokens + 1, dtype=np.int32), stored, 1, model)


def name(number: int) -> str:
    return address(Passage(f"text {number}"), "m", "float16")


def same(left: EncodedPassage, right: EncodedPassage) -> bool:
    scales = (left.keys.scales is None) == (right.keys.scales is None)
    if scales and left.keys.scales is not None:
        scales = np.array_equal(left.keys.scales, right.keys.scales)
    return (
        scales
        and np.array_equal(left.token_ids, right.token_ids)
        and np.array_equal(left.ends, right.ends)
        and np.array_equal(left.keys.values, right.keys.values)
        and left.keys.values.dtype == right.keys.values.dtype
        and (left.first, left.model) == (right.first, right.model)
    )


@pytest.fixture
def store(tmp_path):
    with_close = LmdbKeyStore(tmp_path / "keys")
    yield with_close
    with_close.close()


def test_what_is_put_comes_back(store):
    entries = {name(0): entry(0), name(1): entry(1, tokens=1), name(2): entry(2, int8=True)}
    store.put_many(entries)
    found = store.get_many([name(2), name(0), name(7), name(1)])
    assert set(found) == set(entries)
    assert all(same(found[a], entries[a]) for a in entries)


def test_it_is_there_after_reopening_and_in_another_process(store):
    store.put_many({name(0): entry(0)})
    store.close()
    assert same(store.get_many([name(0)])[name(0)], entry(0))
    code = (
        f"from nest_engine.datastore.lmdb_store import LmdbKeyStore; print(LmdbKeyStore({str(store.folder)!r}).info())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "passages=1" in done.stdout


def test_the_map_grows_as_needed(tmp_path, monkeypatch):
    monkeypatch.setattr(lmdb_store, "_FIRST_MAP", 1 << 16)
    store = LmdbKeyStore(tmp_path)
    reader = LmdbKeyStore(tmp_path)
    for number in range(40):
        store.put_many({name(number): entry(number, tokens=200)})
    assert len(reader.get_many([name(n) for n in range(40)])) == 40


def test_a_flipped_byte_is_found_logged_and_healed(store, caplog):
    entries = {name(n): entry(n, tokens=100) for n in range(8)}
    store.put_many(entries)
    for byte in random.Random(0).sample(range(60, 3000), 30):
        victim = name(3)
        with lmdb.Environment.begin(store._environment, write=True) as transaction:
            data = bytearray(transaction.get(bytes.fromhex(victim)))
            data[byte % len(data)] ^= 1 << (byte % 8)
            transaction.put(bytes.fromhex(victim), bytes(data))
        with caplog.at_level(logging.WARNING):
            assert victim not in store.get_many(list(entries))
        assert victim in caplog.text
        assert store.verify() == [victim]
        store.put_many({victim: entries[victim]})
        assert store.verify() == []
        assert same(store.get_many([victim])[victim], entries[victim])


def test_get_or_encode_heals_a_damaged_entry(store):
    engine = tiny_engine("llama")
    texts = passages("bread", "river")
    first = get_or_encode(texts, engine._opener.encoder("float16"), store)
    key = bytes.fromhex(engine._opener.encoder("float16").address(texts[0]))
    with store._environment.begin(write=True) as transaction:
        transaction.put(key, transaction.get(key)[:-20])
    again = get_or_encode(texts, engine._opener.encoder("float16"), store)
    assert all(same(a, b) for a, b in zip(first, again, strict=True))
    assert store.verify() == []


def test_two_models_never_mix(tmp_path):
    texts = passages("bread")
    one, two = tiny_engine("llama", seed=1), tiny_engine("llama", seed=2)
    stores = [LmdbKeyStore(tmp_path), LmdbKeyStore(tmp_path)]
    for engine, store in zip((one, two), stores, strict=True):
        engine.store = store
        engine.encode(texts)
    info = stores[0].info()
    assert info.passages == 2
    assert set(info.models) == {one.model.lm.fingerprint, two.model.lm.fingerprint}
    assert not np.array_equal(one.encode(texts)[0].keys.values, two.encode(texts)[0].keys.values)


def test_the_answer_is_the_same_with_stored_keys(tmp_path):
    texts = passages("lighthouse", "bread")
    fresh = tiny_engine("llama").generate("The lighthouse", passages=texts)
    first = tiny_engine("llama")
    first.store = LmdbKeyStore(tmp_path)
    first.generate("Something else", passages=texts)
    second = tiny_engine("llama")
    second.store = LmdbKeyStore(tmp_path)
    second.model.lm.encode = None  # whoever encodes now fails
    answer = second.generate("The lighthouse", passages=texts)
    assert (answer.text, answer.citations) == (fresh.text, fresh.citations)


def _fill(folder: str, start: int) -> None:
    store = LmdbKeyStore(folder)
    for number in range(start, start + 120):
        store.put_many({name(number % 60): entry(number % 60, tokens=150)})


def test_two_processes_that_fill_one_store_end_with_one_copy(tmp_path):
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=_fill, args=(str(tmp_path), 30 * i)) for i in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(120)
        assert worker.exitcode == 0
    store = LmdbKeyStore(tmp_path)
    assert store.info().passages == 60
    assert store.verify() == []
    assert all(same(store.get_many([name(n)])[name(n)], entry(n, tokens=150)) for n in range(60))


def test_a_kill_at_any_moment_loses_at_most_what_is_being_written(tmp_path):
    code = (
        "import sys\n"
        "from tests.engine.datastore.test_lmdb_store import LmdbKeyStore, entry, name\n"
        "store = LmdbKeyStore(sys.argv[1])\n"
        "for n in range(100000):\n"
        "    store.put_many({name(n): entry(n, tokens=200)})\n"
        "    sys.stdout.write(f'{n}\\n'); sys.stdout.flush()\n"
    )
    chance = random.Random(1)
    root = Path(__file__).parents[3]
    for attempt in range(3):
        folder = tmp_path / str(attempt)
        worker = subprocess.Popen(
            [sys.executable, "-c", code, str(folder)], stdout=subprocess.PIPE, text=True, cwd=root, env=os.environ
        )
        worker.stdout.readline()
        time.sleep(chance.random() / 2)
        worker.send_signal(signal.SIGKILL)
        reported = [int(line) for line in worker.communicate()[0].split()]
        store = LmdbKeyStore(folder)
        written = store.info().passages
        assert store.verify() == []
        # A number may have been cut off on its way out, so the store can be ahead of the reports.
        assert written >= len(reported) + 1
        assert all(same(store.get_many([name(n)])[name(n)], entry(n, tokens=200)) for n in range(written))


def test_a_full_disk_degrades_to_memory_with_one_warning(store, caplog, monkeypatch):
    store.put_many({name(0): entry(0)})

    def full(values):
        raise lmdb.DiskError("mdb_put", errno.ENOSPC) if hasattr(lmdb, "DiskError") else lmdb.Error("No space left")

    monkeypatch.setattr(store, "_write", full)
    for number in range(1, 4):
        store.put_many({name(number): entry(number)})
    assert caplog.text.count("cannot be written") == 1
    found = store.get_many([name(n) for n in range(4)])
    assert len(found) == 4, "what was on disk, and what is now in memory"


def test_a_read_only_store_is_read_and_not_written(tmp_path, caplog, monkeypatch):
    LmdbKeyStore(tmp_path / "keys").put_many({name(0): entry(0)})
    lmdb_store._environments.clear()
    access = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK and access(path, mode))
    store = LmdbKeyStore(tmp_path / "keys")
    store.put_many({name(1): entry(1)})
    store.put_many({name(2): entry(2)})
    assert len(store.get_many([name(0), name(1), name(2)])) == 3
    assert caplog.text.count("cannot be written") == 1
    with pytest.raises(StoreError, match="permissions"):
        store.prune(keep_models=[])


def test_a_store_of_a_newer_format_is_refused(tmp_path):
    store = LmdbKeyStore(tmp_path)
    with store._environment.begin(write=True) as transaction:
        transaction.put(b"format", json.dumps({"version": 99}).encode())
    store.close()
    with pytest.raises(StoreError, match="newer version"):
        LmdbKeyStore(tmp_path)


def test_a_folder_that_is_no_store_is_refused(tmp_path):
    (tmp_path / "data.mdb").write_bytes(b"not a database" * 1000)
    with pytest.raises(StoreError, match="remove the folder"):
        LmdbKeyStore(tmp_path)


def test_prune_removes_damaged_foreign_and_old_entries(store):
    store.put_many({name(n): entry(n, model="a" * 32) for n in range(4)})
    store.put_many({name(n): entry(n, model="b" * 32) for n in range(4, 6)})
    assert store.prune(keep_models=["a" * 32]) == 2
    assert set(store.info().models) == {"a" * 32}
    size = store.info().bytes
    assert store.prune(max_bytes=size // 2) == 2
    assert store.info().bytes <= size // 2
    assert store.prune() == 0


def test_a_fork_opens_its_own_handle(store):
    store.put_many({name(0): entry(0)})
    child = os.fork()
    if child == 0:
        try:
            store.put_many({name(1): entry(1)})
            os._exit(0 if len(store.get_many([name(0), name(1)])) == 2 else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert len(store.get_many([name(0), name(1)])) == 2


def test_it_pickles_as_its_folder(store):
    store.put_many({name(0): entry(0)})
    assert same(pickle.loads(pickle.dumps(store)).get_many([name(0)])[name(0)], entry(0))
