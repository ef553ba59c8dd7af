"""Where sentences end, in tokens."""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

# A full stop that another character follows, as in 3.5 or e.g., ends nothing; those of
# scripts without spaces always do.
_SENTENCE_END = re.compile(r"""(?:[.!?…]+["'”’»)\]]*(?=\s|\Z))|(?:[。！？｡]+["'”’」』）]*)""")


def sentence_bounds(text: str) -> list[int]:
    """Where the sentences of a text end, in characters, rising."""
    return [match.end() for match in _SENTENCE_END.finditer(text)]


def sentence_ends(text: str, ends: NDArray[np.int32]) -> NDArray[np.bool_]:
    """Say for each token of a text whether a sentence ends with it.

    Args:
        text: The text.
        ends: int32 [m], characters complete after each token.

    Returns:
        bool [m].
    """
    marks = np.zeros(len(ends), dtype=np.bool_)
    if not len(ends):
        return marks
    stops = np.array(sentence_bounds(text), dtype=np.int64)
    tokens = np.searchsorted(ends, stops)
    inside = tokens < len(ends)
    exact = tokens[inside][ends[tokens[inside]] == stops[inside]]
    marks[exact] = True
    return marks
