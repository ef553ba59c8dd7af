import json

import pytest

from nest_engine.errors import ConfigError, SourceError, StoreError
from nest_engine.passages import Passage, ScoredPassage
from nest_engine.retrieval import Bm25Source, FaissSource, HybridSource, ListSource, PassageSource
from nest_engine.retrieval.fusion import fuse


def ids(hits):
    return [hit.passage.id for hit in hits]


class Fixed:
    """A source with given scores."""

    def __init__(self, scores, size=None):
        self.hits = [ScoredPassage(Passage(f"text {key}", id=key), score=score) for key, score in scores.items()]
        self.asked = []
        if size is not None:
            self.__class__ = type("Sized", (Fixed,), {"__len__": lambda self: size})

    def search(self, query, k):
        self.asked.append(k)
        return self.hits[:k]


def test_is_the_fusion_of_both_sides(passages, embedder):
    source = HybridSource.from_passages(passages, embedder)
    for query in ("otters and urchins", "pan de centeno", "造纸"):
        dense = {h.passage.id: h.score for h in source.dense.search(query, 50)}
        sparse = {h.passage.id: h.score for h in source.sparse.search(query, 50)}
        hits = source.search(query, 50)
        assert {h.passage.id: h.score for h in hits} == pytest.approx(fuse(dense, sparse))
        assert {h.passage.id: h.relevance for h in hits} == pytest.approx(dense)
    assert source.min_relevance == embedder.min_relevance
    assert isinstance(source, PassageSource)
    assert len(source) == len(passages)


def test_sparse_only_hits_are_asked_of_the_dense_side():
    class Knowing(Fixed):
        def relevance(self, query, passages):
            return [{"b": 0.4}.get(passage.id) for passage in passages]

    sparse = Fixed({"b": 10.0, "a": 5.0, "c": 4.0})
    hits = HybridSource(Knowing({"a": 0.9}), sparse).search("q", 3)
    assert {h.passage.id: h.relevance for h in hits} == {"a": None, "b": 0.4, "c": None}
    hits = HybridSource(Fixed({"a": 0.9}), sparse).search("q", 3)
    assert [h.relevance for h in hits] == [None] * 3


def test_a_sparse_only_hit_gets_its_cosine_from_faiss(passages, embedder):
    class Narrow(FaissSource):
        def search(self, query, k):
            return super().search(query, 1)

    dense = Narrow.from_passages(passages, embedder)
    query = "otters pan centeno"
    hits = HybridSource(dense, Bm25Source.from_passages(passages)).search(query, 5)
    alone = [h for h in hits if h.passage.id not in ids(dense.search(query, 1))]
    assert alone
    full = {h.passage.id: h.relevance for h in FaissSource.search(dense, query, 50)}
    assert {h.passage.id: h.relevance for h in hits} == pytest.approx({i: full[i] for i in ids(hits)})


def test_candidates_are_capped_by_collection_and_limit():
    small, unknown = Fixed({"a": 1.0}, size=7), Fixed({"a": 1.0})
    HybridSource(small, unknown).search("q", 3)
    HybridSource(small, unknown).search("q", 90)
    HybridSource(small, unknown, candidates=2).search("q", 3)
    HybridSource(small, unknown, max_candidates=10).search("q", 20)
    assert small.asked == [7, 7, 6, 7]
    assert unknown.asked == [300, 4000, 6, 20]


def test_ranks_where_a_side_has_no_scores(passages):
    dense = ListSource(passages[:3])
    sparse = Fixed({passages[2].id: 9.0, "other": 5.0})
    hits = HybridSource(dense, sparse).search("q", 10)
    assert ids(hits) == [passages[2].id, passages[0].id, passages[1].id, "other"]
    assert hits[0].score == pytest.approx(1 / 63 + 1 / 61)
    assert all(h.relevance is None for h in hits)


def test_a_side_that_finds_nothing(passages, embedder):
    source = HybridSource.from_passages(passages, embedder)
    query = "xylophone"
    assert ids(source.search(query, 4)) == ids(source.dense.search(query, 4))
    assert HybridSource(Fixed({}), Fixed({})).search("q", 3) == []


def test_repeated_ids_of_a_foreign_source_count_once():
    source = Fixed({"a": 3.0, "b": 2.0})
    source.hits.append(source.hits[0])
    assert ids(HybridSource(source, Fixed({"b": 1.0})).search("q", 9)).count("a") == 1


def test_scaled_fusion_lets_the_dense_side_speak():
    dense, sparse = {"a": 0.9, "b": 0.1}, {"b": 20.0, "a": 10.0}
    assert ids(HybridSource(Fixed(dense), Fixed(sparse)).search("q", 2)) == ["b", "a"]
    assert ids(HybridSource(Fixed(dense), Fixed(sparse), scale=True).search("q", 2)) == ["a", "b"]


def test_bad_settings():
    with pytest.raises(ConfigError):
        HybridSource(Fixed({}), Fixed({}), candidates=0)


def test_add_reaches_both_sides(passages, embedder):
    source = HybridSource.from_passages(passages[:5], embedder)
    source.add(passages[5:])
    whole = HybridSource.from_passages(passages, embedder)
    assert source.search("岩茶", 5) == whole.search("岩茶", 5)
    with pytest.raises(SourceError, match="ListSource"):
        HybridSource(source.dense, ListSource(passages)).add(passages)


def test_save_over_and_open(passages, embedder, tmp_path):
    HybridSource.from_passages(passages[:3], embedder).save(tmp_path)
    source = HybridSource.from_passages(passages, embedder, candidates=7, scale=True)
    source.save(tmp_path)
    opened = HybridSource.open(tmp_path, embedder)
    for query in ("otters and urchins", "pan de centeno", "造纸"):
        assert opened.search(query, 9) == source.search(query, 9)
    assert (opened.candidates, opened.scale) == (7, True)
    assert len(list(tmp_path.glob("dense-*"))) == len(list(tmp_path.glob("sparse-*"))) == 1


def test_a_half_exchanged_is_noticed(passages, embedder, tmp_path):
    HybridSource.from_passages(passages, embedder).save(tmp_path)
    half = next(tmp_path.glob("sparse-*"))
    manifest = json.loads((half / "manifest.json").read_text())
    Bm25Source.from_passages(passages[:2]).save(half)
    with pytest.raises(StoreError, match="damaged"):
        HybridSource.open(tmp_path, embedder)
    assert manifest["format"] == "nest-bm25"


def test_foreign_sides_cannot_be_saved(passages, embedder, tmp_path):
    source = HybridSource(FaissSource.from_passages(passages, embedder), ListSource(passages))
    with pytest.raises(StoreError, match="ListSource"):
        source.save(tmp_path)
