"""Where the end of a text occurs in the passages: longest suffix match over token ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nest_engine.datastore.token_index import Place

BORDER = -1
"""Stands between passages: no token has this id."""

_LONGEST = 64


@dataclass(frozen=True)
class SuffixMatch:
    """An occurrence of the end of a text.

    Attributes:
        place: Where its last token stands.
        length: How many of the text's last tokens occur there in a row.
    """

    place: Place
    length: int


class SuffixIndex:
    """Finds in some passages the longest suffix of a text. It needs no keys."""

    def __init__(self, token_ids: Mapping[int, NDArray[np.int32]]) -> None:
        """Search in passages, given by number, as their token ids, int32 [m] each."""
        self._numbers = list(token_ids)
        self._tokens = join_passages(token_ids)
        # Start of each passage in the joined tokens; a border stands before each.
        self._starts = np.cumsum([1] + [len(ids) + 1 for ids in token_ids.values()])

    def match(self, text: Sequence[int], least: int) -> SuffixMatch | None:
        """The longest suffix of a text that occurs; of equally long ones the first occurrence.

        Args:
            text: Token ids.
            least: Shortest suffix that counts, in tokens, at least 1.

        Returns:
            The occurrence, or None if there is none of at least `least` tokens.
        """
        ends, length = find_longest_suffix(self._tokens, text)
        return SuffixMatch(self._place(int(ends[0])), length) if length >= max(least, 1) else None

    def _place(self, position: int) -> Place:
        row = int(np.searchsorted(self._starts, position, side="right")) - 1
        return Place(self._numbers[row], position - int(self._starts[row]))


def find_longest_suffix(tokens: NDArray[np.int32], text: Sequence[int]) -> tuple[NDArray[np.intp], int]:
    """Where the longest suffix of a text occurs in some tokens.

    Args:
        tokens: int32 [n]; the first one occurs in no text.
        text: Token ids.

    Returns:
        Positions of the last token of each occurrence, in order, and the suffix's length in
        tokens: 0 where not even the last token occurs.
    """
    ends, length = np.empty(0, dtype=np.intp), 0
    at = np.flatnonzero(tokens == text[-1]) if text else ends
    while len(at):
        ends, length = at, length + 1
        if length == min(len(text), _LONGEST):
            break
        at = at[tokens[at - length] == text[-1 - length]]
    return ends, length


def join_passages(token_ids: Mapping[int, NDArray[np.int32]]) -> NDArray[np.int32]:
    """All passages in a row, int32 [n], with a border that is no token before, between and behind them."""
    border = np.array([BORDER], dtype=np.int32)
    return np.concatenate([border, *(part for ids in token_ids.values() for part in (ids, border))])
