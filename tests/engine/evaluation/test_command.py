"""`nest-engine eval` as a whole, on a tiny model."""

import json

import pytest

from nest_engine import NestEngine, cli
from tests.texts import BREAD, LIGHTHOUSE, RIVER

pytestmark = pytest.mark.usefixtures("tiny")


def run(*arguments):
    return cli.main(["eval", *map(str, arguments), "--source", "bm25", "--quiet"])


def test_questions(files, tmp_path, capsys):
    task, passages = files
    out = tmp_path / "out"
    arguments = [task, "--passages", passages, "--out", out, "--modes", "lm,ra,knn-lm,nest,best sentence"]
    arguments += ["--perplexity", "--max-new-tokens", "12", "--sweep", "gamma=0.5", "--top-passages", "2"]
    assert run(*arguments) == 0
    table = capsys.readouterr().out
    assert "|  | lm | ra | knn-lm | nest | best sentence | nest gamma=0.5 | knn-lm, tuned weight |" in table
    saved = json.loads((out / "results.json").read_text())
    assert saved["figures"]["best sentence"]["citation_precision"]["value"] == 1
    assert saved["figures"]["nest"]["perplexity: answer sentence"]["value"] > 1
    assert saved["settings"]["nest"]["max_new_tokens"] == 12
    assert saved["settings"]["nest gamma=0.5"]["gamma"] == 0.5
    assert saved["protocol"]["passages"] == 3
    before = (out / "answers.jsonl").read_text()
    assert run(*arguments) == 0
    assert capsys.readouterr().out == table
    assert (out / "answers.jsonl").read_text() == before


def test_ablate(files, capsys):
    task, passages = files
    assert run(task, "--passages", passages, "--ablate", "--max-new-tokens", "8", "--json") == 0
    results = json.loads(capsys.readouterr().out)
    assert list(results["figures"]) == [
        "knn-lm, fixed weight",
        "+ relative confidence",
        "+ span selection",
        "+ relaxed verification",
    ]
    attribution = {name: figures["attribution"]["value"] for name, figures in results["figures"].items()}
    assert attribution["knn-lm, fixed weight"] == attribution["+ relative confidence"] == 0
    assert attribution["+ span selection"] > 0


def test_squad_brings_its_passages(tmp_path, capsys):
    paragraph = {
        "context": RIVER,
        "qas": [{"id": "q", "question": "What does the river?", "answers": [{"text": "hills"}]}],
    }
    path = tmp_path / "dev.json"
    path.write_text(json.dumps({"data": [{"title": "River", "paragraphs": [paragraph]}]}))
    assert run(path, "--modes", "top passage", "--json") == 0
    figures = json.loads(capsys.readouterr().out)["figures"]["top passage"]
    assert figures["citation_precision"]["value"] == 1
    # A collection with other ids: the paragraph is known by its text.
    (tmp_path / "p.jsonl").write_text(json.dumps({"id": "other", "text": RIVER}))
    assert run(path, "--passages", tmp_path / "p.jsonl", "--modes", "top passage", "--json") == 0
    assert json.loads(capsys.readouterr().out)["figures"]["top passage"]["citation_precision"]["value"] == 1


def test_articles(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("nest_engine.evaluation.targets.PREFIX_TOKENS", 20)
    monkeypatch.setattr("nest_engine.evaluation.targets.TARGET_TOKENS", 60)
    path = tmp_path / "wiki.txt"
    path.write_text(f" = River = \n\n {RIVER} \n\n = Light = \n\n {LIGHTHOUSE} \n\n = Bread = \n\n {BREAD} \n")
    assert run(path, "--modes", "lm,knn-lm,nest", "--passage-words", "30", "--json") == 0
    figures = json.loads(capsys.readouterr().out)["figures"]
    metrics = [f"perplexity: {name}" for name in (
        "other articles", "all articles, without the target's passages", "all articles")]  # fmt: skip
    assert list(figures["nest"]) == metrics
    assert len({figures["lm"][m]["value"] for m in metrics}) == 1
    assert len({figures["knn-lm"][m]["value"] for m in metrics}) == 3


def test_choices(tmp_path, capsys, files):
    (tmp_path / "c.csv").write_text("What is ground?,rye,sand,coffee,salt,A\n")
    assert run(tmp_path / "c.csv", "--passages", files[1], "--modes", "lm,nest", "--json") == 0
    figures = json.loads(capsys.readouterr().out)["figures"]
    assert figures["nest"]["accuracy"]["value"] in (0, 1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--modes", "lm,nest"], "nothing to search: give --passages"),
        (["--modes", "rag"], "nothing to evaluate is called 'rag'"),
        (["--mode", "nest"], "give --modes instead of --mode"),
        (["--base", "x"], "--base 'x' is not among"),
        (["--limit", "0"], "--limit must be at least 1"),
        (["--sweep", "alpha"], "--sweep alpha="),
        (["--format", "squad"], "not JSON"),
    ],
)
def test_errors_come_before_the_model(files, capsys, monkeypatch, arguments, message):
    monkeypatch.setattr(NestEngine, "from_pretrained", lambda *a, **k: pytest.fail("the model was loaded"))
    assert run(files[0], *arguments) == 2
    assert message.replace("--sweep alpha=", "as in --sweep") in capsys.readouterr().err


def test_a_failed_question_shows_in_the_exit_code(files, capsys):
    task, passages = files
    long = {"id": "3", "question": "river " * 2000, "answers": ["x"]}
    task.write_text(task.read_text() + "\n" + json.dumps(long))
    assert run(task, "--passages", passages, "--modes", "lm", "--max-new-tokens", "4") == 2
    assert "1 answers failed" in capsys.readouterr().out
