"""The observer: told once of every call, whatever becomes of it, and never in the way."""

from __future__ import annotations

import pytest

from nest_engine.errors import SourceError
from tests.texts import PLAIN, passages
from tests.tiny import tiny_engine

PROMPT = "When was the lighthouse built?"


@pytest.fixture
def seen(engine):
    calls = []
    engine.observer = calls.append
    yield calls
    engine.observer = None


@pytest.fixture(scope="module")
def engine():
    return tiny_engine()


def test_a_call_is_told_as_its_statistics_have_it(engine, seen):
    engine.encode(passages(PLAIN[0]))
    answer = engine.generate(PROMPT, passages=passages(*PLAIN), mode="nest", max_new_tokens=20, gamma=1e-6)
    [call] = seen
    stats = answer.stats
    assert (call.mode, call.outcome, call.error) == ("nest", answer.finish_reason, "")
    assert (call.tokens, call.attributed_tokens) == (stats.tokens, stats.attributed_tokens)
    assert call.tokens > 0
    assert (call.lm_calls, call.drafted, call.accepted) == (stats.lm_calls, stats.drafted, stats.accepted)
    assert (call.citations, call.passages) == (len(answer.citations), stats.passages)
    assert call.prompt_tokens == stats.prompt_tokens
    assert call.store_hits + call.store_misses == len(PLAIN)
    assert call.store_hits >= 1
    assert call.seconds == stats.seconds
    engine.generate(PROMPT, passages=passages(*PLAIN), mode="nest", max_new_tokens=4)
    assert (seen[1].store_hits, seen[1].store_misses) == (len(PLAIN), 0)


def test_a_closed_stream_is_told_as_cancelled(engine, seen):
    stream = engine.stream(PROMPT, passages=passages(*PLAIN), mode="lm", max_new_tokens=50)
    next(stream)
    stream.close()
    [call] = seen
    assert call.outcome == "cancelled"
    assert 1 <= call.tokens < 50


def test_a_failure_is_told_with_its_class(engine, seen):
    class Broken:
        def search(self, query, k):
            raise OSError("gone")

    with pytest.raises(SourceError):
        engine.generate(PROMPT, source=Broken(), mode="nest")
    [call] = seen
    assert (call.outcome, call.error, call.tokens) == ("error", "SourceError", 0)


def test_an_observer_that_fails_costs_one_warning_and_no_answer(engine, caplog):
    def observer(call):
        raise ValueError("full disk")

    quiet = engine.generate(PROMPT, mode="lm", max_new_tokens=8).text
    engine.observer = observer
    try:
        answers = [engine.generate(PROMPT, mode="lm", max_new_tokens=8).text for _ in range(3)]
    finally:
        engine.observer = None
    assert answers == [quiet] * 3
    assert caplog.text.count("answers go on without it") == 1
