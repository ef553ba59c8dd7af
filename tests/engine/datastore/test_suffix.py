from __future__ import annotations

import numpy as np
import pytest

from nest_engine.datastore.suffix import SuffixIndex
from nest_engine.datastore.token_index import Place

PASSAGES = {4: np.array([1, 2, 3, 4, 2, 3, 5], np.int32), 9: np.array([2, 3, 4, 9], np.int32)}


def brute_force(text: list[int], least: int) -> tuple[int, Place] | None:
    best = None
    for number, tokens in PASSAGES.items():
        for position in range(len(tokens)):
            length = 0
            while length <= position and length < len(text) and tokens[position - length] == text[-1 - length]:
                length += 1
            if length >= least and (best is None or length > best[0]):
                best = (length, Place(number, position))
    return best


@pytest.mark.parametrize("seed", range(60))
def test_it_equals_brute_force(seed):
    generator = np.random.default_rng(seed)
    text = generator.choice([1, 2, 3, 4, 5, 9], size=generator.integers(1, 8)).tolist()
    for least in (1, 2, 3):
        match, expected = SuffixIndex(PASSAGES).match(text, least), brute_force(text, least)
        assert (match is None) == (expected is None)
        if match is not None:
            assert (match.length, match.place) == expected


def test_a_match_never_crosses_a_passages_border():
    match = SuffixIndex(PASSAGES).match([3, 5, 2, 3, 4], 1)
    assert match.place == Place(4, 3)
    assert match.length == 3


def test_nothing_matches_an_empty_text_or_an_unknown_token():
    index = SuffixIndex(PASSAGES)
    assert index.match([], 1) is None
    assert index.match([7], 1) is None
    assert index.match([1, 2], 3) is None
    assert SuffixIndex({}).match([1], 1) is None
