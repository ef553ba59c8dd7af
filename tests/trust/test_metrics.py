"""The metrics hook: one report a call, however it ends, and never in the way of an answer."""

from __future__ import annotations

import pytest

from nest_engine.errors import SourceError
from nest_engine.retrieval import ListSource
from tests.texts import passages
from tests.tiny import tiny_engine

QUESTION = "When was the lighthouse built?"


class Broken:
    def search(self, query, k):
        raise ConnectionError("down")


def test_counts_are_those_of_the_answer():
    engine, seen = tiny_engine(), []
    engine.metrics = seen.append
    source = ListSource(passages("lighthouse", "river"))
    answers = [engine.generate(QUESTION, source=source) for _ in range(2)]
    assert [(c.store_hits, c.store_misses) for c in seen] == [(0, 2), (2, 0)]
    for call, answer in zip(seen, answers, strict=True):
        assert call.outcome == answer.finish_reason
        for name in ("mode", "tokens", "attributed_tokens", "prompt_tokens", "lm_calls", "drafted", "accepted"):
            assert getattr(call, name) == getattr(answer.stats, name)
        assert call.seconds == answer.stats.seconds
        assert 0 <= call.acceptance <= 1


def test_calls_that_fail_or_are_left_are_reported():
    engine, seen = tiny_engine(), []
    engine.metrics = seen.append
    with pytest.raises(SourceError):
        engine.generate(QUESTION, source=Broken())
    stream = engine.stream(QUESTION, mode="lm", passages=[])
    next(stream)
    stream.close()
    assert [call.outcome for call in seen] == ["SourceError", "closed"]
    assert seen[1].lm_calls > 0


def test_a_hook_that_fails_is_logged_once(caplog):
    engine = tiny_engine()
    expected = engine.generate(QUESTION, mode="lm").text

    def broken(call):
        raise ZeroDivisionError

    engine.metrics = broken
    assert [engine.generate(QUESTION, mode="lm").text for _ in range(3)] == [expected] * 3
    assert caplog.text.count("metrics hook failed") == 1


def test_warnings_come_once_a_call_and_not_per_token(caplog):
    tiny_engine().generate(QUESTION, passages=[], mode="nest", max_new_tokens=40)
    assert len(caplog.records) == 1
