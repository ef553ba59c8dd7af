"""How sure a figure is: bootstrap intervals, and paired ones for differences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

RESAMPLES = 2000
LEVEL = 0.95

Floats = NDArray[np.float64]
Transform = Callable[[Floats], Floats]
"""Applied to a ratio before it is shown: `exp` makes a perplexity of a mean loss."""


@dataclass(frozen=True)
class Interval:
    """A figure and where it may as well lie.

    Attributes:
        value: The figure over all answers.
        low: Lower end of the 95 % interval.
        high: Upper end of it.
    """

    value: float
    low: float
    high: float

    @property
    def excludes_zero(self) -> bool:
        """For a difference: whether it is larger than its interval."""
        return self.low > 0 or self.high < 0


def interval(
    amounts: Sequence[float], counts: Sequence[float], *, transform: Transform | None = None, seed: int = 0
) -> Interval:
    """A ratio of sums over answers, such as copied tokens over tokens, with its bootstrap interval.

    Args:
        amounts: What is summed above the line, one number an answer.
        counts: What is summed below it; all 1 for a plain mean.
        transform: Applied to the ratio.
        seed: Seed of the resampling.
    """
    ratios = _ratios(amounts, counts, seed)
    return _interval(ratios if transform is None else transform(ratios))


def difference(
    left: tuple[Sequence[float], Sequence[float]],
    right: tuple[Sequence[float], Sequence[float]],
    *,
    transform: Transform | None = None,
    seed: int = 0,
) -> Interval:
    """Left minus right, both on the same questions, which are resampled together.

    Args:
        left: Amounts and counts of one system, see `interval`.
        right: Those of the other, question by question in the same order.
        transform: Applied to each side's ratio.
        seed: Seed of the resampling.
    """
    if len(left[0]) != len(right[0]):
        raise ValueError("paired differences need both systems' answers to the same questions")
    ours, theirs = _ratios(*left, seed), _ratios(*right, seed)
    return _interval(ours - theirs if transform is None else transform(ours) - transform(theirs))


def _ratios(amounts: Sequence[float], counts: Sequence[float], seed: int) -> Floats:
    """The ratio over all answers, then over each of the resamples: float64 [1 + RESAMPLES]."""
    both = np.array([amounts, counts], dtype=np.float64)
    sums = np.concatenate([both.sum(1, keepdims=True), both @ _times_drawn(both.shape[1], seed)], axis=1)
    ratios: Floats = np.divide(sums[0], sums[1], out=np.full(sums.shape[1], np.nan), where=sums[1] != 0)
    return ratios


@lru_cache(maxsize=2)
def _times_drawn(answers: int, seed: int) -> Floats:
    """How often each answer is in each resample: float64 [answers, RESAMPLES]."""
    drawn = np.random.default_rng(seed).multinomial(answers, np.full(answers, 1 / answers), size=RESAMPLES)
    times: Floats = drawn.T.astype(np.float64)
    return times


def _interval(values: Floats) -> Interval:
    """The first value is the figure itself, the others are those of the resamples."""
    known = values[1:][~np.isnan(values[1:])]
    if np.isnan(values[0]) or not len(known):
        return Interval(float("nan"), float("nan"), float("nan"))
    low, high = np.quantile(known, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(float(values[0]), float(low), float(high))
