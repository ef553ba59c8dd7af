import json
import threading

import numpy as np
import pytest

from nest_engine.errors import ConfigError, PassageError, PromptError, SourceError, StoreError
from nest_engine.passages import Passage
from nest_engine.retrieval import FaissSource, PassageSource
from nest_engine.retrieval.dense import FLAT_LIMIT, IVF_LIMIT, choose_kind, indexed_text

QUERIES = ["how do otters open mussels", "farero y niebla", "岩茶的味道", "🎉🎊 cake"]


def ids(hits):
    return [hit.passage.id for hit in hits]


def many(count):
    rng = np.random.default_rng(1)
    vocabulary = [f"word{i}" for i in range(200)]
    return [Passage(" ".join(rng.choice(vocabulary, 12)), id=f"m{i}") for i in range(count)]


def test_ranks_by_cosine_as_a_plain_product_does(passages, embedder):
    source = FaissSource.from_passages(passages, embedder)
    matrix = embedder.embed([indexed_text(p) for p in passages])
    for query in QUERIES:
        cosines = matrix @ embedder.embed([query])[0]
        hits = source.search(query, 4)
        assert ids(hits) == [passages[i].id for i in np.argsort(-cosines, kind="stable")[:4]]
        for hit in hits:
            assert hit.score == hit.relevance == pytest.approx(cosines[passages.index(hit.passage)], abs=1e-6)


def test_is_a_source_and_knows_its_size_and_threshold(passages, embedder):
    source = FaissSource.from_passages(passages, embedder)
    assert isinstance(source, PassageSource)
    assert len(source) == len(passages)
    assert source.min_relevance == embedder.min_relevance
    assert len(source.search("otters", 500)) == len(passages)


def test_the_title_is_searched_too():
    assert indexed_text(Passage("text", title="Super_Bowl")) == "Super Bowl\ntext"
    assert indexed_text(Passage("text")) == "text"


def test_relevance_of_any_passage_and_none_for_strangers(passages, embedder):
    source = FaissSource.from_passages(passages, embedder)
    by_id = {hit.passage.id: hit.score for hit in source.search(QUERIES[0], 50)}
    values = source.relevance(QUERIES[0], [*passages, Passage("stranger")])
    assert values[:-1] == pytest.approx([by_id[p.id] for p in passages], abs=1e-6)
    assert values[-1] is None


def test_a_query_is_embedded_once(passages, embedder):
    source = FaissSource.from_passages(passages, embedder)
    before = embedder.calls
    source.search("otters", 2)
    source.relevance("otters", passages[:1])
    assert embedder.calls == before + 1


@pytest.mark.parametrize(
    ("query", "k", "error"), [("", 1, PromptError), (" \n", 1, PromptError), ("x", 0, ConfigError)]
)
def test_bad_searches_are_refused(passages, embedder, query, k, error):
    with pytest.raises(error):
        FaissSource.from_passages(passages, embedder).search(query, k)


def test_repetitions_are_dropped_and_contradictions_refused(embedder):
    twice = [Passage("same", id="a"), Passage("same", id="a"), Passage("other")]
    assert len(FaissSource.from_passages(twice, embedder)) == 2
    with pytest.raises(PassageError, match="'a'"):
        FaissSource.from_passages([Passage("one", id="a"), Passage("two", id="a")], embedder)
    with pytest.raises(PassageError, match="no passages"):
        FaissSource.from_passages([], embedder)
    with pytest.raises(PassageError, match="Passage"):
        FaissSource.from_passages(["text"], embedder)


@pytest.mark.parametrize("wrong", ["length", "shape", "nan"])
def test_a_wrong_embedder_is_refused(passages, embedder, wrong):
    good = embedder.embed

    def embed(texts):
        vectors = good(texts)
        return {"length": vectors * 2, "shape": vectors[:, :-1], "nan": vectors * np.nan}[wrong]

    embedder.embed = embed
    with pytest.raises(SourceError, match="embed"):
        FaissSource.from_passages(passages, embedder)


def test_add_equals_building_at_once(passages, embedder):
    source = FaissSource.from_passages(passages[:3], embedder)
    source.add(passages[2:])  # one is there already
    whole = FaissSource.from_passages(passages, embedder)
    assert len(source) == len(passages)
    for query in QUERIES:
        assert source.search(query, 5) == whole.search(query, 5)
    source.add(passages[:2])
    assert len(source) == len(passages)


def test_kind_is_chosen_by_size():
    assert [choose_kind(n) for n in (1, FLAT_LIMIT, FLAT_LIMIT + 1, IVF_LIMIT, IVF_LIMIT + 1)] == [
        "flat",
        "flat",
        "ivf",
        "ivf",
        "ivfpq",
    ]
    assert choose_kind(1, "ivfpq") == "ivfpq"


def test_outgrowing_flat_rebuilds_the_index(embedder, monkeypatch):
    monkeypatch.setattr("nest_engine.retrieval.dense.FLAT_LIMIT", 100)
    crowd = many(400)
    source = FaissSource.from_passages(crowd[:90], embedder)
    assert "IVF" not in type(source._index).__name__
    source.add(crowd[90:])
    assert "IVF" in type(source._index).__name__
    assert source.search(crowd[7].text, 1)[0].passage.id == "m7"
    assert source.search(crowd[300].text, 1)[0].passage.id == "m300"


@pytest.mark.parametrize("kind", ["ivf", "ivfpq"])
def test_large_kinds_find_most_of_what_flat_finds_with_true_cosines(embedder, tmp_path, kind, capfd):
    crowd = many(600)
    flat = FaissSource.from_passages(crowd, embedder, kind="flat")
    FaissSource.from_passages(crowd, embedder, kind=kind).save(tmp_path / "i")
    source = FaissSource.open(tmp_path / "i", embedder)
    found = 0
    for passage in crowd[::20]:
        expected = {hit.passage.id: hit.score for hit in flat.search(passage.text, 10)}
        for hit in source.search(passage.text, 10):
            if hit.passage.id in expected:
                found += 1
                assert hit.score == pytest.approx(expected[hit.passage.id], abs=2e-3)
    assert found >= 0.8 * 300  # 8 of 15 lists are searched, and random bags of words spread over all
    assert source.relevance(crowd[5].text, [crowd[5]])[0] == pytest.approx(1.0, abs=2e-3)
    source.add([Passage("a newcomer", id="new")])
    assert source.search("a newcomer", 1)[0].passage.id == "new"
    assert capfd.readouterr() == ("", "")  # FAISS likes to write warnings


def test_too_few_passages_for_codes(passages, embedder):
    with pytest.raises(ConfigError, match="flat"):
        FaissSource.from_passages(passages, embedder, kind="ivfpq")


def test_save_and_open(passages, embedder, make_embedder, tmp_path):
    source = FaissSource.from_passages(passages, embedder)
    source.save(tmp_path / "index")
    opened = FaissSource.open(tmp_path / "index", make_embedder())
    for query in QUERIES:
        assert opened.search(query, 20) == source.search(query, 20)
    hit = next(h.passage for h in opened.search("otters", 20) if h.passage.id == "odd")
    assert (hit, dict(hit.metadata), hit.offset) == (passages[-1], {"page": 3, "tags": ["a"]}, 12)
    assert opened.relevance(QUERIES[1], passages) == pytest.approx(source.relevance(QUERIES[1], passages))
    assert opened.relevance(QUERIES[1], [Passage("stranger")]) == [None]


def test_adding_to_an_opened_index_leaves_the_folder_alone(passages, embedder, tmp_path):
    FaissSource.from_passages(passages[:4], embedder).save(tmp_path)
    opened = FaissSource.open(tmp_path, embedder)
    opened.add(passages[4:])
    assert opened.search("farero", 1)[0].passage.id == "faro"
    assert len(FaissSource.open(tmp_path, embedder)) == 4
    opened.save(tmp_path)  # over the files it was opened from
    assert len(FaissSource.open(tmp_path, embedder)) == len(passages)
    assert not list(tmp_path.glob("*.partial"))
    assert len(list(tmp_path.glob("index-*.faiss"))) == 1


def test_a_failed_save_keeps_the_old_index(passages, embedder, tmp_path):
    FaissSource.from_passages(passages, embedder).save(tmp_path)
    bad = FaissSource.from_passages([*passages, Passage("x", metadata={"o": object()})], embedder)
    with pytest.raises(StoreError, match="metadata"):
        bad.save(tmp_path)
    assert len(FaissSource.open(tmp_path, embedder)) == len(passages)
    assert not list(tmp_path.glob("*.partial"))


def test_saving_into_a_foreign_folder_is_refused(passages, embedder, tmp_path):
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(StoreError, match="not empty"):
        FaissSource.from_passages(passages, embedder).save(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.txt"]


def damage_checksum(folder):
    path = next(folder.glob("index-*.faiss"))
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def damage_size(folder):
    path = next(folder.glob("passages-*.jsonl"))
    path.write_bytes(path.read_bytes()[:-5])


def damage_missing(folder):
    next(folder.glob("hashes-*.npy")).unlink()


def damage_manifest(folder):
    (folder / "manifest.json").write_text("{")


def edit_manifest(folder, **changes):
    path = folder / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def damage_escape(folder):
    files = json.loads((folder / "manifest.json").read_text())["files"]
    files["index"]["name"] = "../outside"
    edit_manifest(folder, files=files)


def damage_count(folder):
    edit_manifest(folder, count=3)


@pytest.mark.parametrize(
    "damage", [damage_checksum, damage_size, damage_missing, damage_manifest, damage_escape, damage_count]
)
def test_damage_is_noticed(passages, embedder, tmp_path, damage):
    FaissSource.from_passages(passages, embedder).save(tmp_path)
    damage(tmp_path)
    with pytest.raises(StoreError, match="damaged"):
        FaissSource.open(tmp_path, embedder)


@pytest.mark.parametrize("content", [b"", b"garbage" * 50])
def test_a_file_that_is_no_index_is_an_error_also_without_checksums(passages, embedder, tmp_path, content):
    FaissSource.from_passages(passages, embedder).save(tmp_path)
    files = json.loads((tmp_path / "manifest.json").read_text())["files"]
    (tmp_path / files["index"]["name"]).write_bytes(content)
    files["index"]["size"] = len(content)
    edit_manifest(tmp_path, files=files)
    with pytest.raises(StoreError, match="FAISS cannot read"):
        FaissSource.open(tmp_path, embedder, verify=False)


def test_newer_formats_other_kinds_and_missing_folders(passages, embedder, tmp_path):
    with pytest.raises(StoreError, match="no saved index"):
        FaissSource.open(tmp_path, embedder)
    FaissSource.from_passages(passages, embedder).save(tmp_path)
    edit_manifest(tmp_path, version=99)
    with pytest.raises(StoreError, match="upgrade"):
        FaissSource.open(tmp_path, embedder)
    edit_manifest(tmp_path, version=1, format="nest-other")
    with pytest.raises(StoreError, match="nest-other"):
        FaissSource.open(tmp_path, embedder)


def test_another_embedder_is_refused(passages, embedder, make_embedder, tmp_path):
    FaissSource.from_passages(passages, embedder).save(tmp_path)
    other = make_embedder()
    other.name = "bag@2"
    with pytest.raises(StoreError, match="bag@1"):
        FaissSource.open(tmp_path, other)
    with pytest.raises(StoreError, match="pass it as `embedder`"):
        FaissSource.open(tmp_path)


def test_searches_from_many_threads_agree(passages, embedder):
    source = FaissSource.from_passages(passages, embedder)
    expected = {query: source.search(query, 5) for query in QUERIES}
    wrong = []

    def work():
        wrong.extend(q for q in QUERIES * 20 if source.search(q, 5) != expected[q])

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
