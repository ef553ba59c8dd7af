"""Engines, loaded when first used and shared by all models that name the same one."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

from nest_engine import NestConfig, NestEngine
from nest_engine.config import PRESETS
from nest_engine.errors import ConfigError

_engines: WeakValueDictionary[str, NestEngine] = WeakValueDictionary()
_lock = threading.Lock()


@dataclass(frozen=True)
class EngineSpec:
    """What an engine is loaded from.

    Attributes:
        model_id: A demo model, a folder, a `.gguf` file or a hub id.
        device: Where to put the model.
        device_map: Spread it over devices, instead of `device`.
        dtype: Number format of the weights.
        model_kwargs: More arguments of transformers' `from_pretrained`.
        key_layer: Where keys come from; None: the model's preset.
        key_store: Folder that keys are kept in; None: memory.
    """

    model_id: str
    device: str | int | None = None
    device_map: Any = None
    dtype: str | None = None
    model_kwargs: Mapping[str, Any] | None = None
    key_layer: str | int | None = None
    key_store: str | None = None

    @property
    def address(self) -> str:
        """Equal for specifications of the same engine."""
        return json.dumps([*vars(self).values()], sort_keys=True, default=repr)

    def load(self) -> NestEngine:
        """Load the engine.

        Raises:
            NestError: If it cannot be loaded; the message says why.
        """
        config = NestConfig.preset(self.model_id) if self.model_id in PRESETS else NestConfig()
        if self.key_layer is not None:
            config = config.replace(key_layer=self.key_layer)
        return NestEngine.from_pretrained(
            self.model_id,
            config=config,
            device=_device(self.device),
            device_map=self.device_map,
            dtype=self.dtype,
            store=self.key_store,
            model_arguments=self.model_kwargs,
        )


def shared_engine(spec: EngineSpec) -> NestEngine:
    """The engine of a specification: loaded at its first use, and dropped with its last user.

    Safe to call from several threads: the model is loaded once.
    """
    with _lock:
        engine = _engines.get(spec.address)
        if engine is None:
            engine = _engines[spec.address] = spec.load()
        return engine


def _device(device: str | int | None) -> str | None:
    """A device in torch's words. HuggingFacePipeline counts CUDA devices, with -1 for the CPU."""
    if isinstance(device, int):
        return "cpu" if device < 0 else f"cuda:{device}"
    return device


def check_placement(device: Any, device_map: Any) -> None:
    """Refuse contradictions when a model is made, and not only when it is loaded.

    Raises:
        ConfigError: If both are given.
    """
    if device is not None and device_map is not None:
        raise ConfigError("give device or device_map, not both: device_map already says where the model goes")


def folder(path: str | Path | None) -> str | None:
    """A path as text."""
    return None if path is None else str(path)
