"""Key transforms, and their statistics from the text sample."""

from __future__ import annotations

from importlib import resources

import pytest
import torch

from nest_engine.datastore.statistics import load_transform, sample_passages
from nest_engine.datastore.transform import PCA_SHARE, Identity, estimate, standardize, whiten
from nest_engine.words import count_words
from tests.texts import passages
from tests.tiny import tiny_engine


def sample(count: int = 400, dim: int = 20, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    mixing = torch.randn(dim, dim, generator=generator)
    return torch.randn(count, dim, generator=generator) @ mixing * torch.arange(1, dim + 1) + 5


def test_none_changes_nothing():
    keys = sample()
    assert Identity()(keys) is keys
    assert isinstance(load_transform("none", lambda: pytest.fail("the sample was read")), Identity)


def test_standardized_dimensions():
    keys = sample()
    mapped = standardize(keys)(keys).double()
    assert torch.allclose(mapped.mean(0), torch.zeros(20).double(), atol=1e-5)
    assert torch.allclose(mapped.std(0), torch.ones(20).double(), atol=1e-5)
    expected = (keys.double() - keys.double().mean(0)) / keys.double().std(0)
    assert torch.allclose(mapped, expected, atol=1e-5)


def test_whitened_dimensions():
    keys = sample()
    mapped = whiten(keys)(keys.double())
    assert mapped.shape == (400, 20 // PCA_SHARE)
    assert torch.allclose(mapped.mean(0), torch.zeros(4).double(), atol=1e-9)
    assert torch.allclose(torch.cov(mapped.T), torch.eye(4).double(), atol=1e-9)


def test_the_components_of_most_variance_are_kept():
    keys = sample().double()
    mapped = whiten(keys, 3)(keys)
    centered = keys - keys.mean(0)
    _, _, right = torch.linalg.svd(centered, full_matrices=False)
    projected = centered @ right[:3].T
    correlation = torch.corrcoef(torch.cat([mapped, projected], 1).T)[:3, 3:]
    assert torch.allclose(correlation.abs(), torch.eye(3).double(), atol=1e-6)


def test_whitening_in_full_keeps_all_dimensions():
    keys = sample()
    assert whiten(keys, 20)(keys).shape == (400, 20)


@pytest.mark.parametrize("name", ["standardize", "pca"])
def test_the_order_of_the_sample_makes_no_difference(name):
    keys = sample().double()
    shuffled = keys[torch.randperm(len(keys), generator=torch.Generator().manual_seed(1))]
    left, right = estimate(name, keys)(keys), estimate(name, shuffled)(keys)
    assert torch.allclose(left, right, atol=1e-8)


@pytest.mark.parametrize("name", ["standardize", "pca"])
def test_dtype_and_shape_are_those_of_the_vectors(name):
    transform = estimate(name, sample())
    for dtype in (torch.float32, torch.float64):
        mapped = transform(sample(7).to(dtype))
        assert mapped.dtype == dtype
        assert len(mapped) == 7


@pytest.mark.parametrize("name", ["standardize", "pca"])
def test_a_constant_dimension_stays_finite(name):
    keys = sample()
    keys[:, 3] = 1.5
    keys[:, 4] = keys[:, 5]
    assert torch.isfinite(estimate(name, keys)(keys)).all()


def test_distances_of_standardized_keys_are_scaled_by_dimension():
    keys = sample().double()
    transform = standardize(keys)
    left, right = keys[:1], keys[1:2]
    expected = ((left - right) / keys.std(0)).square().sum()
    assert torch.allclose((transform(left) - transform(right)).square().sum(), expected)


# --- the sample -------------------------------------------------------------------------------


def test_the_sample_ships_with_the_package():
    text = resources.files("nest_engine.datastore").joinpath("sample.txt").read_text(encoding="utf-8")
    assert 2000 < count_words(text) < 4000
    assert "<" not in text
    assert any("\u4e00" <= character <= "\u9fff" for character in text)


def test_the_sample_is_passages_of_one_paragraph():
    texts = sample_passages()
    assert 25 <= len(texts) <= 32
    assert all(passage.text == passage.text.strip() and "\n" not in passage.text for passage in texts)
    assert len({passage.text for passage in texts}) == len(texts)


@pytest.mark.parametrize("name", ["standardize", "pca"])
def test_statistics_come_from_the_sample_and_not_from_the_users_passages(name):
    first, second = tiny_engine(), tiny_engine()
    settings = {"key_transform": name, "max_new_tokens": 12}
    first.generate("Party?", passages=passages("emoji", "chinese"), **settings)
    left = first.generate("Mill?", passages=passages("river"), **settings)
    right = second.generate("Mill?", passages=passages("river"), **settings)
    assert left.text == right.text
    assert left.stats.lambda_mean == right.stats.lambda_mean


@pytest.mark.parametrize("name", ["none", "standardize", "pca"])
@pytest.mark.parametrize("mode", ["nest", "knn-lm"])
def test_the_engine_answers_with_each_transform(name, mode):
    engine = tiny_engine()
    answer = engine.generate("Mill?", passages=passages("river"), mode=mode, key_transform=name, max_new_tokens=10)
    assert answer.stats.tokens == 10
    if name != "none":
        plain = engine.generate("Mill?", passages=passages("river"), mode=mode, max_new_tokens=10)
        assert plain.stats.lambda_mean != answer.stats.lambda_mean or mode == "knn-lm"
