"""Where the end of a text occurs in the passages: longest suffix match over token ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nest_engine.datastore.token_index import Place

_BORDER = -1
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
        border = np.array([_BORDER], dtype=np.int32)
        self._numbers = list(token_ids)
        self._tokens = np.concatenate([border, *(part for ids in token_ids.values() for part in (ids, border))])
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
        if not text:
            return None
        at = np.flatnonzero(self._tokens == text[-1])
        length = 0
        for back in range(1, min(len(text), _LONGEST) + 1):
            if not len(at):
                break
            length, ends = back, at
            if back < len(text):
                at = at[self._tokens[at - back] == text[-1 - back]]
        if length < least:
            return None
        return SuffixMatch(self._place(int(ends[0])), length)

    def _place(self, position: int) -> Place:
        row = int(np.searchsorted(self._starts, position, side="right")) - 1
        return Place(self._numbers[row], position - int(self._starts[row]))
