"""Load a causal LM and its tokenizer: a demo model by name, a hub id, a folder, or a GGUF file."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging as transformers_logging

from nest_engine.errors import ConfigError, ModelNotFoundError, UnsupportedModelError
from nest_engine.lm import packing
from nest_engine.lm.catalog import CATALOG, fetch
from nest_engine.lm.tokenizer import Tokenizer
from nest_engine.lm.transformers_model import TransformersModel

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class LoadedModel:
    """A language model with its tokenizer.

    Attributes:
        name: What it was loaded by.
        lm: The model, for the decode loop.
        tokenizer: The tokenizer, for both ends of it.
    """

    name: str
    lm: TransformersModel
    tokenizer: Tokenizer


def load_model(
    name: str | Path,
    *,
    key_layer: str | int = "ffn",
    device: str | torch.device | None = None,
    device_map: Any = None,
    dtype: str | torch.dtype | None = None,
    model_arguments: Mapping[str, Any] | None = None,
    pack_weights: bool | None = None,
    progress: bool = True,
) -> LoadedModel:
    """Load a model for decoding. Code that comes with a model is never run.

    Args:
        name: A name of `CATALOG`, a folder, a `.gguf` file, or a hub id.
        key_layer: Where keys come from, see `NestConfig.key_layer`.
        device: Where to put the model; the CPU by default.
        device_map: Spread the model over devices (needs accelerate); instead of `device`.
        dtype: Number format of the weights; float32 on a CPU and the model's own elsewhere by default.
        model_arguments: More arguments of transformers' `from_pretrained`.
        pack_weights: Keep a second copy of the weights in the order that the CPU reads fastest; by default
            where that pays and the copy is no larger than 2 GiB.
        progress: Show progress bars while a model is fetched and loaded.

    Raises:
        ModelNotFoundError: If there is no such model.
        UnsupportedModelError: If NEST cannot run on it.
        ConfigError: If both `device` and `device_map` are given, or remote code is asked for.
    """
    if device is not None and device_map is not None:
        raise ConfigError("give device or device_map, not both: device_map already says where the model goes")
    arguments = dict(model_arguments or {})
    if arguments.pop("trust_remote_code", False):
        raise ConfigError("trust_remote_code is off: NEST runs no code that comes with a model")
    folder, file_arguments = _locate(name, progress=progress)
    _refuse_encoder_decoder(folder, file_arguments)
    arguments |= {"dtype": _dtype(dtype, device, device_map), **file_arguments}
    if device_map is not None:
        arguments["device_map"] = device_map
    model: Any
    try:
        with _loading_bars(shown=progress):
            model = AutoModelForCausalLM.from_pretrained(folder, **arguments)
            tokenizer = AutoTokenizer.from_pretrained(folder, **file_arguments)
    except OSError as error:
        raise _not_found(name) from error
    except SafetensorError as error:
        raise UnsupportedModelError(f"the weights of {name} are damaged, fetch them again: {error}") from error
    except ValueError as error:
        raise UnsupportedModelError(f"{name} is no causal language model that transformers knows: {error}") from error
    if device is not None:
        model = model.to(device)
    packed = packing.pack_weights(model, pack_weights)
    return wrap_model(model, tokenizer, name=str(name), key_layer=key_layer, packed=packed)


def wrap_model(
    model: Any,
    tokenizer: Any,
    *,
    name: str = "",
    key_layer: str | int = "ffn",
    packed: packing.PackedWeights | None = None,
) -> LoadedModel:
    """Use a model and tokenizer of transformers that are loaded already.

    Raises:
        UnsupportedModelError: If NEST cannot run on the model, or the tokenizer is a slow one.
    """
    text_tokenizer = Tokenizer(tokenizer)
    lm = TransformersModel(model, text_tokenizer.fingerprint, key_layer, packed)
    return LoadedModel(name or str(getattr(model.config, "_name_or_path", "")), lm, text_tokenizer)


def _locate(name: str | Path, *, progress: bool) -> tuple[str, dict[str, Any]]:
    """The folder or hub id to load from, and the arguments that name a GGUF file in it."""
    path = Path(name).expanduser()
    if not str(name):
        raise _not_found(name)
    if str(name) in CATALOG:
        return str(fetch(str(name), progress=progress)), {}
    if path.suffix.lower() == ".gguf":
        if not path.is_file():
            raise _not_found(name)
        return str(path.parent), {"gguf_file": path.name}
    if path.is_dir():
        return str(path), {}
    if path.is_absolute() or str(name).startswith((".", "~")) or str(name).count("/") > 1:
        raise _not_found(name)
    return str(name), {}


@contextmanager
def _loading_bars(*, shown: bool) -> Iterator[None]:
    """Let transformers show its own progress bars only where they are asked for."""
    if shown or not transformers_logging.is_progress_bar_enabled():
        yield
        return
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers_logging.enable_progress_bar()


def _refuse_encoder_decoder(folder: str, file_arguments: Mapping[str, Any]) -> None:
    """Say so before gigabytes are loaded."""
    try:
        config = AutoConfig.from_pretrained(folder, **file_arguments)
    except (OSError, ValueError, KeyError):
        return  # loading the model itself tells better what is wrong
    if getattr(config, "is_encoder_decoder", False):
        raise UnsupportedModelError(
            f"{folder} is an encoder-decoder ({config.model_type}); NEST needs a decoder-only model (a causal LM)"
        )


def _dtype(dtype: str | torch.dtype | None, device: Any, device_map: Any) -> str | torch.dtype:
    if dtype is None:
        on_cpu = device_map is None and (device is None or torch.device(device).type == "cpu")
        return torch.float32 if on_cpu else "auto"
    if isinstance(dtype, torch.dtype) or dtype == "auto":
        return dtype
    found = getattr(torch, dtype, None)
    if not isinstance(found, torch.dtype):
        raise ConfigError(f"no dtype {dtype!r}; use float32, bfloat16, float16 or auto")
    return found


def _not_found(name: str | Path) -> ModelNotFoundError:
    names = ", ".join(sorted(n for n, entry in CATALOG.items() if entry.kind == "causal-lm"))
    return ModelNotFoundError(
        f"no model {str(name)!r}: give a demo model ({names}), an existing folder with config.json, "
        "a .gguf file, or a hub id that this machine can reach or has cached"
    )
