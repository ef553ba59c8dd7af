"""Fusion against a plain re-statement of the rule."""

import random

import pytest

from nest_engine.retrieval.fusion import dense_weight, fuse, reciprocal_ranks, spread


def restated(dense, sparse):
    """METHOD.md section 2, as literally as possible, for positive scores on both sides."""

    def eta_of(scores):
        ordered = sorted(scores.values(), reverse=True)
        hundredth = ordered[99] if len(ordered) >= 100 else ordered[-1]
        return 1 - hundredth / max(ordered)

    eta = 0.7 * (1 - eta_of(sparse)) + 0.3 * eta_of(dense)
    lowest_dense, lowest_sparse = min(dense.values()), min(sparse.values())
    result = {}
    for document in set(dense) | set(sparse):
        of_dense = dense.get(document, lowest_dense)
        of_sparse = sparse.get(document, lowest_sparse)
        result[document] = eta * of_dense + (1 - eta) * of_sparse
    return result


@pytest.mark.parametrize("seed", range(60))
def test_equals_the_restatement(seed):
    rng = random.Random(seed)
    universe = range(rng.choice([1, 3, 90, 100, 101, 350]))
    dense = {d: rng.uniform(0.01, 1) for d in rng.sample(universe, rng.randint(1, len(universe)))}
    sparse = {d: rng.uniform(0.01, 30) for d in rng.sample(universe, rng.randint(1, len(universe)))}
    fused, expected = fuse(dense, sparse), restated(dense, sparse)
    assert fused.keys() == expected.keys()
    for document, score in fused.items():
        assert score == pytest.approx(expected[document], abs=1e-12)
    assert list(fused.values()) == sorted(fused.values(), reverse=True)


def test_hundredth_hit_counts_and_the_last_where_there_are_fewer():
    scores = [float(s) for s in range(200, 0, -1)]
    assert spread(scores) == pytest.approx(1 - 101 / 200)
    assert spread(scores[:50]) == pytest.approx(1 - 151 / 200)
    assert spread([5.0]) == 0.0


@pytest.mark.parametrize(
    ("scores", "expected"), [([], 0.0), ([0.0, 0.0], 0.0), ([-0.1, -0.5], 0.0), ([0.5, -0.1], 1.0)]
)
def test_spread_stays_sane_without_positive_scores(scores, expected):
    assert spread(scores) == expected


def test_a_sparse_side_that_tells_nothing_apart_gives_the_word_to_the_dense_side():
    assert dense_weight([0.9, 0.1], [7.0, 7.0]) > 0.9
    assert dense_weight([0.9, 0.9], [7.0, 0.1]) < 0.1


def test_found_by_one_side_only_gets_the_lowest_of_the_other():
    eta = dense_weight([0.8, 0.4], [10.0, 4.0])
    fused = fuse({"a": 0.8, "b": 0.4}, {"b": 4.0, "c": 10.0})
    assert fused["a"] == pytest.approx(eta * 0.8 + (1 - eta) * 4.0)
    assert fused["c"] == pytest.approx(eta * 0.4 + (1 - eta) * 10.0)


def test_an_empty_side_leaves_the_other_as_it_is():
    assert list(fuse({"a": 0.1, "b": 0.7}, {}).items()) == [("b", 0.7), ("a", 0.1)]
    assert fuse({}, {"x": 3.0}) == {"x": 3.0}
    assert fuse({}, {}) == {}


def test_ties_keep_dense_order_then_sparse_order():
    fused = fuse({"b": 1.0, "a": 1.0}, {"a": 2.0, "b": 2.0})
    assert list(fused) == ["b", "a"]


def test_scaling_makes_the_magnitude_of_a_side_irrelevant():
    dense, sparse = {"a": 0.8, "b": 0.3, "d": 0.2}, {"b": 20.0, "c": 5.0}
    louder = {key: 1000 * score for key, score in sparse.items()}
    assert fuse(dense, sparse, scale=True) == pytest.approx(fuse(dense, louder, scale=True))
    assert fuse(dense, sparse) != pytest.approx(fuse(dense, louder))


def test_reciprocal_ranks():
    fused = reciprocal_ranks(["a", "b"], ["b", "c"])
    assert fused == pytest.approx({"b": 1 / 62 + 1 / 61, "a": 1 / 61, "c": 1 / 62})
    assert list(fused) == ["b", "a", "c"]
