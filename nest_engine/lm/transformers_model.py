"""`LanguageModel` over transformers: the stock forward pass and the stock cache."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch
from transformers import DynamicCache

from nest_engine.errors import UnsupportedModelError
from nest_engine.lm.fingerprint import adapter_state, fingerprint_model
from nest_engine.lm.memory import memory_errors
from nest_engine.lm.packing import PackedWeights
from nest_engine.lm.protocol import Reading
from nest_engine.lm.tap import KeyTap, find_layers
from nest_engine.lm.turns import FairLock

_BATCH_TOKENS = 512
"""Tokens encoded in one forward pass, padding included: enough to fill a CPU, where longer batches only pad more."""


class TransformersModel:
    """A decoder-only transformers model with a tap on its key layer."""

    def __init__(
        self,
        model: Any,
        tokenizer_fingerprint: str = "",
        key_layer: str | int = "ffn",
        packed: PackedWeights | None = None,
    ) -> None:
        """Wrap a loaded model and try one pass, so that a model that cannot work is refused here.

        Args:
            model: A causal LM of transformers, in evaluation mode or not, PEFT-adapted or not.
            tokenizer_fingerprint: Digest of its tokenizer; part of the model's own fingerprint.
            key_layer: `"ffn"`, `"penultimate"` or the number of a layer.
            packed: Its packed weights, if it has any.

        Raises:
            UnsupportedModelError: If it is an encoder-decoder, its cache cannot be cropped, or
                it has no feed-forward network to tap.
            ConfigError: If it has no layer `key_layer`.
        """
        config = model.config.get_text_config()
        if getattr(model.config, "is_encoder_decoder", False):
            raise UnsupportedModelError(
                f"{type(model).__name__} is an encoder-decoder; NEST needs a decoder-only model (a causal LM)"
            )
        self._model = model.eval()
        self._packed = packed
        self._config = config
        self._lock = FairLock()
        self._require_croppable(self.new_cache().is_croppable)
        self._tap = KeyTap(model, find_layers(model, int(config.num_hidden_layers)), key_layer)
        parameters = inspect.signature(_forward_owner(model).forward).parameters
        self._keeps_logits = "logits_to_keep" in parameters
        # The argument is being renamed in transformers 5; passing the old name warns at every call.
        self._cache_name = "cache" if "cache" in parameters else "past_key_values"
        self._facts = (tokenizer_fingerprint, str(key_layer))
        self._fingerprints: dict[str, str] = {}
        self.key_dim = self._try_out()

    @property
    def fingerprint(self) -> str:
        """Digest of weights, adapters, quantization, dtype, tokenizer and key layer, as they are now."""
        adapters = adapter_state(self._model)
        if adapters not in self._fingerprints:
            self._fingerprints[adapters] = fingerprint_model(self._model, *self._facts)
        return self._fingerprints[adapters]

    @property
    def context_window(self) -> int:
        """The longest sequence the model can read, in tokens."""
        for name in ("max_position_embeddings", "n_positions", "max_sequence_length", "max_seq_len"):
            value = getattr(self._config, name, None)
            if isinstance(value, int) and value > 0:
                return value
        return 1 << 30

    @property
    def end_ids(self) -> frozenset[int]:
        """The end-of-sequence tokens of the generation configuration, else of the configuration."""
        for config in (getattr(self._model, "generation_config", None), self._config):
            ids = getattr(config, "eos_token_id", None)
            if ids is not None:
                return frozenset(ids if isinstance(ids, list | tuple) else [ids])
        return frozenset()

    @property
    def device(self) -> torch.device:
        """Where the first layer lies: inputs are put there."""
        device: torch.device = self._model.get_input_embeddings().weight.device
        return device

    @property
    def dtype(self) -> torch.dtype:
        """Number format of logits and queries: the weights', at least float32."""
        return torch.promote_types(self._model.get_input_embeddings().weight.dtype, torch.float32)

    @property
    def weight_dtype(self) -> torch.dtype:
        """Number format of the weights."""
        dtype: torch.dtype = self._model.get_input_embeddings().weight.dtype
        return dtype

    @torch.inference_mode()
    def generate(self, token_ids: torch.Tensor, **arguments: Any) -> torch.Tensor:
        """Transformers' own generation on the model's own weights, to compare with: int64 [1, length], prompt included.

        Args:
            token_ids: int64 [1, length], the prompt.
            **arguments: Those of transformers' `generate`.
        """
        padding = next(iter(self.end_ids), 0)
        mask = torch.ones_like(token_ids)
        with self._lock, self._packed.off() if self._packed else nullcontext():
            output = self._model.generate(token_ids, attention_mask=mask, pad_token_id=padding, **arguments)
        tokens: torch.Tensor = output
        return tokens

    def open(self) -> TransformersContext:
        """Begin an empty sequence."""
        return TransformersContext(self)

    @torch.inference_mode()
    def encode(self, sequences: Sequence[Sequence[int]]) -> list[torch.Tensor]:
        """Compute the keys of some sequences: see `LanguageModel.encode`."""
        keys: list[torch.Tensor] = [torch.empty(0)] * len(sequences)
        for batch in _batches(sequences):
            for number, hidden in zip(batch, self._encode_batch([sequences[i] for i in batch]), strict=True):
                keys[number] = hidden
        return keys

    def _encode_batch(self, sequences: Sequence[Sequence[int]]) -> list[torch.Tensor]:
        longest = max(map(len, sequences))
        # Padding stands on the right: with causal attention no real token sees it, so no mask is needed.
        padded = [[*ids, *([ids[-1]] * (longest - len(ids)))] for ids in sequences]
        tokens = torch.tensor(padded, device=self.device)
        with memory_errors(), self._lock, self._tap.catch(stop=True) as caught:
            self._model(input_ids=tokens, use_cache=False)
        hidden = caught[0].reshape(len(sequences), longest, -1)
        return [hidden[row, : len(ids)].clone() for row, ids in enumerate(sequences)]

    @torch.inference_mode()
    def forward(self, token_ids: Sequence[int], cache: Any, *, last_only: bool) -> Reading:
        """Read tokens behind a cache and bring the cache up to date."""
        tokens = torch.tensor([list(token_ids)], device=self.device)
        arguments = {"input_ids": tokens, self._cache_name: cache, "use_cache": True}
        if last_only and self._keeps_logits:
            arguments["logits_to_keep"] = 1
        with memory_errors(), self._lock, self._tap.catch() as caught:
            output = self._model(**arguments)
        logits, queries = output.logits[0], caught[0].reshape(len(token_ids), -1)
        if last_only:
            logits, queries = logits[-1:], queries[-1:]
        with memory_errors():
            # A low precision is for the weights' sake; probabilities are computed in at least float32.
            logits = logits.to(device=self.device, dtype=self.dtype)
            return Reading(logits, queries.to(device=self.device, dtype=self.dtype))

    def new_cache(self) -> Any:
        """An empty cache that can go back, across a sliding window too."""
        cache = DynamicCache(config=self._config)
        cache.activate_past_recording()
        return cache

    def _try_out(self) -> int:
        """Read two tokens: does the tap work, can the cache be cropped, how wide are keys?"""
        cache = self.new_cache()
        try:
            reading = self.forward([0, 0], cache, last_only=False)
        except (TypeError, AttributeError, RuntimeError, IndexError) as error:
            raise UnsupportedModelError(f"{type(self._model).__name__} cannot be decoded with: {error}") from error
        self._require_croppable(cache.is_croppable and cache.get_seq_length() == 2)
        return int(reading.queries.shape[-1])

    def _require_croppable(self, is_croppable: bool) -> None:
        if not is_croppable:
            raise UnsupportedModelError(
                f"{type(self._model).__name__} keeps a recurrent state that cannot go back after a rejected draft; "
                "use a model with attention layers only"
            )


class TransformersContext:
    """A `Context` over a transformers cache."""

    def __init__(self, model: TransformersModel) -> None:
        """Begin an empty sequence of `model`."""
        self._model = model
        self._cache = model.new_cache()
        self._length = 0

    @property
    def length(self) -> int:
        """Tokens read so far."""
        return self._length

    def read(self, token_ids: Sequence[int], *, last_only: bool = False) -> Reading:
        """Read further tokens: see `Context.read`."""
        # Every read is followed by a crop, if only of nothing: a sliding-window layer keeps
        # what lies behind its window until then, and must hold just the window at a read.
        if self._length:
            self._cache.crop(0)
        reading = self._model.forward(token_ids, self._cache, last_only=last_only)
        self._length += len(token_ids)
        return reading

    def crop(self, length: int) -> None:
        """Forget all but the first `length` tokens."""
        if length < self._length:
            self._cache.crop(length - self._length)
            self._length = length


def _forward_owner(model: Any) -> Any:
    """The model whose `forward` has the real signature: a PEFT wrapper's takes anything."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def _batches(sequences: Sequence[Sequence[int]]) -> list[list[int]]:
    """Numbers of the sequences, the longest first, in batches of about `_BATCH_TOKENS` padded tokens."""
    order = sorted(range(len(sequences)), key=lambda i: -len(sequences[i]))
    batches: list[list[int]] = []
    for number in order:
        if batches and len(sequences[batches[-1][0]]) * (len(batches[-1]) + 1) <= _BATCH_TOKENS:
            batches[-1].append(number)
        else:
            batches.append([number])
    return batches


def tokenizer_fingerprint(serialized: str) -> str:
    """Digest of a tokenizer's serialized form."""
    return hashlib.sha256(serialized.encode()).hexdigest()[:16]
