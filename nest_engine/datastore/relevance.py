"""Which sentences of some passages a question asks for: the ones that share its rarer words."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from nest_engine.datastore.sentences import sentence_ends
from nest_engine.datastore.token_index import Sentence
from nest_engine.passages import Passage
from nest_engine.retrieval.terms import search_terms

_STEM = 5
"""Characters of a word that count: what stands behind them is mostly inflection, in many languages."""

_LEAST_SHARE = 0.3
"""A sentence answers a question if it has at least this share of the question's words that any sentence has."""

_LENGTH = 0.2
"""How much a long sentence has to share more than a short one, from 0 (no more) to 1 (in proportion)."""

_RANK = 0.05
"""What each better passage is worth, as a share."""


def rank_sentences(
    passages: Sequence[Passage], ends: Sequence[NDArray[np.int32]], numbers: Sequence[int], query: str
) -> list[Sentence]:
    """Rank sentences by the question's words in them, each weighed by how few sentences have it.

    Args:
        passages: The passages, best first.
        ends: For each int32 [m], characters complete after each token.
        numbers: For each its number in places.
        query: The question.

    Returns:
        The sentences that share enough with the question, best first; equally good ones in the
        order of the passages.
    """
    sentences: list[Sentence] = []
    words: list[list[str]] = []
    ranks: list[int] = []
    for rank, (passage, token_ends, number) in enumerate(zip(passages, ends, numbers, strict=True)):
        for start, end in _ranges(passage.text, token_ends):
            text = passage.text[int(token_ends[start - 1]) if start else 0 : int(token_ends[end - 1])]
            sentences.append(Sentence(number, start, end))
            words.append(_stems(text))
            ranks.append(rank)
    shares = _shares(words, _stems(query))
    mean = sum(map(len, words)) / max(1, len(words))
    scores = [
        share / (1 - _LENGTH + _LENGTH * len(found) / mean) - _RANK * rank if share >= _LEAST_SHARE else 0.0
        for share, found, rank in zip(shares, words, ranks, strict=True)
    ]
    order = sorted(range(len(sentences)), key=lambda i: (-scores[i], i))
    return [sentences[i] for i in order if shares[i] >= _LEAST_SHARE]


def _shares(words: Sequence[Sequence[str]], asked: Sequence[str]) -> list[float]:
    """Of what a question asks and any sentence has, how much each sentence has; 0 where none has anything."""
    counts = Counter(stem for found in words for stem in set(found))
    weights = {stem: math.log(1 + len(words) / counts[stem]) for stem in sorted(set(asked)) if counts[stem]}
    total = sum(weights.values())
    return [sum(w for stem, w in weights.items() if stem in found) / total if total else 0.0 for found in words]


def _ranges(text: str, ends: NDArray[np.int32]) -> list[tuple[int, int]]:
    """First token of each sentence, and the one behind its last."""
    borders = [0, *(int(i) + 1 for i in np.nonzero(sentence_ends(text, ends))[0]), len(ends)]
    return [(start, end) for start, end in pairwise(borders) if start < end]


def _stems(text: str) -> list[str]:
    return [term[:_STEM] for term in search_terms(text)]
