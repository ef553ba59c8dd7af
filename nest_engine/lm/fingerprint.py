"""A digest of everything that changes a model's keys, in seconds even for large models."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import torch
from torch import nn

_SAMPLES = 256
"""Values hashed of each tensor, evenly spaced: any fine-tuning step moves some of them."""


def fingerprint_model(model: nn.Module, *facts: str) -> str:
    """Digest of a model's configuration, weights, adapters and quantization.

    Of each weight a spread of values is hashed, with its name, shape and dtype, not all of
    it, so that a 7B model takes seconds. Where its parts lie (`device_map`) makes no difference.

    Args:
        model: The loaded model.
        *facts: Anything else that keys depend on, such as the key layer.

    Returns:
        32 hex digits.
    """
    digest = hashlib.sha256()
    digest.update(type(model).__name__.encode())
    digest.update(_configuration(model).encode())
    digest.update(json.dumps([adapter_state(model), *facts]).encode())
    tensors = [*model.named_parameters(), *model.named_buffers()]
    for name, tensor in sorted(tensors, key=lambda pair: pair[0]):
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype} {type(tensor).__name__}".encode())
        digest.update(_sample(model, name, tensor))
    return digest.hexdigest()[:32]


def _configuration(model: nn.Module) -> str:
    config: Any = getattr(model, "config", None)
    if config is None:
        return ""
    values = {k: v for k, v in config.to_dict().items() if k not in ("_name_or_path", "transformers_version")}
    return json.dumps(values, sort_keys=True, default=str)


def adapter_state(model: nn.Module) -> str:
    """The adapters that a model has and which of them are switched on: two sets can share one set of weights."""
    layers = [
        f"{name} disabled={module.disable_adapters} active={module.active_adapters} "
        f"merged={module.merged_adapters} scaling={getattr(module, 'scaling', {})}"
        for name, module in model.named_modules()
        if "merged_adapters" in vars(module)
    ]
    return "\n".join([str(vars(model).get("active_adapter", "")), *layers])


def _sample(model: nn.Module, name: str, tensor: torch.Tensor) -> bytes:
    """Bytes of evenly spaced values of a tensor; of an offloaded one they are read from where it is kept."""
    if tensor.is_meta:
        tensor = _offloaded(model, name)
    flat = tensor.detach().reshape(-1)
    if flat.numel() == 0:
        return b""
    where = torch.linspace(0, flat.numel() - 1, min(_SAMPLES, flat.numel()), dtype=torch.float64).long()
    try:
        values = flat[where.to(flat.device)]
    except (NotImplementedError, RuntimeError):  # a quantized tensor type that cannot be indexed
        values = flat.dequantize()[where.to(flat.device)]
    return values.to("cpu").contiguous().view(torch.uint8).numpy().tobytes()


def _offloaded(model: nn.Module, name: str) -> torch.Tensor:
    owner, _, leaf = name.rpartition(".")
    hook: Any = getattr(model.get_submodule(owner), "_hf_hook", None)
    weights = getattr(hook, "weights_map", None)
    if weights is None:
        return torch.zeros(0)
    tensor: torch.Tensor = weights[leaf]
    return tensor
