"""Runs on a tiny model: what is recorded, that a broken run goes on, and that failures do not stop it."""

import json

import pytest

from nest_engine import NestConfig, Passage
from nest_engine.errors import SourceError, TaskError
from nest_engine.evaluation.answers import AnswerFile, Key
from nest_engine.evaluation.runner import Measured, Runner, digest_passages
from nest_engine.evaluation.systems import systems_of
from nest_engine.evaluation.tasks import Question
from nest_engine.retrieval import ListSource
from tests.texts import BREAD, LIGHTHOUSE, RIVER
from tests.tiny import tiny_engine

PASSAGES = [
    Passage(text=RIVER, title="River", id="river", document_id="nature"),
    Passage(text=LIGHTHOUSE, title="Light", id="light", document_id="buildings"),
    Passage(text=BREAD, id="bread", document_id="food"),
]
QUESTIONS = [
    Question("q1", "Where does the river rise?", ("northern hills",), ("river",)),
    Question("q2", "Who asked for the lamp?", ("Ada Finch",), ("light",)),
]


def config_of(mode):
    return NestConfig(mode=mode, max_new_tokens=24, gamma=5e-4, top_passages=3, min_citation_words=1)


SYSTEMS = systems_of(["lm", "nest", "top passage", "best sentence"], config_of)


@pytest.fixture(scope="module")
def engine():
    return tiny_engine(config=config_of("nest"))


def run(engine, path=None, systems=SYSTEMS, source=None, collection="c"):
    measured = Measured(list(systems))
    Runner(engine, source or ListSource(PASSAGES), collection, AnswerFile(path)).run(systems, QUESTIONS, measured)
    return measured


def test_what_is_recorded_is_what_the_engine_says(engine, tmp_path):
    run(engine, tmp_path / "a.jsonl")
    rows = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    assert {(r["system"], r["id"]) for r in rows} == {(s.name, q.id) for s in SYSTEMS for q in QUESTIONS}
    row = next(r["result"] for r in rows if (r["system"], r["id"]) == ("nest", "q1"))
    generation = engine.generate(QUESTIONS[0].text, source=ListSource(PASSAGES), config=config_of("nest"))
    assert row["text"] == generation.text
    assert row["text"].startswith(row["head"])
    assert row["tokens"] == generation.stats.tokens
    assert row["attributed"] == generation.stats.attributed_tokens == sum(row["runs"]) > 0
    assert [c["passage_id"] for c in row["citations"]] == [c.passage_id for c in generation.citations]
    assert row["found"] == ["river", "light", "bread"]
    assert row["seconds"] > row["decode_seconds"] > 0


def test_wordings_are_asked_and_kept_apart(engine, tmp_path):
    kept, asked = AnswerFile(tmp_path / "a.jsonl"), {}
    systems = systems_of(["lm"], config_of)
    for wording in ("question", "brief", "chat"):
        runner = Runner(engine, ListSource(PASSAGES), "c", kept, wording=wording)
        asked[wording] = runner.answer(systems[0], QUESTIONS[0]).text
        expected = engine.generate(QUESTIONS[0].text, config=systems[0].config, task=wording).text
        assert asked[wording] == expected
    assert len(kept.results) == 3
    assert len(set(asked.values())) > 1


def test_runs_go_across_passages_of_one_document(engine):
    one = [Passage(text=p.text, title=p.title, id=p.id, document_id="all") for p in PASSAGES]
    settings = {"passages": one, "mode": "nest", "max_new_tokens": 60, "span_tokens": 3, "gamma": 5e-4, "delta": 1.0}
    together = engine.generate("Tell me.", **settings).stats
    apart = engine.generate("Tell me.", **{**settings, "passages": PASSAGES}).stats
    assert sum(together.document_runs) == together.attributed_tokens == apart.attributed_tokens
    assert len(together.document_runs) <= len(apart.document_runs)
    assert max(together.document_runs) > 3


def test_extractive_baselines(engine):
    measured = run(engine)
    tokenizer = engine.model.tokenizer
    for name in ("top passage", "best sentence"):
        ratios = measured.ratios[name]["q1"]
        assert ratios["citation_precision"] == (1, 1)
        assert ratios["attribution"][0] == ratios["attribution"][1] == 24
        assert ratios["tokens/s"] == (24, 0)  # no seconds, no speed
        # The passage found first is not the one with the answer.
        assert measured.ratios[name]["q2"]["citation_precision"] == (0, 1)
    held = "northern hills" in tokenizer.decode(tokenizer.encode(RIVER).ids[:24])
    assert measured.ratios["top passage"]["q1"]["recall"] == (float(held), 1)


def test_a_broken_run_goes_on(engine, tmp_path, monkeypatch):
    path = tmp_path / "out" / "a.jsonl"
    first = run(engine, path)
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:-1]) + lines[-1][:30])
    lost = json.loads(lines[-1])
    asked = []
    monkeypatch.setattr(Runner, "_extract", lambda self, system, question: asked.append((system.name, question.id)))
    monkeypatch.setattr(Runner, "_generate", lambda self, system, question: asked.append((system.name, question.id)))
    with pytest.raises(AttributeError):  # what the stubs return is no answer
        run(engine, path)
    assert asked == [(lost["system"], lost["id"])]
    monkeypatch.undo()
    again = run(engine, path)
    assert again.ratios["nest"]["q1"] == first.ratios["nest"]["q1"]
    assert len(path.read_text().splitlines()) == len(lines)
    assert all(json.loads(line) for line in path.read_text().splitlines())


def test_answers_are_not_reused_for_other_settings_or_passages(engine, tmp_path):
    path = tmp_path / "a.jsonl"
    count = len(SYSTEMS) * len(QUESTIONS)
    run(engine, path)
    run(engine, path, collection="other")
    assert len(path.read_text().splitlines()) == 2 * count
    run(engine, path, systems_of(["nest"], lambda mode: config_of(mode).replace(gamma=0.5)))
    assert len(path.read_text().splitlines()) == 2 * count + len(QUESTIONS)


def test_a_failing_question_is_noted(engine, caplog):
    class Broken(ListSource):
        def search(self, query, k):
            if "lamp" in query:
                raise SourceError("the store is away")
            return super().search(query, k)

    measured = run(engine, source=Broken(PASSAGES))
    assert measured.failed["nest"] == {"q2": "the store is away"}
    assert set(measured.ratios["nest"]) == {"q1"}
    assert set(measured.ratios["lm"]) == {"q1", "q2"}
    assert "question q2" in caplog.text


def test_a_foreign_file_is_refused(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"question": "a?"}\n{"question": "b?"}\n')
    with pytest.raises(TaskError, match=r"a\.jsonl:1: no answer of nest-engine eval"):
        AnswerFile(path)


def test_systems_of_equal_settings_share_answers():
    file = AnswerFile()
    file.add(Key("nest", "digest", "q1"), {"text": "a"})
    assert file.results[Key("+ relaxed verification", "digest", "q1")] == {"text": "a"}
    assert Key("nest", "other", "q1") not in file.results


def test_the_digest_of_a_collection():
    digests = {digest_passages(p) for p in (PASSAGES, PASSAGES[:2], PASSAGES[::-1], [*PASSAGES[:2], Passage(text="x")])}
    assert len(digests) == 4
    assert digest_passages(list(PASSAGES)) == digest_passages(PASSAGES)


def test_what_holds_the_answer_can_be_taken_away(engine):
    measured = Measured(list(SYSTEMS))
    Runner(engine, ListSource(PASSAGES), "c", AnswerFile(None), without_gold=True).run(SYSTEMS, QUESTIONS, measured)
    for system in SYSTEMS[1:]:
        for question in QUESTIONS:
            ratios = measured.ratios[system.name][question.id]
            assert ratios["citation_recall"] == (0, 1)
            assert ratios["retrieval_all"] == (0, 1)
    assert measured.ratios["nest"]["q1"]["cited_answers"] == (1, 1), "it cites something else"


def test_a_question_without_answers_is_measured_for_citations_alone(engine):
    measured = Measured(list(SYSTEMS))
    talk = Question("talk", "Hello!", ())
    Runner(engine, ListSource(PASSAGES), "c", AnswerFile(None)).run(SYSTEMS, [talk], measured)
    ratios = measured.ratios["nest"]["talk"]
    assert "cited_answers" in ratios
    assert not {"recall", "f1", "rouge1", "citation_precision"} & set(ratios)
