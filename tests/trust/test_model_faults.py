"""A model that runs out of memory or computes NaN in mid-answer; the edge of the context; very long answers."""

from __future__ import annotations

import pytest
import torch

from nest_engine.errors import ContextOverflowError, ModelMemoryError, NonFiniteLogitsError
from tests.texts import passages
from tests.tiny import tiny_engine

QUESTION = "When was the lighthouse built?"
MODES = ("lm", "ra", "knn-lm", "nest", "ra-nest", "lossless")
ERRORS = (
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
    RuntimeError("[enforce fail at alloc_cpu.cpp:124] DefaultCPUAllocator: can't allocate memory: you tried ..."),
    RuntimeError("MPS backend out of memory"),
    MemoryError(),
)


@pytest.fixture(scope="module")
def engine():
    return tiny_engine()


def fail_at(monkeypatch, engine, number, action):
    """Let the model's forward pass number `number` do something else."""
    model = engine.model.lm._model
    forward, calls = model.model.forward, []

    def replaced(*arguments, **named):
        calls.append(1)
        if len(calls) == number:
            return action(lambda: forward(*arguments, **named))
        return forward(*arguments, **named)

    monkeypatch.setattr(model.model, "forward", replaced)


@pytest.mark.parametrize("number", [1, 2, 4], ids=["encoding", "prompt", "mid-answer"])
@pytest.mark.parametrize("error", ERRORS, ids=lambda e: type(e).__name__)
def test_out_of_memory(engine, monkeypatch, error, number):
    given = passages("lighthouse")
    fresh = tiny_engine()
    expected = fresh.generate(QUESTION, passages=given, gamma=0.9)

    def burst(run):
        raise error

    broken = tiny_engine()
    with monkeypatch.context() as patch:
        fail_at(patch, broken, number, burst)
        with pytest.raises(ModelMemoryError, match="max_new_tokens"):
            broken.generate(QUESTION, passages=given, gamma=0.9)
    again = broken.generate(QUESTION, passages=given, gamma=0.9)
    assert (again.text, again.citations) == (expected.text, expected.citations)


def test_other_errors_of_the_model_stay_what_they_are(engine, monkeypatch):
    def burst(run):
        raise RuntimeError("shapes do not match")

    with monkeypatch.context() as patch:
        fail_at(patch, engine, 1, burst)
        with pytest.raises(RuntimeError, match="shapes") as caught:
            engine.generate(QUESTION, mode="lm")
    assert not isinstance(caught.value, ModelMemoryError)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_nan_in_mid_answer(engine, monkeypatch, mode, temperature):
    given = passages("lighthouse")
    settings = {"mode": mode, "temperature": temperature, "max_new_tokens": 12, "gamma": 0.9}
    engine.encode(given)
    expected = engine.generate(QUESTION, passages=given, **settings)

    def poison(run):
        output = run()
        output.last_hidden_state.fill_(float("nan"))
        return output

    with monkeypatch.context() as patch:
        fail_at(patch, engine, 2, poison)
        with pytest.raises(NonFiniteLogitsError):
            engine.generate(QUESTION, passages=given, **settings)
    assert engine.generate(QUESTION, passages=given, **settings).text == expected.text


@pytest.mark.parametrize("mode", MODES)
def test_the_very_edge_of_the_context(engine, mode):
    window = engine.model.lm.context_window
    room = window - len(engine.build_prompt(QUESTION))
    settings = {"mode": mode, "passages_in_prompt": False} if mode == "lossless" else {"mode": mode}
    given = [] if mode in ("ra", "ra-nest") else passages("lighthouse")
    answer = engine.generate(QUESTION, passages=given, max_new_tokens=room, stop=["zzzzzz"], **settings)
    assert answer.stats.prompt_tokens + answer.stats.tokens <= window
    with pytest.raises(ContextOverflowError):
        engine.generate(QUESTION, passages=given, max_new_tokens=room + 1, **settings)


@pytest.mark.parametrize("mode", ["nest", "lossless"])
def test_an_answer_of_thousands_of_tokens(soak, mode):
    tokens = 4000 if soak else 600
    engine = tiny_engine(max_position_embeddings=8192)
    ends = sorted(engine.model.lm.end_ids)

    def endless(ids, logits):
        logits[:, ends] = -torch.inf
        return logits

    answer = engine.generate(
        QUESTION, passages=passages("lighthouse"), mode=mode, max_new_tokens=tokens, logits_processors=[endless]
    )
    assert answer.stats.tokens == tokens
    assert answer.finish_reason == "length"
