"""Which sentences of some passages a question asks for: the ones that share its rarer words."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Sequence
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
    weights = weigh_terms(words, _stems(query))
    total = sum(weights.values())
    mean = sum(map(len, words)) / max(1, len(words))

    def share(i: int) -> float:
        return sum(weight for stem, weight in weights.items() if stem in words[i]) / total

    def score(i: int) -> float:
        return share(i) / (1 - _LENGTH + _LENGTH * len(words[i]) / mean) - _RANK * ranks[i]

    kept = [i for i in range(len(sentences)) if total and share(i) >= _LEAST_SHARE]
    return [sentences[i] for i in sorted(kept, key=score, reverse=True)]


def weigh_terms(sentences: Sequence[Collection[str]], asked: Collection[str]) -> dict[str, float]:
    """Weights of the terms of a question that some sentence has: the more, the fewer sentences have them.

    Args:
        sentences: The terms of each sentence.
        asked: The terms of the question.
    """
    counts = Counter(term for found in sentences for term in set(found))
    return {term: math.log(1 + len(sentences) / counts[term]) for term in sorted(set(asked)) if counts[term]}


def _ranges(text: str, ends: NDArray[np.int32]) -> list[tuple[int, int]]:
    """First token of each sentence, and the one behind its last."""
    borders = [0, *(int(i) + 1 for i in np.nonzero(sentence_ends(text, ends))[0]), len(ends)]
    return [(start, end) for start, end in pairwise(borders) if start < end]


def _stems(text: str) -> list[str]:
    return [term[:_STEM] for term in search_terms(text)]
