"""Number formats that keys are kept in."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

COORDINATES_SHARE = 4
"""The `pca` format keeps one coordinate in this many dimensions."""

_LARGEST = 127


@dataclass(frozen=True)
class StoredKeys:
    """Keys in a storage format.

    Attributes:
        values: float16, float32 or int8 [n, width].
        scales: float32 [n], what a row of int8 values is multiplied with; None in other formats.
    """

    values: NDArray[Any]
    scales: NDArray[np.float32] | None = None

    def __len__(self) -> int:
        """Number of keys."""
        return len(self.values)

    @property
    def nbytes(self) -> int:
        """Bytes that the keys take."""
        return self.values.nbytes + (self.scales.nbytes if self.scales is not None else 0)

    def is_finite(self) -> bool:
        """Whether every number is finite."""
        parts = [self.values] if self.scales is None else [self.scales]
        return all(bool(np.isfinite(part).all()) for part in parts)


class KeyCodec(Protocol):
    """Writes keys in a storage format and reads them back; every key passes through it before its first use."""

    @property
    def name(self) -> str:
        """The format and all it depends on; part of a key's address."""
        ...

    def encode(self, keys: torch.Tensor) -> StoredKeys:
        """Write keys, float [n, key_dim]."""
        ...

    def decode(self, stored: StoredKeys) -> torch.Tensor:
        """Read keys back: float [n, key_dim] on the CPU."""
        ...


@dataclass(frozen=True)
class FloatCodec:
    """Keys rounded to float16 or float32."""

    name: str

    def encode(self, keys: torch.Tensor) -> StoredKeys:
        """Write keys."""
        return StoredKeys(keys.to(device="cpu", dtype=getattr(torch, self.name)).contiguous().numpy())

    def decode(self, stored: StoredKeys) -> torch.Tensor:
        """Read keys back, in the storage format."""
        return torch.from_numpy(stored.values)


@dataclass(frozen=True)
class Int8Codec:
    """Keys rounded to 255 steps, with a scale for each key."""

    name: str = "int8"

    def encode(self, keys: torch.Tensor) -> StoredKeys:
        """Write keys."""
        keys = keys.to(device="cpu", dtype=torch.float32)
        scales = keys.abs().amax(-1) / _LARGEST
        steps = torch.round(keys / scales.clamp(min=torch.finfo(torch.float32).tiny)[:, None])
        return StoredKeys(steps.to(torch.int8).numpy(), scales.numpy())

    def decode(self, stored: StoredKeys) -> torch.Tensor:
        """Read keys back, as float32."""
        if stored.scales is None:
            raise ValueError("int8 keys have scales")
        return torch.from_numpy(stored.values).float() * torch.from_numpy(stored.scales)[:, None]


class PcaCodec:
    """Keys as float16 coordinates on their principal axes.

    What is read back is the projection in the space of the keys, so that any key transform
    can follow it.
    """

    def __init__(self, sample: torch.Tensor) -> None:
        """Find the axes.

        Args:
            sample: float [n, key_dim], keys of the text sample that ships with the package.
        """
        sample = sample.double()
        self._mean = sample.mean(0)
        axes = torch.linalg.eigh(torch.cov(sample.T)).eigenvectors
        kept = axes[:, -max(1, sample.shape[1] // COORDINATES_SHARE) :]
        self._axes, self._mean = kept.float().contiguous(), self._mean.float()
        digest = hashlib.sha256(self._axes.numpy().tobytes() + self._mean.numpy().tobytes()).hexdigest()
        self.name = f"pca-{digest[:16]}"

    def encode(self, keys: torch.Tensor) -> StoredKeys:
        """Write keys."""
        centered = keys.to(device="cpu", dtype=torch.float32) - self._mean
        return StoredKeys((centered @ self._axes).half().numpy())

    def decode(self, stored: StoredKeys) -> torch.Tensor:
        """Read keys back, as float32."""
        coordinates = torch.from_numpy(stored.values).float()
        return torch.addmm(self._mean, coordinates, self._axes.T)
