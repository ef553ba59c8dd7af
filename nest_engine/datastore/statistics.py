"""Statistics of key transforms, from a fixed text sample that ships with the package."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import resources
from typing import Any

import torch
from numpy.typing import NDArray

from nest_engine.datastore.transform import Identity, KeyTransform, estimate
from nest_engine.passages import Passage


def sample_passages() -> list[Passage]:
    """The text sample, one passage a paragraph: the same for every user, so that statistics are."""
    text = resources.files("nest_engine.datastore").joinpath("sample.txt").read_text(encoding="utf-8")
    return [Passage(text=paragraph.strip()) for paragraph in text.split("\n\n") if paragraph.strip()]


def load_transform(name: str, encode: Callable[[Sequence[Passage]], Sequence[NDArray[Any]]]) -> KeyTransform:
    """Make a key transform; where it has statistics, encode the text sample for them.

    Args:
        name: `"none"`, `"standardize"` or `"pca"`.
        encode: Gives the raw keys of passages, float [m, key_dim] each, from a store or fresh.
    """
    if name == "none":
        return Identity()
    keys = [torch.from_numpy(k).double() for k in encode(sample_passages()) if len(k)]
    return estimate(name, keys)
