"""Token search over a whole collection, and searching passages again during long answers."""

from __future__ import annotations

import itertools

import pytest
import torch

from nest_engine import NestEngine, Passage, ScoredPassage
from nest_engine.datastore.faiss_index import FaissTokenIndex
from nest_engine.datastore.token_index import Place
from nest_engine.errors import ConfigError
from nest_engine.retrieval.source import ListSource
from tests.engine.runs import open_index
from tests.texts import TEXTS, passages
from tests.tiny import tiny_engine

LENIENT = {"gamma": 1e-5, "mu": 1.0, "alpha": 1.0, "delta": 1.0, "max_new_tokens": 60}


@pytest.fixture(scope="module")
def engine() -> NestEngine:
    return tiny_engine("llama")


def test_a_global_datastore_answers_like_one_of_all_passages(engine):
    texts = passages("lighthouse", "bread", "river", "spanish")
    expected = engine.generate("The lighthouse", passages=texts, neighbors=50, **LENIENT)
    source = ListSource(texts)
    for _ in range(2):  # the second answer uses the index of the first, with masks of its own
        answer = engine.generate("The lighthouse", source=source, datastore="global", neighbors=50, **LENIENT)
        assert (answer.text, answer.citations) == (expected.text, expected.citations)
        assert answer.citations


def test_exact_search_equals_the_plain_index_with_masks(engine):
    texts = passages("lighthouse", "bread", "river", "emoji")
    plain = open_index(engine, texts)
    encoded = engine.encode(texts)
    large = engine._opener.index(texts, encoded, engine.config, kind=FaissTokenIndex).build(exact=True)
    queries = torch.randn(5, engine.model.lm.key_dim, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    masked = [Place(p, i) for p in range(4) for i in range(3, 20)]
    for _ in range(2):
        left, right = plain.search(queries, 40), large.search(queries, 40)
        for row in range(5):
            assert set(left.entries[row].tolist()) == set(right.entries[row].tolist())
        assert torch.allclose(left.distances.sort(-1).values, right.distances.sort(-1).values)
        plain.mask(masked)
        large.mask(masked)


def test_inverted_lists_give_no_padding_and_no_masked_entry(engine):
    texts = [Passage(text, title=f"{n}", id=f"{n}-{i}") for n, text in TEXTS.items() for i in range(4)]
    index = engine._opener.index(texts, engine.encode(texts), engine.config, kind=FaissTokenIndex).build(exact=False)
    assert type(index._faiss).__name__ == "IndexIVFFlat"
    index.mask([index.place(e) for e in range(0, len(index), 2)])
    queries = torch.randn(3, engine.model.lm.key_dim, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    found = index.search(queries, 200)
    assert torch.isfinite(found.distances).all()
    assert all(int(entry) % 2 == 1 for entry in found.entries.flatten())
    for row in range(3):
        exact = (index._keys[found.entries[row]] - queries[row]).square().sum(-1)
        assert torch.allclose(found.distances[row], exact)


def test_a_source_that_cannot_list_its_passages_is_refused(engine):
    class Search:
        def search(self, query, k):
            return []

    with pytest.raises(ConfigError, match="datastore='passages'"):
        engine.generate("The lighthouse", source=Search(), datastore="global")


class Turning:
    """Gives another passage at each search, and notes the queries."""

    def __init__(self, texts):
        self.texts = texts
        self.queries = []

    def search(self, query, k):
        self.queries.append(query)
        return [ScoredPassage(self.texts[(len(self.queries) - 1) % len(self.texts)])]


def test_passages_are_searched_again_at_the_end_of_n_grams(engine):
    source = Turning(passages("lighthouse", "bread", "river"))
    answer = engine.generate(
        "The lighthouse", source=source, refresh_every=10, span_tokens=4, min_citation_words=0, **LENIENT
    )
    assert len(source.queries) > 3
    assert source.queries[0] == "The lighthouse"
    assert all(query in answer.text for query in source.queries[1:]), "queries are the latest text"
    texts = {p.id: p.text for p in source.texts}
    for citation in answer.citations:
        assert texts[citation.passage_id][citation.source_start : citation.source_end] == citation.text
    assert len({c.passage_id for c in answer.citations}) > 1
    once = Turning(source.texts)
    engine.generate("The lighthouse", source=once, **LENIENT)
    assert len(once.queries) == 1


def test_masks_survive_a_refresh(engine):
    source = Turning(passages("lighthouse", "bread"))
    answer = engine.generate(
        "The lighthouse", source=source, refresh_every=5, span_tokens=5, min_citation_words=0, **LENIENT
    )
    ranges = sorted((c.passage_id, c.source_start, c.source_end) for c in answer.citations)
    assert len(source.queries) > 4
    for (passage, _, end), (following, start, _) in itertools.pairwise(ranges):
        assert passage != following or end <= start, "no part of a passage is copied twice"
