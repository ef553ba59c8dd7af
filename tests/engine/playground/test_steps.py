"""The playground without its page: what it asks for, and the steps as a table."""

from __future__ import annotations

import subprocess
import sys

import pytest

from nest_engine import NestConfig
from nest_engine.errors import ConfigError, PromptError
from nest_engine.playground.bench import Bench, Texts
from nest_engine.playground.steps import to_table
from nest_engine.retrieval.source import ListSource
from nest_engine.trace import Draft, DraftToken, TracePlace, TraceStep, TraceToken
from tests.answers import HOSTILE
from tests.conftest import ROOT
from tests.texts import TEXTS
from tests.tiny import tiny_engine

PLACE = TracePlace(0, "p", "Title <b>", 4, 20)


def step(accepted, tokens, *, is_rejected, own=""):
    draft = Draft(PLACE, tuple(DraftToken(1, text) for text in tokens), accepted, is_rejected)
    added = [TraceToken(1, text, n, 0.25, "draft", PLACE) for n, text in enumerate(tokens[:accepted])]
    added += [TraceToken(2, own, accepted, 0.5, "model")] if own else []
    return TraceStep(1, 0.25, DraftToken(1, tokens[0]), tuple(added), draft)


def test_a_step_shows_what_was_accepted_rejected_and_dropped():
    html = to_table([step(2, ["The ", "tower ", "is ", "white"], is_rejected=True, own="was ")])
    assert "accepted: </span>The tower </mark>" in html
    assert "rejected: </span>is </del>" in html
    assert "dropped: </span>white</span>" in html
    assert "2 of 4 tokens accepted, one rejected, then the model’s token" in html
    assert ">The tower was <" in html
    assert "0.25" in html
    assert "Title &lt;b&gt;</bdi>, passage 1, token 5" in html
    assert "1 step for 3 tokens" in html


def test_steps_without_a_draft():
    own = TraceToken(1, "Hi", 0, 0.9, "neighbor")
    html = to_table([TraceStep(1, 0.9, DraftToken(1, "Hi"), (own,)), TraceStep(2, 0.8, DraftToken(2, ""))])
    assert "a neighbor has it too" in html
    assert "the answer ends" in html
    assert "2 steps for 1 tokens" in html
    assert "<del>" not in html


def test_documents_bring_no_markup():
    html = to_table([step(1, [HOSTILE, HOSTILE, HOSTILE], is_rejected=True, own=HOSTILE)])
    body = html.split("</style>")[1]
    assert "<script" not in body
    assert "<img" not in body
    assert "\u202e" not in body


def test_no_steps_yet():
    assert "<table" not in to_table(())


@pytest.fixture(scope="module")
def bench():
    engine = tiny_engine(config=NestConfig(max_new_tokens=16, alpha=1.0, delta=1.0))
    return Bench(engine, ListSource)


def test_the_bench_answers_from_files_and_pasted_text(bench, tmp_path):
    file = tmp_path / "river.txt"
    file.write_text(TEXTS["river"], encoding="utf-8")
    answer = bench.ask("What?", Texts((file,), TEXTS["bread"]))
    assert {scored.passage.title for scored in answer.passages} == {"river", "Pasted text"}
    assert str(tmp_path) not in "".join(scored.passage.document_id for scored in answer.passages)
    assert answer.trace
    assert bench.plain("What?").stats.mode == "lm"
    assert bench.plain("What?") is bench.plain("What?")


def test_the_bench_tells_what_is_missing(bench):
    with pytest.raises(PromptError, match="ask a question"):
        bench.ask(" ", Texts(pasted="Text."))
    with pytest.raises(ConfigError, match="upload a file or paste a text"):
        bench.ask("What?", Texts())


def test_without_gradio_the_error_names_the_extra(monkeypatch):
    from nest_engine.playground import app

    monkeypatch.setitem(sys.modules, "gradio", None)
    with pytest.raises(ConfigError, match=r"nest-rag\[playground\]"):
        app.load_gradio()


def test_nobody_imports_gradio_unasked():
    code = "import sys, nest_engine.cli, nest_engine.engine, nest_engine.playground.app; print('gradio' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
