"""Linear layers whose weights lie in the order in which the processor's matrix kernels read them.

With few tokens in a pass, most of its time is spent reading weights. oneDNN reads them faster
from blocks of its own than from rows, at the price of a second copy in memory. Results differ
by rounding only.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

logger = logging.getLogger(__name__)

_DTYPES = (torch.float32, torch.bfloat16)
_MOST_BYTES = 2 << 30
"""No second copy of weights larger than this is made unasked."""

_TOKENS = 16
"""Tokens in a pass that the order is made for: a chunk of a draft."""


class PackedWeights:
    """Packed copies of the weights of a model's linear layers, used in place of the layers' own."""

    def __init__(self, layers: dict[nn.Linear, Callable[[torch.Tensor], torch.Tensor]]) -> None:
        """Use some forward passes for some layers, from now on."""
        self._layers = layers
        self._use()

    @contextmanager
    def off(self) -> Iterator[None]:
        """Use the layers' own weights in the block: the model as transformers made it. No other thread may run it."""
        for layer in self._layers:
            del layer.__dict__["forward"]
        try:
            yield
        finally:
            self._use()

    def _use(self) -> None:
        for layer, forward in self._layers.items():
            # Seen before the class's own method, and gone again by deleting it.
            layer.__dict__["forward"] = forward


def pack_weights(model: nn.Module, wanted: bool | None) -> PackedWeights | None:
    """Pack the weights of a model that is read in inference mode only and never changed again.

    Args:
        model: The model, on the CPU.
        wanted: Whether to; None: where it was measured to be faster (docs/benchmarks.md).

    Returns:
        The packed weights, or None if there are none.
    """
    layers = [m for m in model.modules() if type(m) is nn.Linear and _can_pack(m)]
    if wanted is None:
        wanted = _pays(layers)
    if not wanted or not layers:
        return None
    try:
        return PackedWeights({layer: partial(_linear, *_pack(layer)) for layer in layers})
    except (AttributeError, RuntimeError, NotImplementedError) as error:  # a torch build without oneDNN
        logger.warning("weights are not packed, decoding is slower: %s", error)
        return None


def _can_pack(layer: nn.Linear) -> bool:
    weight = layer.weight
    # accelerate's hooks bring weights from elsewhere at each call.
    return weight.device.type == "cpu" and weight.dtype in _DTYPES and "forward" not in layer.__dict__


def _pays(layers: list[nn.Linear]) -> bool:
    if not torch.backends.mkldnn.is_available() or sum(m.weight.nbytes for m in layers) > _MOST_BYTES:
        return False
    if any(m.weight.dtype == torch.bfloat16 for m in layers):
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    # Float32 goes to MKL, which is at its best on Intel's own processors only.
    return torch.backends.mkl.is_available() and _vendor() not in ("GenuineIntel", "")


def _vendor() -> str:
    """The processor's maker as Linux has it; empty elsewhere."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("vendor_id")), "")


def _pack(layer: nn.Linear) -> tuple[Any, torch.Tensor | None]:
    bias = None if layer.bias is None else layer.bias.detach()
    return torch.ops.mkldnn._reorder_linear_weight(layer.weight.detach(), _TOKENS), bias


def _linear(weight: Any, bias: torch.Tensor | None, states: torch.Tensor) -> torch.Tensor:
    output: torch.Tensor = torch.ops.mkldnn._linear_pointwise(states, weight, bias, "none", [], "")
    return output
