"""The trace tells what happened, step by step, and watching changes nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nest_engine.generation import Seconds
from tests.texts import QUESTIONS, passages
from tests.tiny import tiny_engine

MODES = ("lm", "ra", "knn-lm", "nest", "ra-nest", "lossless")
EAGER = {"alpha": 1.0, "delta": 1.0, "mu": 1.0, "gamma": 0.05, "span_tokens": 6, "max_new_tokens": 40}


@pytest.fixture(scope="module")
def engine():
    return tiny_engine("llama")


def ask(engine, **settings):
    return engine.generate(QUESTIONS[0], passages=passages("lighthouse", "bread"), **{**EAGER, **settings})


def timeless(generation):
    return replace(generation, trace=(), stats=replace(generation.stats, seconds=Seconds()))


@pytest.mark.parametrize("settings", [*({"mode": mode} for mode in MODES), {"temperature": 1.0}, {"refresh_every": 9}])
def test_the_answer_is_the_same_when_it_is_watched(engine, settings):
    plain, watched = ask(engine, **settings), ask(engine, trace=True, **settings)
    assert plain.trace == ()
    assert timeless(plain) == timeless(watched)
    assert len(watched.trace) == watched.stats.steps


@pytest.mark.parametrize("tokenizer", ["bytes", "metaspace"])
@pytest.mark.parametrize(
    "settings", [{"mode": "nest"}, {"mode": "lossless"}, {"span_start": "sentence"}, {"gamma": 0.9}, {"gamma": 1e-6}]
)
def test_it_tells_every_token(tokenizer, settings):
    answer = ask(tiny_engine("llama", tokenizer), trace=True, **settings)
    tokens = [token for step in answer.trace for token in step.tokens]
    assert "".join(step.text for step in answer.trace) == answer.text
    assert [token.position for token in tokens] == list(range(answer.stats.tokens))
    assert sum(token.origin == "draft" for token in tokens) == answer.stats.attributed_tokens
    assert sum(token.origin == "neighbor" for token in tokens) == answer.stats.neighbor_hits
    assert sum(token.weight for token in tokens) == pytest.approx(answer.stats.lambda_mean * len(tokens))


def test_drafts_stand_in_their_passages(engine):
    answer = ask(engine, trace=True)
    drafts = [step.draft for step in answer.trace if step.draft is not None]
    assert drafts
    for draft in drafts:
        passage = answer.passages[draft.start.passage].passage
        assert draft.start.passage_id == passage.id
        whole = "".join(token.text for token in draft.tokens)
        assert passage.text[draft.start.offset :].startswith(whole)
        rejected = draft.rejected.text if draft.rejected else ""
        assert draft.accepted_text + rejected + draft.dropped_text == whole


def test_a_rejection_is_followed_by_a_token_of_the_models_own(engine):
    steps = [step for step in ask(engine, gamma=0.9, trace=True).trace if step.draft and step.draft.is_rejected]
    assert steps, "this gamma rejects something"
    for step in steps:
        origins = [token.origin for token in step.tokens]
        assert origins[: step.draft.accepted] == ["draft"] * step.draft.accepted
        assert origins[step.draft.accepted :] in ([], ["model"], ["neighbor"])  # none where the answer ended
        if len(origins) > step.draft.accepted:
            assert step.tokens[-1].id != step.draft.rejected.id


def test_a_stop_string_cuts_the_trace_where_it_cuts_the_answer(engine):
    text = ask(engine).text
    answer = ask(engine, trace=True, stop=[text[20:24]])
    assert answer.finish_reason == "stop"
    assert "".join(step.text for step in answer.trace) == answer.text
