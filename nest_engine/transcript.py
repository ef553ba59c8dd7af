"""The text end of the way: tokens with places come in, text with citations goes out."""

from __future__ import annotations

from collections.abc import Sequence

from nest_engine.citations.builder import CitationBuilder
from nest_engine.citations.citation import Citation
from nest_engine.decoding.loop import Emission
from nest_engine.generation import GenerationPiece
from nest_engine.lm.detokenizer import Detokenizer


class Transcript:
    """Writes an answer down as its tokens come.

    Attributes:
        citations: The citations given out so far.
        stopped: Whether a stop string was reached.
        tokens: Tokens taken so far.
        attributed: Of these, the copied ones.
        neighbor_hits: Of these, the LM's own that some neighbor had as value.
        weights: Sum of lambda over them.
        document_runs: Lengths of the stretches copied from one document without a break, in tokens.
    """

    def __init__(self, detokenizer: Detokenizer, builder: CitationBuilder, stop: Sequence[str] = ()) -> None:
        """Write with a detokenizer and a citation builder, up to the first of the stop strings."""
        self._detokenizer = detokenizer
        self._builder = builder
        self._stop = tuple(stop)
        self._shown = 0
        self._limit: int | None = None
        self.citations: list[Citation] = []
        self.tokens = self.attributed = self.neighbor_hits = 0
        self.weights = 0.0
        self.document_runs: list[int] = []
        self._document: str | None = None  # the one that the last token was copied from

    @property
    def text(self) -> str:
        """The answer given out so far."""
        return self._detokenizer.text[: self._shown]

    @property
    def token_ends(self) -> Sequence[int]:
        """Characters of the answer complete after each token; what a stop string cuts away is counted."""
        return self._detokenizer.ends

    @property
    def stopped(self) -> bool:
        """Whether a stop string was reached."""
        return self._limit is not None

    def add(self, emission: Emission) -> GenerationPiece:
        """Take a token; give out what is certain by now."""
        start = len(self._detokenizer.text)
        self._detokenizer.add(emission.token)
        answer = self._detokenizer.text
        if emission.place is None:
            self._builder.close(answer)
        else:
            place = emission.place
            self._builder.add_copied(place.passage, place.position, start, len(answer), answer)
        self._count(emission)
        self._find_stop(start)
        return self._give(self._certain())

    def finish(self) -> GenerationPiece:
        """Give out the rest."""
        before = len(self._detokenizer.text)
        self._detokenizer.flush()
        self._find_stop(before)
        self._builder.close(self._detokenizer.text)
        length = len(self._detokenizer.text) if self._limit is None else self._limit
        return self._give(length, final=True)

    def _count(self, emission: Emission) -> None:
        self.tokens += 1
        self.attributed += emission.place is not None
        self.neighbor_hits += emission.is_neighbor
        self.weights += emission.weight
        document = self._builder.document(emission.place.passage) if emission.place is not None else None
        if document is not None and document == self._document:
            self.document_runs[-1] += 1
        elif document is not None:
            self.document_runs.append(1)
        self._document = document

    def _find_stop(self, start: int) -> None:
        """Look for a stop string that is complete by the characters from `start` on."""
        if self._limit is not None:
            return
        text = self._detokenizer.text
        found = [text.find(s, max(0, start - len(s) + 1)) for s in self._stop]
        self._limit = min((at for at in found if at >= 0), default=None)

    def _certain(self) -> int:
        """Characters that no stop string can still take away."""
        text = self._detokenizer.text
        if self._limit is not None:
            return self._limit
        return len(text) - max((_overlap(text, s) for s in self._stop), default=0)

    def _give(self, length: int, *, final: bool = False) -> GenerationPiece:
        length = max(length, self._shown)
        answer = self._detokenizer.text
        new, self._shown = answer[self._shown : length], length
        citations = self._builder.release(length, answer, final=final)
        self.citations += citations
        return GenerationPiece(new, tuple(citations))


def _overlap(text: str, stop: str) -> int:
    """Characters at the end of a text that could be the beginning of a stop string."""
    for length in range(min(len(stop) - 1, len(text)), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
