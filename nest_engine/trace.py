"""How an answer came about, step by step: the rounds of the decode loop with their texts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from nest_engine.datastore.token_index import Place
from nest_engine.decoding.loop import Emission
from nest_engine.decoding.recorder import Round
from nest_engine.passages import Passage

Origin = Literal["model", "neighbor", "draft"]
"""Where a token came from: the model alone; the model, while some neighbor had it too; copied from a passage."""


@dataclass(frozen=True)
class TracePlace:
    """Where a token stands in a passage.

    Attributes:
        passage: Number of the passage, from 0; in a call without `refresh_every` and global
            datastore, its place in `Generation.passages`.
        passage_id: Its id.
        title: Title of its document.
        position: Index of the token in the passage, in tokens.
        offset: Characters (code points) of the passage in front of the token.
    """

    passage: int
    passage_id: str
    title: str
    position: int
    offset: int


@dataclass(frozen=True)
class TraceToken:
    """A token of the answer.

    Attributes:
        id: Its id.
        text: What the answer grew by with it; empty where a character is not complete yet.
        position: Where it stands in the answer, in tokens.
        weight: Lambda there, the weight of the model from 0 to 1.
        origin: Where it came from.
        place: Where it was copied from; None where it was not.
    """

    id: int
    text: str
    position: int
    weight: float
    origin: Origin
    place: TracePlace | None = None


@dataclass(frozen=True)
class DraftToken:
    """A token of a draft.

    Attributes:
        id: Its id.
        text: Its text in the passage.
    """

    id: int
    text: str


@dataclass(frozen=True)
class Draft:
    """What a step proposed to copy.

    Attributes:
        start: Where its first token stands.
        tokens: Its tokens.
        accepted: How many of them went into the answer, from the first on.
        is_rejected: Whether the next one was refused (Eq. 7). Else the draft was taken whole, or the answer
            ended within it.
    """

    start: TracePlace
    tokens: tuple[DraftToken, ...]
    accepted: int
    is_rejected: bool

    @property
    def accepted_text(self) -> str:
        """What was copied."""
        return _join(self.tokens[: self.accepted])

    @property
    def rejected(self) -> DraftToken | None:
        """The token that was refused, if one was."""
        return self.tokens[self.accepted] if self.is_rejected else None

    @property
    def dropped_text(self) -> str:
        """What came behind the refused token, or behind the answer's end, and was not looked at."""
        return _join(self.tokens[self.accepted + self.is_rejected :])


@dataclass(frozen=True)
class TraceStep:
    """One step: a token chosen by itself, or one n-gram of a span. There are `Stats.steps` of them.

    Attributes:
        number: Its number, from 1.
        weight: Lambda at its first token; None where the answer ended before any was looked at.
        chosen: The token that the mixture chose; None where the step goes on with a span.
        tokens: What it added to the answer: the accepted part of the draft, then at most one token of the
            model's own. None in the step that ends an answer.
        draft: What it proposed to copy; None where nothing was.
    """

    number: int
    weight: float | None
    chosen: DraftToken | None
    tokens: tuple[TraceToken, ...] = ()
    draft: Draft | None = None

    @property
    def text(self) -> str:
        """What it added to the answer."""
        return "".join(token.text for token in self.tokens)


def make_trace(
    rounds: Sequence[Round],
    text: str,
    text_ends: Sequence[int],
    passages: Sequence[Passage],
    token_ends: Sequence[NDArray[np.int32]],
    decode: Callable[[Sequence[int]], str],
) -> tuple[TraceStep, ...]:
    """Put the texts to the rounds of an answer.

    Args:
        rounds: What the decode loop did.
        text: The answer.
        text_ends: Characters of the answer complete after each token; the answer may be cut before the last.
        passages: The passages, by number.
        token_ends: int32 [m] of each: characters complete after each token.
        decode: Gives the text of token ids by themselves.
    """
    texts = _Texts(text, text_ends, passages, token_ends, decode)
    return tuple(texts.step(number, each) for number, each in enumerate(rounds, 1))


@dataclass(frozen=True)
class _Texts:
    """Knows the text of every token: see `make_trace`."""

    text: str
    text_ends: Sequence[int]
    passages: Sequence[Passage]
    token_ends: Sequence[NDArray[np.int32]]
    decode: Callable[[Sequence[int]], str]

    def step(self, number: int, done: Round) -> TraceStep:
        tokens = tuple(self._token(e, done.position + at) for at, e in enumerate(done.emissions))
        weight = done.weight if done.weight is not None or not tokens else tokens[0].weight
        chosen = None if done.chosen is None else DraftToken(done.chosen, self.decode([done.chosen]))
        return TraceStep(number, weight, chosen, tokens, self._draft(done))

    def _token(self, emission: Emission, position: int) -> TraceToken:
        start = self.text_ends[position - 1] if position else 0
        text = self.text[start : self.text_ends[position]]
        place = None if emission.place is None else self._place(emission.place)
        origin: Origin = "draft" if place is not None else "neighbor" if emission.is_neighbor else "model"
        return TraceToken(emission.token, text, position, emission.weight, origin, place)

    def _draft(self, done: Round) -> Draft | None:
        if done.start is None:
            return None
        number, first = done.start.passage, done.start.position
        places = (Place(number, first + at) for at in range(len(done.draft)))
        tokens = tuple(DraftToken(id, self._copied(place)) for id, place in zip(done.draft, places, strict=True))
        return Draft(self._place(done.start), tokens, done.accepted, done.is_rejected)

    def _place(self, place: Place) -> TracePlace:
        passage = self.passages[place.passage]
        return TracePlace(place.passage, passage.id, passage.title, place.position, self._offset(place))

    def _offset(self, place: Place) -> int:
        return int(self.token_ends[place.passage][place.position - 1]) if place.position else 0

    def _copied(self, place: Place) -> str:
        end = int(self.token_ends[place.passage][place.position])
        return self.passages[place.passage].text[self._offset(place) : end]


def _join(tokens: Sequence[DraftToken]) -> str:
    return "".join(token.text for token in tokens)
