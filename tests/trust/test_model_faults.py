"""A model that fails in the middle of an answer: a typed error, and an engine that can be used on."""

from __future__ import annotations

import pytest
import torch

from nest_engine.errors import NonFiniteLogitsError, OutOfMemoryError
from tests.texts import PLAIN, passages
from tests.tiny import tiny_engine

PROMPT = "When was the lighthouse built?"
MODES = ("lm", "nest", "ra-nest", "lossless", "knn-lm", "ra")


@pytest.fixture(scope="module")
def engine():
    return tiny_engine()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("fault", ["memory", "nan"])
def test_the_next_answer_is_the_one_before(engine, mode, fault, monkeypatch):
    given = {"passages": passages(*PLAIN), "mode": mode, "max_new_tokens": 20, "draft_chunk": 2}
    before = engine.generate(PROMPT, **given)
    inner = engine.model.lm._model.forward

    calls = 0

    def fail(*args, **kwargs):
        nonlocal calls
        calls += 1
        if calls == 3 and fault == "memory":
            raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried 1 bytes")
        output = inner(*args, **kwargs)
        if calls == 3:
            output.logits[:] = torch.nan
        return output

    monkeypatch.setattr(engine.model.lm._model, "forward", fail)
    expected = OutOfMemoryError if fault == "memory" else NonFiniteLogitsError
    with pytest.raises(expected, match=r"passages|float32"):
        engine.generate(PROMPT, **given)
    monkeypatch.undo()
    after = engine.generate(PROMPT, **given)
    assert (after.text, after.citations) == (before.text, before.citations)


def test_memory_that_runs_out_while_encoding_stores_nothing_wrong(monkeypatch):
    engine = tiny_engine()
    inner = engine.model.lm._model.forward
    monkeypatch.setattr(engine.model.lm._model, "forward", raising(torch.OutOfMemoryError("CUDA out of memory")))
    with pytest.raises(OutOfMemoryError, match="tokens"):
        engine.encode(passages(*PLAIN))
    monkeypatch.setattr(engine.model.lm._model, "forward", inner)
    [first, *_] = engine.encode(passages(*PLAIN))
    [again, *_] = tiny_engine().encode(passages(*PLAIN))
    assert (first.keys.values == again.keys.values).all()


def test_other_errors_of_a_model_stay_what_they_are(engine, monkeypatch):
    monkeypatch.setattr(engine.model.lm._model, "forward", raising(RuntimeError("shapes do not match")))
    with pytest.raises(RuntimeError, match="shapes") as caught:
        engine.generate(PROMPT, mode="lm", max_new_tokens=4)
    assert not isinstance(caught.value, OutOfMemoryError)


def raising(error):
    def forward(*args, **kwargs):
        raise error

    return forward
