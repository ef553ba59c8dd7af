from __future__ import annotations

import pytest
import torch

from nest_engine.datastore.codec import FloatCodec, Int8Codec, PcaCodec
from tests.engine.runs import run_loop, tokens_and_places
from tests.texts import passages
from tests.tiny import tiny_engine


def sample(n: int = 500, dim: int = 64, rank: int = 12) -> torch.Tensor:
    """The first n of some keys that lie near a plane of a few dimensions."""
    generator = torch.Generator().manual_seed(0)
    low = torch.randn(rank, dim, generator=generator)
    return torch.randn(1000, rank, generator=generator)[:n] @ low + 3


@pytest.mark.parametrize(
    ("codec", "error"),
    [(FloatCodec("float32"), 0), (FloatCodec("float16"), 1e-3), (Int8Codec(), 1e-2), (PcaCodec(sample()), 5e-3)],
    ids=lambda value: getattr(value, "name", ""),
)
def test_what_is_read_back_is_what_was_written(codec, error):
    keys = sample(40)
    back = codec.decode(codec.encode(keys)).float()
    assert back.shape == keys.shape
    assert float((back - keys).norm() / keys.norm()) <= error
    # A key that has passed through once does not change any more.
    assert torch.allclose(codec.decode(codec.encode(back)).float(), back, atol=2e-2 if error else 0)


def test_sizes_are_as_promised():
    keys = sample(40, 576, 100)
    half = FloatCodec("float16").encode(keys).nbytes
    assert Int8Codec().encode(keys).nbytes <= 0.51 * half
    assert PcaCodec(sample(600, 576, 100)).encode(keys).nbytes <= 0.26 * half


def test_zero_keys_and_no_keys_pass():
    for codec in (FloatCodec("float16"), Int8Codec(), PcaCodec(sample())):
        assert codec.decode(codec.encode(torch.zeros(0, 64))).shape == (0, 64)
        assert torch.isfinite(codec.decode(codec.encode(torch.zeros(3, 64)))).all()


def test_two_bases_have_two_names():
    assert PcaCodec(sample()).name != PcaCodec(sample(dim=64, rank=5)).name
    assert PcaCodec(sample()).name == PcaCodec(sample()).name


@pytest.mark.parametrize("key_format", ["float16", "float32", "int8", "pca"])
@pytest.mark.parametrize("key_transform", ["none", "standardize", "pca"])
def test_every_format_works_with_every_transform(key_format, key_transform):
    engine = tiny_engine("llama")
    prompt = engine.model.tokenizer.encode("The lighthouse").ids
    settings = {"key_format": key_format, "key_transform": key_transform, "max_new_tokens": 12, "delta": 1.0}
    first, _ = run_loop(engine, prompt, passages("lighthouse"), **settings)
    again, _ = run_loop(engine, prompt, passages("lighthouse"), **settings, draft_chunk=1)
    assert tokens_and_places(first) == tokens_and_places(again)


def test_changing_the_transform_encodes_nothing_again():
    engine = tiny_engine("llama")
    engine.generate("The lighthouse", passages=passages("lighthouse"), key_transform="standardize", max_new_tokens=2)
    calls = []
    encode = engine.model.lm.encode
    engine.model.lm.encode = lambda sequences: calls.append(len(sequences)) or encode(sequences)
    for transform in ("none", "pca", "standardize"):
        engine.generate("The lighthouse", passages=passages("lighthouse"), key_transform=transform, max_new_tokens=2)
    assert sum(calls) == 0
