"""Bootstrap intervals: what is known about them by theory."""

import math

import numpy as np
import pytest

from nest_engine.evaluation.intervals import difference, interval


def test_a_share_of_many_answers_has_the_textbook_interval():
    hits = [1.0] * 120 + [0.0] * 280
    figure = interval(hits, [1.0] * 400)
    error = 1.96 * math.sqrt(0.3 * 0.7 / 400)
    assert figure.value == pytest.approx(0.3)
    assert figure.low == pytest.approx(0.3 - error, abs=0.01)
    assert figure.high == pytest.approx(0.3 + error, abs=0.01)


def test_a_ratio_is_one_of_sums_and_not_a_mean_of_ratios():
    assert interval([9.0, 0.0], [10.0, 90.0]).value == pytest.approx(0.09)


def test_a_transform_is_applied_to_the_ratio():
    figure = interval([2.0, 4.0], [2.0, 2.0], transform=np.exp)
    assert figure.value == pytest.approx(math.exp(1.5))
    assert (figure.low, figure.high) == (pytest.approx(math.exp(1)), pytest.approx(math.exp(2)))


def test_the_same_seed_gives_the_same_interval():
    values = [0.1 * n for n in range(30)]
    ones = [1.0] * 30
    assert interval(values, ones, seed=3) == interval(values, ones, seed=3)
    assert interval(values, ones, seed=3) != interval(values, ones, seed=4)


def test_a_paired_difference_is_surer_than_its_sides():
    rng = np.random.default_rng(0)
    base = rng.normal(0, 1, 200)
    better = base + 0.1 + rng.normal(0, 0.05, 200)
    ones = [1.0] * 200
    gap = difference((better.tolist(), ones), (base.tolist(), ones))
    side = interval(better.tolist(), ones)
    assert gap.value == pytest.approx(float((better - base).mean()))
    assert gap.high - gap.low < (side.high - side.low) / 5
    assert gap.excludes_zero
    assert not difference((base.tolist(), ones), (base.tolist(), ones)).excludes_zero


def test_pairs_need_the_same_questions():
    with pytest.raises(ValueError, match="same questions"):
        difference(([1.0], [1.0]), ([1.0, 2.0], [1.0, 1.0]))


def test_nothing_counted_is_no_figure():
    assert math.isnan(interval([0.0], [0.0]).value)
