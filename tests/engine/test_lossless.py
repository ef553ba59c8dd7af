"""`lossless`, and every mode without passages, equal greedy generation of transformers, token for token."""

from __future__ import annotations

import logging
import os

import pytest
import torch

from nest_engine import NestEngine
from tests.engine.runs import run_loop
from tests.exactness import assert_same_greedy
from tests.texts import PLAIN, QUESTIONS, passages
from tests.tiny import greedy, greedy_batch

SOAK = bool(os.environ.get("NEST_SOAK"))
MODES = ("lm", "ra", "knn-lm", "nest", "ra-nest", "lossless")
TOPICS = (
    "a lighthouse", "sourdough bread", "a long river", "the sea at night", "wood", "steam engines", "tea",
    "mountains in winter", "a library", "glass", "the moon", "honey bees", "bridges", "salt", "maps", "clocks", "rain",
)  # fmt: skip
PROMPTS = [*QUESTIONS[:3], *(f"Tell me about {topic}." for topic in TOPICS)]


@pytest.fixture(scope="module")
def expected(demo_engine: NestEngine) -> dict[str, tuple[list[int], list[int]]]:
    """Prompt ids and transformers' greedy continuation of each prompt, 64 tokens, passages in the prompt.

    Prompts of one length share a batch: no padding, and a third of the time.
    """
    prompts = {text: build(demo_engine, text) for text in PROMPTS}
    result = {}
    for length in sorted({len(prompt) for prompt in prompts.values()}):
        batch = {text: prompt for text, prompt in prompts.items() if len(prompt) == length}
        answers = greedy_batch(demo_engine.model.lm, list(batch.values()), 64)
        result |= {text: (batch[text], answer) for text, answer in zip(batch, answers, strict=True)}
    return result


def build(engine: NestEngine, text: str) -> list[int]:
    return engine._prompts.build(text, task="question", passages=passages(*PLAIN)[:1]).ids


@pytest.mark.demo_model
@pytest.mark.slow
def test_lossless_equals_transformers_on_the_demo_model(demo_engine, expected):
    lm, calls, tokens, flips = demo_engine.model.lm, 0, 0, 0
    assert len(expected) >= 20
    for prompt, answer in expected.values():
        run, loop = run_loop(demo_engine, prompt, passages(*PLAIN), mode="lossless", max_new_tokens=64)
        flips += not assert_same_greedy(lm._model, prompt, [e.token for e in run], answer)
        calls, tokens = calls + loop.reader.counts.lm_calls, tokens + len(run)
    assert calls < tokens, "drafts saved forward passes"
    assert flips <= len(expected) // 5
    logging.getLogger(__name__).info("flips on near ties: %d of %d", flips, len(expected))


@pytest.mark.demo_model
@pytest.mark.slow
def test_lm_mode_equals_transformers_on_the_demo_model(demo_engine, expected):
    # Without drafts it is slow and, for the loop, the same few steps over and over: `make soak` takes all prompts.
    for prompt, answer in list(expected.values())[: None if SOAK else 6]:
        run, loop = run_loop(demo_engine, prompt, [], mode="lm", max_new_tokens=64)
        assert_same_greedy(demo_engine.model.lm._model, prompt, [e.token for e in run], answer)
        assert loop.reader.counts.lm_calls == len(run) + (loop.finish == "end")


@pytest.mark.demo_model
@pytest.mark.parametrize("mode", MODES)
def test_every_mode_without_passages_is_the_plain_model(demo_engine, mode, caplog):
    prompt = demo_engine._prompts.build("What is tea?", task="question").ids
    answer = demo_engine.generate("What is tea?", passages=[], mode=mode, max_new_tokens=12)
    plain = greedy(demo_engine.model.lm, prompt, 12)
    assert answer.text == demo_engine.model.tokenizer.decode(plain)
    assert answer.citations == ()
    assert ("no passages" in caplog.text) == (mode != "lm")


@pytest.mark.demo_model
def test_bfloat16_lossless_follows_its_own_greedy(demo_model_dir):
    engine = NestEngine.from_pretrained(demo_model_dir, dtype="bfloat16", config=None)
    prompt = build(engine, QUESTIONS[0])
    run, _ = run_loop(engine, prompt, passages(*PLAIN), mode="lossless", max_new_tokens=16)
    plain = greedy(engine.model.lm, prompt, 16)
    assert engine.model.lm._model.dtype == torch.bfloat16
    assert_same_greedy(engine.model.lm._model, prompt, [e.token for e in run], plain)
