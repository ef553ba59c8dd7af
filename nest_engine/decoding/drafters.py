"""What to try next: where in the passages a span starts, and how far to read ahead in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from nest_engine.config import NestConfig
from nest_engine.datastore.suffix import SuffixIndex
from nest_engine.datastore.token_index import Place, TokenIndex
from nest_engine.decoding.lookahead import Lookahead
from nest_engine.decoding.mixture import Mixture

_FIRST_CHUNK = 16
_LONGEST_CHUNK = 64
_SHORTEST_SUFFIX = 2
_LONGEST_SUFFIX = 32


@dataclass(frozen=True)
class Start:
    """Where a span starts.

    Attributes:
        place: Where its first token stands.
        with_chosen: Whether that token takes the place of the chosen one and needs no verification,
            or comes behind it and does.
    """

    place: Place
    with_chosen: bool


class Drafter(Protocol):
    """Proposes where to copy from and learns from what became of it."""

    def start(self, token: int, mixture: Mixture, row: int, text: Sequence[int], *, begins: bool) -> Start | None:
        """Where a span starts, at the chosen token's position or behind it, if one is worth trying.

        Args:
            token: The token that was chosen.
            mixture: p_M at the position it was chosen for.
            row: That position's row in the mixture.
            text: The tokens before it, those of the prompt included.
            begins: Whether a sentence begins with it: the answer's first, or one behind a copied one.
        """
        ...

    def guess(self, text: Sequence[int], draft: Sequence[int]) -> Sequence[int]:
        """Tokens to read ahead in the next forward pass, possibly none: a matter of speed only.

        Args:
            text: The tokens so far, those of the prompt included.
            draft: What is left of the span, if there is one.
        """
        ...

    def learn(self, guessed: int, right: int) -> None:
        """Take note of how many guesses were read in a pass and how many of them came true."""
        ...


class AdaptiveChunk:
    """A chunk length that follows acceptance: doubled when all was right, cut back to what was."""

    def __init__(self) -> None:
        """Begin with a short one."""
        self.length = _FIRST_CHUNK

    def learn(self, guessed: int, right: int) -> None:
        """Grow after a full success; else shrink towards what was right."""
        if guessed and right == guessed:
            self.length = min(2 * self.length, _LONGEST_CHUNK)
        elif guessed:
            self.length = max(_FIRST_CHUNK, (self.length + right + 1) // 2)


class NeighborDrafter:
    """Starts at the nearest neighbor that has the chosen token as value, where lambda is at most delta (Eq. 5)."""

    def __init__(self, index: TokenIndex, config: NestConfig) -> None:
        """Draft from `index`."""
        self._index = index
        self._delta = config.delta
        self._fixed_chunk = config.draft_chunk
        self._chunk = AdaptiveChunk()

    def start(self, token: int, mixture: Mixture, row: int, text: Sequence[int], *, begins: bool) -> Start | None:
        """The place of the nearest neighbor: see `Drafter.start`."""
        if float(mixture.weights[row]) > self._delta:
            return None
        entry = mixture.nearest_with(token, row)
        return None if entry is None else Start(self._index.place(entry), with_chosen=True)

    def guess(self, text: Sequence[int], draft: Sequence[int]) -> Sequence[int]:
        """The next part of the span: see `Drafter.guess`."""
        # The known token that is read before the guesses belongs to the chunk.
        return draft[: (self._fixed_chunk or self._chunk.length) - 1]

    def learn(self, guessed: int, right: int) -> None:
        """Adapt the chunk: see `Drafter.learn`."""
        self._chunk.learn(guessed, right)


class SentenceDrafter(NeighborDrafter):
    """Where a sentence begins, starts at the best ranked one that was not copied from yet; else at a neighbor.

    Like the neighbor's, such a start is taken only where lambda is at most delta.
    """

    def __init__(self, index: TokenIndex, config: NestConfig) -> None:
        """Draft from `index`, whose sentences are ranked."""
        super().__init__(index, config)
        self._waiting = list(index.sentences)

    def start(self, token: int, mixture: Mixture, row: int, text: Sequence[int], *, begins: bool) -> Start | None:
        """The start of a sentence, or the place of the nearest neighbor: see `Drafter.start`."""
        if begins and float(mixture.weights[row]) <= self._delta:
            while self._waiting:
                sentence = self._waiting.pop(0)
                if self._index.is_untouched(sentence):
                    return Start(Place(sentence.passage, sentence.start), with_chosen=True)
        return super().start(token, mixture, row, text, begins=begins)


class SuffixDrafter:
    """Continues the longest suffix of the text that occurs in the passages. It needs no keys."""

    def __init__(self, index: TokenIndex, config: NestConfig) -> None:
        """Draft from the passages of `index`."""
        self._fixed_chunk = config.draft_chunk
        self._lengths = {number: len(ids) for number, ids in index.token_ids.items()}
        self._suffixes = SuffixIndex(index.token_ids)
        self._lookahead = Lookahead(index.token_ids)

    def start(self, token: int, mixture: Mixture, row: int, text: Sequence[int], *, begins: bool) -> Start | None:
        """The place behind the longest match: see `Drafter.start`."""
        match = self._suffixes.match([*text[-_LONGEST_SUFFIX:], token], _SHORTEST_SUFFIX)
        if match is None or match.place.position + 1 == self._lengths[match.place.passage]:
            return None
        return Start(Place(match.place.passage, match.place.position + 1), with_chosen=False)

    def guess(self, text: Sequence[int], draft: Sequence[int]) -> Sequence[int]:
        """How the text went on before: see `Drafter.guess`.

        Where the answer is copied from and what is guessed are two questions: the text itself,
        its prompt included, is a good place to guess from and no source.
        """
        ahead = self._lookahead.guess(text)
        return ahead if self._fixed_chunk is None else ahead[: self._fixed_chunk - 1]

    def learn(self, guessed: int, right: int) -> None:
        """Nothing: how far to guess follows from the match alone."""


def make_drafter(index: TokenIndex | None, config: NestConfig) -> Drafter | None:
    """The drafter of a mode, if it has one."""
    if index is None or not config.uses_spans:
        return None
    if config.mode == "lossless":
        return SuffixDrafter(index, config)
    return SentenceDrafter(index, config) if index.sentences else NeighborDrafter(index, config)
