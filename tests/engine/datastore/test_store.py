"""Keys are computed once: the store in memory, and the way through any store."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from nest_engine import NestConfig, NestEngine, Passage
from nest_engine.datastore.codec import StoredKeys
from nest_engine.datastore.encoded import EncodedPassage
from nest_engine.datastore.encoder import PassageEncoder
from nest_engine.datastore.store import MemoryKeyStore, get_or_encode
from tests.texts import passages
from tests.tiny import tiny_engine, tiny_loaded


def entry(size: int, seed: int = 0) -> EncodedPassage:
    keys = np.random.default_rng(seed).standard_normal((size, 8)).astype(np.float16)
    ids = np.arange(size + 1, dtype=np.int32)
    return EncodedPassage(ids, ids + 1, StoredKeys(keys), 1)


class Counting:
    """An encoder that counts what it encodes."""

    def __init__(self) -> None:
        loaded = tiny_loaded()
        self._encoder = PassageEncoder(loaded.lm, loaded.tokenizer)
        self.encoded: list[str] = []

    def address(self, passage: Passage) -> str:
        return self._encoder.address(passage)

    def encode(self, texts) -> list[EncodedPassage]:
        self.encoded += [passage.text for passage in texts]
        return self._encoder.encode(texts)


def test_what_is_put_is_found():
    store = MemoryKeyStore()
    one = entry(3)
    store.put_many({"a": one})
    assert store.get_many(["a", "b"]) == {"a": one}
    assert len(store) == 1
    assert store.get_many([]) == {}


def test_a_second_copy_is_dropped():
    store = MemoryKeyStore()
    first, second = entry(3), entry(3)
    store.put_many({"a": first})
    store.put_many({"a": second})
    assert store.get_many(["a"])["a"] is first


def test_what_was_used_longest_ago_is_forgotten_first():
    store = MemoryKeyStore(max_bytes=3 * entry(10).keys.nbytes)
    for name in "abc":
        store.put_many({name: entry(10)})
    store.get_many(["a"])
    store.put_many({"d": entry(10)})
    assert sorted(store.get_many(list("abcd"))) == ["a", "c", "d"]
    store.put_many({"e": entry(10), "f": entry(10)})
    assert len(store) == 3


def test_one_entry_larger_than_the_limit_is_kept_alone():
    store = MemoryKeyStore(max_bytes=10)
    store.put_many({"a": entry(5)})
    assert len(store) == 1
    store.put_many({"b": entry(50)})
    assert list(store.get_many(["a", "b"])) == ["b"]


def test_many_threads():
    store = MemoryKeyStore(max_bytes=20 * entry(10).keys.nbytes)
    failures: list[Exception] = []

    def work(seed: int) -> None:
        try:
            for step in range(200):
                name = str((seed * 7 + step) % 40)
                store.put_many({name: entry(10)})
                store.get_many([name, str(step % 40)])
        except (KeyError, RuntimeError) as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert len(store) <= 20
    assert store._bytes == sum(e.keys.nbytes for e in store._entries.values())


def test_only_what_is_missing_is_encoded():
    store, encoder = MemoryKeyStore(), Counting()
    first = get_or_encode(passages("river", "bread"), encoder, store)
    second = get_or_encode(passages("bread", "lighthouse", "river"), encoder, store)
    assert encoder.encoded == [p.text for p in passages("river", "bread", "lighthouse")]
    assert second[0] is first[1]
    assert second[2] is first[0]


def test_equal_passages_are_encoded_once():
    encoder = Counting()
    texts = [Passage("same", id="a"), Passage("same", id="b"), Passage("same", id="a", title="titled")]
    one, two, three = get_or_encode(texts, encoder, MemoryKeyStore())
    assert one is two
    assert three is not one
    assert len(encoder.encoded) == 2


def test_the_order_is_that_of_the_passages():
    texts = [Passage(f"Number {i} of many.") for i in range(50)]
    encoder = Counting()
    encoded = get_or_encode(texts, encoder, MemoryKeyStore(max_bytes=1))
    expected = encoder._encoder.encode(texts)
    assert [e.token_ids.tolist() for e in encoded] == [e.token_ids.tolist() for e in expected]


def test_a_store_that_forgets_at_once_changes_nothing():
    """What a call needs it holds itself."""
    config = NestConfig(max_new_tokens=20, gamma=1e-5, delta=1.0)
    forgetful, plain = NestEngine(tiny_loaded(), config, store=MemoryKeyStore(max_bytes=1)), tiny_engine(config=config)
    for _ in range(2):
        left = forgetful.generate("Mill?", passages=passages())
        assert left.text == plain.generate("Mill?", passages=passages()).text


def test_progress_is_reported_in_full():
    store, encoder, done = MemoryKeyStore(), Counting(), []
    texts = [Passage(f"Number {i}.") for i in range(40)]
    get_or_encode(texts[:5], encoder, store)
    get_or_encode([*texts, texts[0]], encoder, store, done.append)
    assert sum(done) == 41
    assert len(done) > 2


def test_what_is_encoded_is_kept_soon():
    """An interruption loses the group that is being encoded, and no more."""
    store, encoder = MemoryKeyStore(), Counting()
    original = encoder.encode

    def fail_late(texts):
        if len(encoder.encoded) >= 32:
            raise KeyboardInterrupt
        return original(texts)

    encoder.encode = fail_late
    with pytest.raises(KeyboardInterrupt):
        get_or_encode([Passage(f"Number {i}.") for i in range(60)], encoder, store)
    assert len(store) == 32
