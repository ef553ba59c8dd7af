"""Where keys come from: a hook on the stock model, no change to its code."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from nest_engine.errors import ConfigError, UnsupportedModelError

_FEED_FORWARD_NAMES = ("mlp", "block_sparse_moe", "feed_forward", "ffn", "moe", "fc1")


class _Stop(Exception):  # noqa: N818 - it is a signal and not an error
    """Ends a forward pass at the key layer."""


class KeyTap:
    """Catches the key vectors of a forward pass.

    The paper's key is the input of the last layer's feed-forward network, after its layer
    norm: what that module is called with. Catching is per thread, so passes of several
    threads over one model do not mix.
    """

    def __init__(self, model: nn.Module, layers: nn.ModuleList, key_layer: str | int) -> None:
        """Hook the module that `key_layer` names.

        Args:
            model: The model that the layers belong to (used for error messages only).
            layers: Its decoder layers.
            key_layer: `"ffn"`, `"penultimate"` or the number of a layer.

        Raises:
            ConfigError: If the model has no such layer.
            UnsupportedModelError: If the layer's feed-forward network cannot be found.
        """
        self._local = threading.local()
        if key_layer == "penultimate":
            if len(layers) < 2:
                raise ConfigError("key_layer='penultimate' needs a model of at least 2 layers; use 'ffn'")
            self.module: nn.Module = layers[len(layers) - 2]
            self.module.register_forward_hook(self._on_output)
            return
        number = len(layers) - 1 if key_layer == "ffn" else int(key_layer)
        if number >= len(layers):
            raise ConfigError(f"key_layer={number}: the model has layers 0 to {len(layers) - 1}")
        self.module = find_feed_forward(layers[number], type(model).__name__)
        self.module.register_forward_pre_hook(self._on_input, with_kwargs=True)

    @contextmanager
    def catch(self, *, stop: bool = False) -> Iterator[list[torch.Tensor]]:
        """Catch the keys of the forward pass in the block.

        Args:
            stop: End the pass as soon as the keys are there.

        Yields:
            A list that holds one tensor [..., key_dim] after the pass.
        """
        caught: list[torch.Tensor] = []
        self._local.caught, self._local.stop = caught, stop
        try:
            yield caught
        except _Stop:
            pass
        finally:
            self._local.caught = None

    def _on_input(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._keep(args[0] if args else next(iter(kwargs.values())))

    def _on_output(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        self._keep(output if isinstance(output, torch.Tensor) else output[0])

    def _keep(self, hidden: torch.Tensor) -> None:
        caught = getattr(self._local, "caught", None)
        if caught is None:
            return
        caught.append(hidden)
        if self._local.stop:
            raise _Stop


def find_layers(model: nn.Module, count: int) -> nn.ModuleList:
    """Find a model's decoder layers: its largest list of `count` modules.

    Args:
        model: The causal LM, adapters included.
        count: The number of layers in its configuration.

    Raises:
        UnsupportedModelError: If there is no such list.
    """
    lists = [m for m in model.modules() if isinstance(m, nn.ModuleList) and len(m) == count]
    if not lists:
        raise UnsupportedModelError(f"{type(model).__name__}: no list of {count} decoder layers found in the model")
    return max(lists, key=lambda candidate: sum(1 for _ in candidate.modules()))


def find_feed_forward(layer: nn.Module, model_name: str) -> nn.Module:
    """Find the feed-forward network of a decoder layer by the names that architectures use.

    Raises:
        UnsupportedModelError: If none of the names is there.
    """
    for name in _FEED_FORWARD_NAMES:
        module = getattr(layer, name, None)
        if isinstance(module, nn.Module):
            return module
    raise UnsupportedModelError(
        f"{model_name}: cannot find the feed-forward network of {type(layer).__name__}; "
        "use NestConfig(key_layer='penultimate')"
    )
