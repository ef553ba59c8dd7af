"""Guessing from where the text has been before."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from nest_engine.decoding.drafters import AdaptiveChunk
from nest_engine.decoding.lookahead import Lookahead
from tests.engine.runs import run_loop
from tests.texts import PLAIN, passages
from tests.tiny import tiny_engine

TOKENS = st.lists(st.integers(0, 4), max_size=40)


def lookahead(*token_ids: list[int]) -> Lookahead:
    return Lookahead({number: np.array(ids, dtype=np.int32) for number, ids in enumerate(token_ids)})


def test_goes_on_as_the_passage_does_no_further_than_its_end():
    assert lookahead([1, 2, 3, 4, 5], [7, 8, 9]).guess([0, 1, 2, 3]) == [4, 5]
    assert lookahead([7, 8, 9], [9, 9]).guess([7, 8]) == [9]
    assert lookahead([7, 8], [9, 9]).guess([7, 8]) == []


def test_goes_on_as_the_text_itself_did():
    assert lookahead().guess([1, 2, 3, 4, 1, 2]) == [3, 4]
    assert lookahead([1, 2, 9]).guess([1, 2, 3, 4, 1, 2]) == [3, 4], "of equally long matches the last one"
    assert lookahead([4, 1, 2, 9]).guess([1, 2, 3, 4, 1, 2]) == [9], "the longest match"


def test_guesses_as_far_as_the_match_is_long():
    passage = list(range(100))
    assert len(lookahead(passage).guess([0])) == 2
    assert len(lookahead(passage).guess(list(range(5)))) == 2
    assert len(lookahead(passage).guess(list(range(10)))) == 10


@settings(max_examples=300, deadline=None)
@given(st.lists(TOKENS.filter(bool), max_size=3), TOKENS.filter(bool), st.lists(TOKENS, max_size=4))
def test_a_growing_text_gives_what_a_fresh_one_gives(token_ids, text, growth):
    grown = lookahead(*token_ids)
    for more in [[], *growth]:
        text = [*text, *more]
        assert grown.guess(text) == lookahead(*token_ids).guess(text) == plain(token_ids, text)


def plain(token_ids: list[list[int]], text: list[int]) -> list[int]:
    """The same, written down naively."""
    best, ahead = 0, []
    for place in [*token_ids, text]:
        for end in range(1, len(place) + (place is not text)):
            length = 0
            while length < min(end, len(text), 32) and place[end - 1 - length] == text[-1 - length]:
                length += 1
            if length and length >= best:
                best, ahead = length, place[end : end + (length if length >= 6 else 2)]
    return ahead


def test_chunks_grow_on_success_and_shrink_after_a_failure():
    chunk = AdaptiveChunk()
    first = chunk.length
    chunk.learn(first, first)
    assert chunk.length == 2 * first
    chunk.learn(2 * first, 0)
    assert first <= chunk.length < 2 * first
    chunk.learn(0, 0)
    assert first <= chunk.length < 2 * first


def test_a_fixed_chunk_bounds_the_guesses():
    engine = tiny_engine()
    prompt = engine._prompts.build("What is glass?", task="question").ids
    answers = {}
    for fixed in (1, 3, None):
        run, loop = run_loop(engine, prompt, passages(*PLAIN), mode="lossless", max_new_tokens=24, draft_chunk=fixed)
        answers[fixed] = [(e.token, e.place) for e in run]
        if fixed is not None:
            assert loop.reader.counts.drafted <= (fixed - 1) * loop.reader.counts.lm_calls
    assert answers[1] == answers[3] == answers[None]
