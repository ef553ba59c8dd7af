"""The seam between the decode loop and a language model: token ids in, logits and key vectors out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch


@dataclass(frozen=True)
class Reading:
    """What one forward pass says about the tokens it read.

    Attributes:
        logits: Float [n, vocabulary], the next-token logits behind each token.
        queries: Float [n, key_dim], the key vector f at each token: the query of its next token.
    """

    logits: torch.Tensor
    queries: torch.Tensor


class Context(Protocol):
    """The model's memory of one sequence of tokens (a KV cache)."""

    @property
    def length(self) -> int:
        """Tokens read so far."""
        ...

    def read(self, token_ids: Sequence[int], *, last_only: bool = False) -> Reading:
        """Read further tokens in one forward pass.

        Args:
            token_ids: At least one token.
            last_only: Return the row of the last token only, as a long prompt needs no more.

        Returns:
            A row for each token read, or one row with `last_only`.
        """
        ...

    def crop(self, length: int) -> None:
        """Forget all but the first `length` tokens."""
        ...


class LanguageModel(Protocol):
    """A decoder-only model that shows its hidden states. One implementation a back end."""

    @property
    def fingerprint(self) -> str:
        """Digest of everything that changes keys: weights, adapters, quantization, dtype, tokenizer, key layer."""
        ...

    @property
    def context_window(self) -> int:
        """The longest sequence the model can read, in tokens."""
        ...

    @property
    def end_ids(self) -> frozenset[int]:
        """Tokens that end an answer."""
        ...

    @property
    def key_dim(self) -> int:
        """Dimensions of a key vector."""
        ...

    @property
    def device(self) -> torch.device:
        """Where readings and keys lie."""
        ...

    @property
    def dtype(self) -> torch.dtype:
        """Number format of logits and queries, at least float32."""
        ...

    def open(self) -> Context:
        """Begin an empty sequence."""
        ...

    def encode(self, sequences: Sequence[Sequence[int]]) -> list[torch.Tensor]:
        """Compute the key vector at every position of some sequences, each read on its own.

        Stops at the key layer: no later layer and no LM head is computed.

        Args:
            sequences: Non-empty token sequences, none longer than the context window.

        Returns:
            For each sequence its keys, float [length, key_dim].
        """
        ...
