"""Transforms of keys and queries: as they are, standardized, or projected on principal components."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

PCA_SHARE = 5
"""The projection keeps one dimension in this many."""


class KeyTransform(Protocol):
    """A map that is applied to keys and queries alike before distances are taken."""

    def __call__(self, vectors: torch.Tensor) -> torch.Tensor:
        """Transform float [n, key_dim] to float [n, dim], in the same dtype and on the same device."""
        ...


class Identity:
    """Keys as they are: the paper's."""

    def __call__(self, vectors: torch.Tensor) -> torch.Tensor:
        """Return `vectors`."""
        return vectors


@dataclass(frozen=True)
class Linear:
    """A centered linear map: `(x - mean) * scale`, or `(x - mean) @ matrix`.

    Attributes:
        mean: float64 [key_dim].
        matrix: float64 [key_dim], a scale for each dimension, or [key_dim, dim], a projection.
    """

    mean: torch.Tensor
    matrix: torch.Tensor

    def __call__(self, vectors: torch.Tensor) -> torch.Tensor:
        """Transform float [n, key_dim] to float [n, dim]."""
        centered = vectors - self.mean.to(vectors)
        matrix = self.matrix.to(vectors)
        return centered * matrix if matrix.dim() == 1 else centered @ matrix


def standardize(keys: torch.Tensor) -> Linear:
    """Each dimension minus its mean, over its standard deviation.

    Args:
        keys: float [n, key_dim], a sample of keys, n at least 2.
    """
    keys = keys.double()
    return Linear(keys.mean(0), 1 / keys.std(0).clamp(min=1e-6))


def whiten(keys: torch.Tensor, dimensions: int | None = None) -> Linear:
    """Projection on the principal components, each scaled to unit variance.

    Args:
        keys: float [n, key_dim], a sample of keys, n at least 2.
        dimensions: Components to keep; by default a fifth of key_dim.
    """
    keys = keys.double()
    mean = keys.mean(0)
    covariance = torch.cov(keys.T)
    variances, components = torch.linalg.eigh(covariance)
    keep = dimensions or max(1, keys.shape[1] // PCA_SHARE)
    variances, components = variances[-keep:].flip(0), components[:, -keep:].flip(1)
    # The sign of a component is arbitrary: fix it, so that two computations agree.
    signs = torch.sign(components[components.abs().argmax(0), torch.arange(components.shape[1])])
    scale = 1 / variances.clamp(min=float(variances[0]) * 1e-6).sqrt()
    return Linear(mean, components * signs * scale)


def estimate(name: str, keys: torch.Tensor) -> KeyTransform:
    """Make the transform `"standardize"` or `"pca"` from a sample of keys, float [n, key_dim]."""
    return standardize(keys) if name == "standardize" else whiten(keys)
