"""Guesses what comes next from where the text has been before, for speed only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from nest_engine.datastore.suffix import BORDER, find_longest_suffix, join_passages

_SURE = 6
"""A match of this many tokens mostly goes on for as many again; a shorter one is worth `_UNSURE` guesses."""

_UNSURE = 2
_LONGEST_SUFFIX = 32


class Lookahead:
    """Guesses that a text goes on as it did where its longest suffix occurred before, there or in the passages.

    A wrong guess costs time: a forward pass over many tokens takes longer than one over a
    single token. So it guesses as far as the match is long: docs/benchmarks.md.
    """

    def __init__(self, token_ids: Mapping[int, NDArray[np.int32]]) -> None:
        """Look in passages, given by number, as their token ids, int32 [m] each, and in the text itself."""
        self._tokens = join_passages(token_ids)
        self._before = len(self._tokens)  # tokens before those of the text
        self._size = self._before

    def guess(self, text: Sequence[int]) -> list[int]:
        """What may come next, possibly nothing.

        Args:
            text: All token ids so far, those of the prompt included; it begins as it did at the last call.
        """
        self._append(text[self._size - self._before :])
        known = self._tokens[: self._size - 1]  # the end of the text is no occurrence of itself
        ends, length = find_longest_suffix(known, text[-_LONGEST_SUFFIX:])
        if not length:
            return []
        # The last occurrence: an answer repeats itself more often than its passages.
        start = int(ends[-1]) + 1
        ahead: list[int] = self._tokens[start : min(start + _ahead(length), self._size)].tolist()
        return ahead[: ahead.index(BORDER)] if BORDER in ahead else ahead

    def _append(self, tokens: Sequence[int]) -> None:
        size = self._size + len(tokens)
        if size > len(self._tokens):
            self._tokens = np.concatenate([self._tokens, np.empty(size, dtype=np.int32)])
        self._tokens[self._size : size] = tokens
        self._size = size


def _ahead(length: int) -> int:
    """How many tokens to guess behind a match."""
    return length if length >= _SURE else _UNSURE
