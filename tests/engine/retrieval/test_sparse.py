import json
import math
from collections import Counter

import numpy as np
import pytest

from nest_engine.errors import ConfigError, PassageError, PromptError, StoreError
from nest_engine.passages import Passage
from nest_engine.retrieval import Bm25Source, PassageSource
from nest_engine.retrieval.dense import indexed_text
from nest_engine.retrieval.terms import search_terms

QUERIES = ["otters and urchins", "pan de centeno", "造纸的工匠", "🎉 cake", "bridge bridge coal"]


def ids(hits):
    return [hit.passage.id for hit in hits]


def bm25(passages, query, k1=1.5, b=0.75):
    """Lucene's BM25, written out."""
    rows = [search_terms(indexed_text(p)) for p in passages]
    mean = sum(map(len, rows)) / len(rows)
    scores = []
    for row in rows:
        counts, score = Counter(row), 0.0
        for term in search_terms(query):
            having = sum(term in other for other in rows)
            idf = math.log(1 + (len(rows) - having + 0.5) / (having + 0.5))
            score += idf * counts[term] / (counts[term] + k1 * (1 - b + b * len(row) / mean))
        scores.append(score)
    return scores


def test_scores_equal_the_formula(passages):
    source = Bm25Source.from_passages(passages)
    for query in QUERIES:
        expected = {p.id: s for p, s in zip(passages, bm25(passages, query), strict=True) if s > 0}
        hits = source.search(query, 50)
        assert {h.passage.id: h.score for h in hits} == pytest.approx(expected, rel=1e-5)
        assert [h.score for h in hits] == sorted((h.score for h in hits), reverse=True)
        assert expected


@pytest.mark.parametrize(
    ("query", "best"),
    [
        ("Who carries stones under the arm?", "otter"),
        ("¿cuando apago la luz el farero?", "faro"),  # without its accents
        ("¿Quién hornea el pan de centeno?", "pan"),
        ("岩茶的味道怎么样？", "tea"),
        ("用什么造纸？", "paper"),
        ("👩‍🚀", "emoji"),
    ],
)
def test_every_script_is_found(passages, query, best):
    assert ids(Bm25Source.from_passages(passages).search(query, 1)) == [best]


def test_nothing_in_common_finds_nothing_and_there_is_no_relevance(passages):
    source = Bm25Source.from_passages(passages)
    assert source.search("xylophone ???", 5) == []
    assert source.search("?!", 5) == []
    assert all(hit.relevance is None for hit in source.search("otters", 5))
    assert source.min_relevance is None
    assert isinstance(source, PassageSource)


def test_ties_and_k_are_stable():
    source = Bm25Source.from_passages([Passage("same words", id=f"p{i}") for i in range(30)])
    assert ids(source.search("words", 7)) == [f"p{i}" for i in range(7)]


def test_passages_of_punctuation_only_are_no_obstacle():
    source = Bm25Source.from_passages([Passage("?!"), Passage("—")])
    assert source.search("anything", 3) == []
    mixed = Bm25Source.from_passages([Passage("?!"), Passage("a word", id="w")])
    assert ids(mixed.search("word", 3)) == ["w"]


def test_bad_arguments(passages):
    with pytest.raises(PassageError):
        Bm25Source.from_passages([])
    source = Bm25Source.from_passages(passages)
    with pytest.raises(PromptError):
        source.search(" ", 1)
    with pytest.raises(ConfigError):
        source.search("x", 0)


def test_add_equals_building_at_once(passages):
    source = Bm25Source.from_passages(passages[:4])
    source.add(passages[3:])
    for query in QUERIES:
        assert source.search(query, 9) == Bm25Source.from_passages(passages).search(query, 9)


def test_save_and_open_quietly(passages, tmp_path, capfd):
    source = Bm25Source.from_passages(passages)
    source.save(tmp_path / "index")
    opened = Bm25Source.open(tmp_path / "index")
    for query in QUERIES:
        assert opened.search(query, 9) == source.search(query, 9)
    assert len(opened) == len(passages)
    assert capfd.readouterr() == ("", "")


def test_the_files_are_the_same_every_time(passages, tmp_path):
    for name in ("a", "b"):
        Bm25Source.from_passages(passages).save(tmp_path / name)
    assert (tmp_path / "a/manifest.json").read_bytes() == (tmp_path / "b/manifest.json").read_bytes()


def rewrite(folder, role, array):
    manifest = json.loads((folder / "manifest.json").read_text())
    path = folder / manifest["files"][role]["name"]
    with path.open("wb") as file:
        np.save(file, array, allow_pickle=array.dtype == object)
    manifest["files"][role]["size"] = path.stat().st_size
    import hashlib

    manifest["files"][role]["sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
    (folder / "manifest.json").write_text(json.dumps(manifest))


def array_of(folder, role):
    manifest = json.loads((folder / "manifest.json").read_text())
    return np.load(folder / manifest["files"][role]["name"])


def test_places_outside_of_the_collection_are_refused(passages, tmp_path):
    Bm25Source.from_passages(passages).save(tmp_path)
    indices = array_of(tmp_path, "indices")
    indices[0] = 1000
    rewrite(tmp_path, "indices", indices)
    with pytest.raises(StoreError, match="damaged"):
        Bm25Source.open(tmp_path)


def test_pickled_arrays_are_refused(passages, tmp_path):
    Bm25Source.from_passages(passages).save(tmp_path)
    rewrite(tmp_path, "data", np.array([object], dtype=object))
    with pytest.raises(StoreError, match="damaged"):
        Bm25Source.open(tmp_path)
