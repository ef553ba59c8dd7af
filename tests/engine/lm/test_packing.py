"""Packed weights: the same results up to rounding, and a model that can be had back as it was."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from nest_engine.lm import packing
from nest_engine.lm.packing import pack_weights

pytestmark = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this torch has no oneDNN")


def layers(dtype: torch.dtype = torch.float32) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(48, 96), nn.SiLU(), nn.Linear(96, 40, bias=False)).to(dtype).eval()


@pytest.mark.parametrize("shape", [(48,), (1, 48), (2, 7, 48), (1, 200, 48)])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)])
@torch.inference_mode()
def test_packed_layers_compute_the_same(shape, dtype, tolerance):
    if dtype == torch.bfloat16 and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        pytest.skip("this processor has no bfloat16")
    model, states = layers(dtype), torch.randn(shape).to(dtype)
    own = model(states)
    packed = pack_weights(model, True)
    assert packed is not None
    torch.testing.assert_close(model(states), own, atol=tolerance, rtol=tolerance)
    with packed.off():
        assert torch.equal(model(states), own), "the layers' own weights, to the bit"
    assert "forward" in model[0].__dict__, "packed again behind the block"


def test_weights_and_their_names_stay():
    model = layers()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    assert pack_weights(model, True) is not None
    after = model.state_dict()
    assert list(after) == list(before)
    assert all(torch.equal(after[name], before[name]) for name in before)


def test_what_cannot_be_packed_stays_as_it_is():
    assert pack_weights(layers(torch.float64), True) is None
    assert pack_weights(layers(), False) is None
    assert pack_weights(layers().to("meta"), True) is None


def test_a_torch_without_the_kernels_decodes_all_the_same(monkeypatch, caplog):
    def missing(layer):
        raise RuntimeError("no such kernel")

    monkeypatch.setattr(packing, "_pack", missing)
    model = layers()
    assert pack_weights(model, True) is None
    assert "forward" not in model[0].__dict__
    assert "no such kernel" in caplog.text


@pytest.mark.parametrize(("vendor", "packs"), [("AuthenticAMD", True), ("GenuineIntel", False), ("", False)])
def test_unasked_float32_is_packed_where_it_pays(monkeypatch, vendor, packs):
    monkeypatch.setattr(packing, "_vendor", lambda: vendor)
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: True)
    assert (pack_weights(layers(), None) is not None) == packs
    monkeypatch.setattr(packing, "_MOST_BYTES", 1000)
    assert pack_weights(layers(), None) is None, "too large for a second copy"
