"""The datastore of one generation, against brute force."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from nest_engine.datastore.codec import FloatCodec
from nest_engine.datastore.encoded import EncodedPassage
from nest_engine.datastore.token_index import Place, TokenIndex
from nest_engine.datastore.transform import Identity, standardize, whiten

DIM = 8
CODEC = FloatCodec("float32")


def encoded(seed: int, tokens: int, first: int) -> EncodedPassage:
    generator = torch.Generator().manual_seed(seed)
    keys = torch.randn(max(0, tokens - first), DIM, generator=generator)
    ids = torch.randint(0, 12, (tokens,), generator=generator).numpy().astype(np.int32)
    return EncodedPassage(ids, np.arange(1, tokens + 1, dtype=np.int32), CODEC.encode(keys), first)


PASSAGES = [encoded(0, 30, 1), encoded(1, 17, 0), encoded(2, 1, 1), encoded(3, 0, 0), encoded(4, 25, 0)]
"""With and without an entry for the first token; one without entries, one without tokens."""
ALL = [
    (np.asarray(p.keys.values[e], dtype=np.float64), int(p.token_ids[p.first + e]), Place(number, p.first + e))
    for number, p in enumerate(PASSAGES)
    for e in range(len(p.keys))
]
"""Key, value and place of every entry, by number."""


def open_index(transform=None, **arguments) -> TokenIndex:
    return TokenIndex(
        PASSAGES, transform or Identity(), device=torch.device("cpu"), dtype=torch.float64, codec=CODEC, **arguments
    )


def queries(count: int = 5, seed: int = 9) -> torch.Tensor:
    return torch.randn(count, DIM, generator=torch.Generator().manual_seed(seed)).double()


def brute_force(query: torch.Tensor, r: int, masked=(), transform=None) -> dict[int, float]:
    """Entry numbers and squared distances of the r nearest unmasked entries."""
    transform = transform or Identity()
    mapped = transform(query[None])[0]
    distances = {
        number: float((transform(torch.from_numpy(key)[None])[0] - mapped).square().sum())
        for number, (key, _, place) in enumerate(ALL)
        if place not in masked
    }
    return dict(sorted(distances.items(), key=lambda item: item[1])[:r])


def assert_same(index: TokenIndex, r: int, masked=(), transform=None) -> None:
    batch = queries()
    found = index.search(batch, r)
    for row, query in enumerate(batch):
        expected = brute_force(query, r, masked, transform)
        actual = dict(zip(found.entries[row].tolist(), found.distances[row].tolist(), strict=True))
        assert actual == pytest.approx(expected, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("r", [1, 2, 10, 70, 71, 72, 1024])
def test_search(r):
    assert_same(open_index(), r)


@pytest.mark.parametrize("kind", [standardize, whiten])
@pytest.mark.parametrize("r", [1, 10, 1024])
def test_search_with_a_transform(kind, r):
    transform = kind(torch.randn(50, DIM, generator=torch.Generator().manual_seed(3)))
    assert_same(open_index(transform), r, transform=transform)


def test_size():
    index = open_index()
    assert len(index) == len(ALL) == index.unmasked == 29 + 17 + 0 + 0 + 25
    assert index.values.tolist() == [value for _, value, _ in ALL]
    assert index.vocabulary.tolist() == sorted({value for _, value, _ in ALL})
    assert index.vocabulary[index.slots].tolist() == index.values.tolist()


def test_places():
    """The place of an entry is that of its value, and not of its key."""
    index = open_index()
    for number, (_, value, place) in enumerate(ALL):
        assert index.place(number) == place
        assert index.entry(place) == number
        assert PASSAGES[place.passage].token_ids[place.position] == value == index.values[number]
    assert index.entry(Place(0, 0)) is None, "no key stands before the first token of this one"
    assert index.entry(Place(2, 0)) is None
    assert index.entry(Place(1, 0)) is not None


def test_numbers_given_to_passages():
    index = open_index(numbers=[7, 3, 5, 0, 11])
    for number, (_, _, place) in enumerate(ALL):
        moved = Place([7, 3, 5, 0, 11][place.passage], place.position)
        assert index.place(number) == moved
        assert index.entry(moved) == number
    assert index.entry(Place(99, 0)) is None


@pytest.mark.parametrize("r", [1, 10, 60, 1024])
def test_masked_entries_are_never_found(r):
    index = open_index()
    masked = [Place(0, i) for i in range(5, 12)] + [Place(4, 0), Place(1, 16)]
    index.mask(masked)
    assert index.unmasked == len(ALL) - len(masked)
    assert_same(index, r, masked)
    found = index.search(queries(), r)
    assert torch.isfinite(found.distances).all(), "no masked entry comes with an infinite distance"


def test_masking_is_counted_once_and_makes_a_new_version():
    index = open_index()
    version = index.version
    index.mask([Place(0, 5)])
    assert index.version > version
    index.mask([Place(0, 5), Place(0, 0)])
    assert index.unmasked == len(ALL) - 1
    version = index.version
    index.mask([])
    index.mask([Place(0, 0)])
    assert index.version == version, "nothing was masked"


def test_masking_everything():
    index = open_index()
    index.mask([place for _, _, place in ALL])
    assert index.unmasked == 0
    found = index.search(queries(), 10)
    assert found.entries.shape == found.distances.shape == (5, 0)


def test_a_mask_after_a_search_holds():
    index = open_index()
    index.search(queries(), 1024)
    index.mask([Place(1, 3)])
    assert_same(index, 1024, [Place(1, 3)])
    index.mask([Place(1, 4)])
    assert_same(index, 1024, [Place(1, 3), Place(1, 4)])


def test_no_passages():
    index = TokenIndex([], Identity(), device=torch.device("cpu"), dtype=torch.float64)
    assert len(index) == 0
    assert index.search(queries(), 5).entries.shape == (5, 0)


def test_nearest_among_some():
    index = open_index()
    for query in queries(8):
        some = torch.tensor([60, 3, 17, 44, 5])
        distances = {int(e): float((torch.from_numpy(ALL[e][0]) - query).square().sum()) for e in some}
        assert index.nearest(query, some) == min(distances, key=lambda e: distances[e])


def test_of_equally_near_entries_the_lowest():
    one = encoded(0, 12, 0)
    index = TokenIndex([one, one, one], Identity(), device=torch.device("cpu"), dtype=torch.float64, codec=CODEC)
    for query in queries(8):
        for order in ([25, 13, 1], [1, 13, 25], [13, 25, 1]):
            assert index.nearest(query, torch.tensor(order)) == 1


def test_distances_are_never_negative():
    index = open_index()
    same = torch.from_numpy(np.stack([key for key, _, _ in ALL[:20]]))
    assert (index.search(same * 1.0, 3).distances >= 0).all()
    assert index.search(same, 1).entries[:, 0].tolist() == list(range(20))


def test_the_query_is_left_as_it_is():
    batch = queries()
    before = batch.clone()
    open_index().search(batch, 3)
    assert torch.equal(batch, before)


def test_sentence_ends():
    ends = [np.zeros(len(p.token_ids), dtype=np.bool_) for p in PASSAGES]
    ends[1][4] = True
    index = open_index(sentence_ends=ends)
    assert index.ends_sentence(Place(1, 4))
    assert not index.ends_sentence(Place(1, 3))
    assert not index.ends_sentence(Place(0, 4))
    assert not open_index().ends_sentence(Place(1, 4))
