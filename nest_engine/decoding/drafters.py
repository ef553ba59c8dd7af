"""What to try next: where in the passages a span starts, and how far to read ahead in it."""

from __future__ import annotations

from typing import Protocol

import torch

from nest_engine.config import NestConfig
from nest_engine.datastore.token_index import Place, TokenIndex
from nest_engine.decoding.mixture import Mixture

_FIRST_CHUNK = 8
_LONGEST_CHUNK = 64


class Drafter(Protocol):
    """Proposes where to copy from and learns from what became of it."""

    def start(self, token: int, mixture: Mixture, row: int) -> Place | None:
        """Where a span that begins with the chosen token starts, if one is worth trying.

        Args:
            token: The token that was chosen; the place found has it as value.
            mixture: p_M at the position it was chosen for.
            row: That position's row in the mixture.
        """
        ...

    def chunk(self) -> int:
        """How many tokens of a draft, the known one included, to read in the next forward pass."""
        ...

    def learn(self, guessed: int, right: int) -> None:
        """Take note of how many guesses were read in a pass and how many of them came true."""
        ...


class AdaptiveChunk:
    """A chunk length that follows acceptance: doubled when all was right, cut back to what was."""

    def __init__(self, fixed: int | None = None) -> None:
        """Adapt, or keep to a fixed length of `fixed` tokens."""
        self._fixed = fixed
        self._length = _FIRST_CHUNK

    def length(self) -> int:
        """Tokens to read in the next pass."""
        return self._fixed or self._length

    def learn(self, guessed: int, right: int) -> None:
        """Grow after a full success; else shrink towards what was right."""
        if guessed and right == guessed:
            self._length = min(2 * self._length, _LONGEST_CHUNK)
        elif guessed:
            self._length = max(_FIRST_CHUNK, (self._length + right + 1) // 2)


class NeighborDrafter:
    """Starts at the nearest neighbor that has the chosen token as value (section 5 of METHOD).

    With a `delta`, only where the LM's weight is at most that (Eq. 5).
    """

    def __init__(self, index: TokenIndex, config: NestConfig) -> None:
        """Draft from `index`. In lossless mode delta is not consulted."""
        self._index = index
        self._neighbors = config.neighbors
        self._delta = None if config.mode == "lossless" else config.delta
        self._chunk = AdaptiveChunk(config.draft_chunk)

    def start(self, token: int, mixture: Mixture, row: int) -> Place | None:
        """The place of the nearest neighbor: see `Drafter.start`."""
        if self._delta is not None and float(mixture.weights[row]) > self._delta:
            return None
        alone = mixture.index is None  # in lossless mode the mixture is the LM alone
        entry = self._search(token, mixture.queries[row]) if alone else mixture.nearest_with(token, row)
        return None if entry is None else self._index.place(entry)

    def _search(self, token: int, query: torch.Tensor) -> int | None:
        entries = self._index.search(query[None], self._neighbors).entries[0]
        entries = entries[self._index.values[entries] == token]
        return self._index.nearest(query, entries) if len(entries) else None

    def chunk(self) -> int:
        """Tokens to read in the next pass."""
        return self._chunk.length()

    def learn(self, guessed: int, right: int) -> None:
        """Adapt the chunk."""
        self._chunk.learn(guessed, right)
