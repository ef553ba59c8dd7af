"""Statistics of key transforms, from a fixed text sample that ships with the package."""

from __future__ import annotations

from collections.abc import Callable
from importlib import resources

import torch

from nest_engine.config import KeyFormat
from nest_engine.config import KeyTransform as KeyTransformName
from nest_engine.datastore.codec import FloatCodec, Int8Codec, KeyCodec, PcaCodec
from nest_engine.datastore.transform import Identity, KeyTransform, estimate
from nest_engine.passages import Passage


def sample_passages() -> list[Passage]:
    """The text sample, one passage a paragraph: the same for every user, so that statistics are."""
    text = resources.files("nest_engine.datastore").joinpath("sample.txt").read_text(encoding="utf-8")
    return [Passage(text=paragraph.strip()) for paragraph in text.split("\n\n") if paragraph.strip()]


def load_transform(name: KeyTransformName, sample: Callable[[], torch.Tensor]) -> KeyTransform:
    """Make a key transform.

    Args:
        name: `"none"`, `"standardize"` or `"pca"`.
        sample: Gives the keys of the text sample, float [n, key_dim], if they are needed.
    """
    return Identity() if name == "none" else estimate(name, sample())


def load_codec(name: KeyFormat, sample: Callable[[], torch.Tensor]) -> KeyCodec:
    """Make the codec of a storage format.

    Args:
        name: `"float16"`, `"float32"`, `"int8"` or `"pca"`.
        sample: Gives the keys of the text sample, float [n, key_dim], if they are needed.
    """
    if name == "pca":
        return PcaCodec(sample())
    return Int8Codec() if name == "int8" else FloatCodec(name)
