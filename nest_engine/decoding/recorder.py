"""What a decode loop does, round by round, for those who want to watch: token ids and places, never text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from nest_engine.datastore.token_index import Place
from nest_engine.decoding.mixture import Mixture

if TYPE_CHECKING:
    from nest_engine.decoding.loop import Emission


@dataclass
class Round:
    """One round of the method: a token chosen by itself, or one n-gram of a span.

    Attributes:
        position: Where its first token stands in the answer, in tokens.
        weight: Lambda where a token was chosen; None where nothing was.
        chosen: What the mixture chose; None where the round goes on with a span, or the answer ended before.
        start: Where the draft starts; None where none was started.
        draft: Its token ids.
        is_rejected: Whether a token of the draft was refused (Eq. 7): the first one that is not in the answer.
        emissions: What the round added to the answer: the accepted part of the draft, then at most one
            token of the LM's own.
    """

    position: int
    weight: float | None = None
    chosen: int | None = None
    start: Place | None = None
    draft: tuple[int, ...] = ()
    is_rejected: bool = False
    emissions: list[Emission] = field(default_factory=list)

    @property
    def accepted(self) -> int:
        """How many tokens of the draft were accepted."""
        return sum(emission.place is not None for emission in self.emissions)


class Recorder:
    """Is told by a decode loop what it does. This one forgets it at once."""

    def begin(self, position: int) -> None:
        """A round begins at a position of the answer."""

    def choose(self, token: int, mixture: Mixture, row: int) -> None:
        """A token was chosen by a row of a mixture."""

    def draft(self, start: Place, tokens: Sequence[int]) -> None:
        """Tokens from a place on are proposed."""

    def reject(self) -> None:
        """The next token of the draft was refused."""

    def emit(self, emission: Emission) -> None:
        """A token went into the answer."""


class RoundRecorder(Recorder):
    """Writes the rounds down.

    Attributes:
        rounds: The rounds so far.
    """

    def __init__(self) -> None:
        """Begin with none."""
        self.rounds: list[Round] = []

    def begin(self, position: int) -> None:
        """Begin a round."""
        self.rounds.append(Round(position))

    def choose(self, token: int, mixture: Mixture, row: int) -> None:
        """Note the chosen token and lambda."""
        self.rounds[-1].chosen = token
        self.rounds[-1].weight = float(mixture.weights[row])

    def draft(self, start: Place, tokens: Sequence[int]) -> None:
        """Note the draft."""
        self.rounds[-1].start = start
        self.rounds[-1].draft = tuple(tokens)

    def reject(self) -> None:
        """Note that a token of the draft was refused."""
        self.rounds[-1].is_rejected = True

    def emit(self, emission: Emission) -> None:
        """Note a token of the answer."""
        self.rounds[-1].emissions.append(emission)
