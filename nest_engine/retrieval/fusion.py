"""Fusion of two rankings: the paper's score-based one, and reciprocal ranks."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import TypeVar

Key = TypeVar("Key", bound=Hashable)

DEPTH = 100
RRF_K = 60


def spread(scores: Sequence[float]) -> float:
    """How far the scores fall from the best hit to the 100th: 1 - s[100th] / s[best].

    A large value means that the search tells its best hits well apart from the rest. With
    fewer than 100 hits the last one counts. Where the best score is not positive, or there
    are no hits, the search has found no evidence and the value is 0. The value is kept
    within 0 and 1 (a negative 100th cosine would lead beyond).

    Args:
        scores: Scores, higher is better, in descending order.
    """
    if not scores or scores[0] <= 0:
        return 0.0
    last = scores[min(len(scores), DEPTH) - 1]
    return min(1.0, max(0.0, 1.0 - last / scores[0]))


def dense_weight(dense: Sequence[float], sparse: Sequence[float]) -> float:
    """The paper's weight of the dense scores, eta (appendix A): 0.7 (1 - eta_sparse) + 0.3 eta_dense.

    Args:
        dense: Dense scores in descending order.
        sparse: Sparse scores in descending order.
    """
    return 0.7 * (1.0 - spread(sparse)) + 0.3 * spread(dense)


def fuse(dense: Mapping[Key, float], sparse: Mapping[Key, float], *, scale: bool = False) -> dict[Key, float]:
    """Fuse two searches: eta * dense + (1 - eta) * sparse.

    A document found by one side only gets the other side's lowest score. Where one side
    found nothing at all, the other's scores are returned as they are.

    Args:
        dense: Score per document found by the dense search, higher is better.
        sparse: The same of the sparse search.
        scale: First divide each side's scores by its best, so that sides of different
            magnitude (cosines below 1, BM25 scores of 20) weigh as eta says. The paper adds
            the scores as they are.

    Returns:
        Fused score per document found by either, best first. Equal scores keep the order of
        the dense side, then the sparse side.
    """
    if not dense or not sparse:
        return _ranked(dense or sparse)
    eta = dense_weight(sorted(dense.values(), reverse=True), sorted(sparse.values(), reverse=True))
    if scale:
        dense, sparse = _scaled(dense), _scaled(sparse)
    dense_floor, sparse_floor = min(dense.values()), min(sparse.values())
    return _ranked(
        {
            key: eta * dense.get(key, dense_floor) + (1.0 - eta) * sparse.get(key, sparse_floor)
            for key in [*dense, *(key for key in sparse if key not in dense)]
        }
    )


def reciprocal_ranks(*rankings: Sequence[Key], k: int = RRF_K) -> dict[Key, float]:
    """Reciprocal-rank fusion: the sum over rankings of 1 / (k + rank), ranks from 1.

    Args:
        *rankings: Documents, best first; each at most once per ranking.
        k: Dampens the first ranks.

    Returns:
        Fused score per document found by any, best first; ties as in `fuse`.
    """
    scores: dict[Key, float] = {}
    for ranking in rankings:
        for rank, key in enumerate(ranking, start=1):
            scores[key] = scores.get(key, 0.0) + 1.0 / (k + rank)
    return _ranked(scores)


def _scaled(scores: Mapping[Key, float]) -> Mapping[Key, float]:
    """Scores divided by the best one; unchanged where that is not positive."""
    best = max(scores.values())
    return {key: score / best for key, score in scores.items()} if best > 0 else scores


def _ranked(scores: Mapping[Key, float]) -> dict[Key, float]:
    """The same scores in descending order (stable)."""
    return dict(sorted(scores.items(), key=lambda item: -item[1]))
