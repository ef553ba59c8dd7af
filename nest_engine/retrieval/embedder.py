"""Text embeddings: the `Embedder` protocol and a transformers implementation."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from nest_engine.errors import ModelNotFoundError, UnsupportedModelError
from nest_engine.lm.catalog import CATALOG, fetch

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

DEFAULT_EMBEDDER = "all-minilm-l6-v2"
# Cosine similarities below which a passage is off topic, per catalog name. Measured for the demo
# embedder on XQuAD English (612 questions, 240 passages; title and text embedded), against 38
# prompts of small talk and other topics. Cosine of the best passage:
#
#   percentile        0     1     5     10    50    90    95    100
#   questions         0.24  0.28  0.35  0.39  0.58
#   off topic         0.11                    0.15  0.29  0.29  0.30
#
# At 0.32, 97.4 % of the questions keep their best passage, 95.4 % the one that holds the answer,
# and every off-topic prompt is left with none. The model knows English only: Spanish small talk
# reaches 0.43 and Chinese 0.49 on passages in its own language, so there the threshold separates
# little; choose a multilingual embedder and measure its own value.
MIN_RELEVANCE = {DEFAULT_EMBEDDER: 0.32}


@runtime_checkable
class Embedder(Protocol):
    """Turns texts into vectors whose inner product tells how related they are.

    An embedder may also have an attribute `min_relevance: float | None`, the cosine below
    which a passage is off topic for a query.

    Attributes:
        dim: Length of a vector.
        name: Identity of the weights. A saved index can only be searched with an embedder
            of the same name, so two different models must not share one.
    """

    @property
    def dim(self) -> int:
        """Length of a vector."""
        ...

    @property
    def name(self) -> str:
        """Identity of the weights."""
        ...

    def embed(self, texts: Sequence[str], *, progress: bool = False) -> npt.NDArray[np.float32]:
        """Embed texts.

        Args:
            texts: Any number of texts.
            progress: Show a progress bar on stderr.

        Returns:
            float32 of shape `[len(texts), dim]`, each row of Euclidean length 1.
        """
        ...


class TransformerEmbedder:
    """A transformers encoder with mean pooling, as sentence-transformers models have it.

    **Texts longer than the model's window are cut**: only the first `window` tokens count.
    Keep passages below it (256 tokens for the demo embedder).

    Attributes:
        dim: Length of a vector.
        name: Catalog name, hub id or folder name, `@`, and a fingerprint of the weights.
        window: Tokens read of each text, special tokens included.
        min_relevance: Cosine below which a passage is off topic; None unless measured.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        label: str,
        window: int,
        batch_size: int = 32,
        min_relevance: float | None = None,
    ) -> None:
        """Wrap a loaded encoder.

        Args:
            model: Encoder with `last_hidden_state` in its output; set to evaluation mode.
            tokenizer: Its fast tokenizer.
            label: First part of `name`.
            window: Tokens read of each text.
            batch_size: Texts per forward pass.
            min_relevance: See the class.
        """
        self._model = model.eval()
        self._tokenizer = tokenizer
        self._lock = threading.Lock()  # fast tokenizers keep truncation as state
        self._batch_size = batch_size
        self.window = window
        self.dim = int(model.config.hidden_size)
        self.name = f"{label}@{_fingerprint(model)}"
        self.min_relevance = min_relevance

    @classmethod
    def from_pretrained(
        cls,
        name_or_path: str = DEFAULT_EMBEDDER,
        *,
        device: str | None = None,
        batch_size: int = 32,
        progress: bool = True,
    ) -> TransformerEmbedder:
        """Load a catalog name, a local folder or a hub id. Code from the hub is never run.

        Args:
            name_or_path: What to load; the default is the demo embedder.
            device: torch device; by default the GPU where there is one, else the CPU.
            batch_size: Texts per forward pass.
            progress: Show progress bars while a catalog model is made.

        Raises:
            ModelNotFoundError: If there is no such model.
            UnsupportedModelError: If the model does not pool by the mean.
            DownloadError: If a catalog model cannot be fetched.
        """
        import torch

        place = str(fetch(name_or_path, progress=progress)) if name_or_path in CATALOG else name_or_path
        _check_pooling(place)
        model, tokenizer = _load(place)
        target = device or ("cuda" if torch.cuda.is_available() else "cpu")
        embedder = cls(
            model,
            tokenizer,
            label=_label(place),
            window=_window(place, model, tokenizer),
            batch_size=batch_size,
            min_relevance=MIN_RELEVANCE.get(name_or_path),
        )
        embedder._model.to(target)
        return embedder

    def embed(self, texts: Sequence[str], *, progress: bool = False) -> npt.NDArray[np.float32]:
        """Embed texts; see `Embedder`. Long texts are cut to `window` tokens."""
        from tqdm.auto import tqdm

        result = np.zeros((len(texts), self.dim), dtype=np.float32)
        ids = self._token_ids(texts)
        order = sorted(range(len(texts)), key=lambda i: len(ids[i]))  # little padding per batch
        with tqdm(total=len(texts), desc="embedding", unit="text", disable=not progress) as bar:
            for start in range(0, len(order), self._batch_size):
                rows = order[start : start + self._batch_size]
                result[rows] = self._embed_batch([ids[i] for i in rows])
                bar.update(len(rows))
        return result

    def _token_ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids per text, cut to the window."""
        if not texts:
            return []
        # tokenizers refuse lone surrogates, which texts cut in the middle of an emoji can hold
        clean = [text.encode("utf-8", "replace").decode("utf-8") for text in texts]
        with self._lock:
            encoded = self._tokenizer(clean, truncation=True, max_length=self.window, padding=False)
        ids: list[list[int]] = encoded["input_ids"]
        return ids

    def _embed_batch(self, ids: list[list[int]]) -> npt.NDArray[np.float32]:
        """Mean over the real tokens of each text, scaled to length 1: float32 `[len(ids), dim]`."""
        import torch

        with torch.inference_mode():
            tokens, mask = self._pad(ids)
            hidden = self._model(input_ids=tokens, attention_mask=mask).last_hidden_state
            weights = mask.unsqueeze(-1).to(hidden.dtype)
            mean = (hidden * weights).sum(1) / weights.sum(1).clamp(min=1)
            unit = torch.nn.functional.normalize(mean.float(), dim=1)
            array: npt.NDArray[np.float32] = unit.cpu().numpy()
        return array

    def _pad(self, ids: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
        """Right-padded int64 token ids and their mask, both `[texts, longest]`."""
        import torch

        width = max(map(len, ids))
        padding = self._tokenizer.pad_token_id or 0
        tokens = torch.full((len(ids), width), int(padding), dtype=torch.long)
        mask = torch.zeros((len(ids), width), dtype=torch.long)
        for row, one in enumerate(ids):
            tokens[row, : len(one)] = torch.tensor(one)
            mask[row, : len(one)] = 1
        return tokens.to(self._model.device), mask.to(self._model.device)


def _load(place: str) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load model and tokenizer in float32."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(place, trust_remote_code=False)
        model = AutoModel.from_pretrained(place, dtype=torch.float32, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise ModelNotFoundError(
            f"cannot load an embedder from {place!r}: {error}; give a catalog name ({DEFAULT_EMBEDDER!r}), "
            "a folder, or the id of a model on a reachable hub"
        ) from error
    return model, tokenizer


def _label(place: str) -> str:
    """Hub id as it is, or the last part of a local folder's path, which differs per machine."""
    return Path(place).resolve().name if Path(place).is_dir() else place


def _window(place: str, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> int:
    """Smallest of the limits stated by the model, its tokenizer and sentence-transformers."""
    limits = [tokenizer.model_max_length, getattr(model.config, "max_position_embeddings", None)]
    limits.append(_settings(place, "sentence_bert_config.json").get("max_seq_length"))
    return min(int(limit) for limit in limits if isinstance(limit, int) and limit > 0)


def _check_pooling(place: str) -> None:
    """Refuse models that were trained to pool in another way: their vectors would be wrong."""
    settings = _settings(place, "1_Pooling/config.json")
    modes = [key for key, value in settings.items() if key.startswith("pooling_mode_") and value is True]
    if modes and modes != ["pooling_mode_mean_tokens"]:
        raise UnsupportedModelError(
            f"{place} pools by {', '.join(modes)}, but only mean pooling is built in: wrap the model in an object with "
            "`dim`, `name` and `embed(texts)` and pass that as the embedder"
        )


def _settings(place: str, file: str) -> dict[str, Any]:
    """A JSON file of the model's repository, or an empty dictionary where there is none."""
    from transformers.utils.hub import cached_file

    try:
        path = cached_file(
            place,
            file,
            _raise_exceptions_for_missing_entries=False,
            _raise_exceptions_for_connection_errors=False,
            _raise_exceptions_for_gated_repo=False,
        )
        found = json.loads(Path(path).read_text(encoding="utf-8")) if path else {}
    except (OSError, ValueError):  # no such model: loading it gives the better error
        return {}
    return found if isinstance(found, dict) else {}


def _fingerprint(model: PreTrainedModel) -> str:
    """Eight hex digits over all parameter names and shapes and the first values of each."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().flatten()[:64].float().cpu().numpy().tobytes())
    return digest.hexdigest()[:8]
