"""What a generation gives back: text, citations and statistics."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from nest_engine.citations.citation import Citation
from nest_engine.passages import ScoredPassage

if TYPE_CHECKING:
    from nest_engine.trace import TraceStep

FinishReason = Literal["end", "length", "stop"]


@dataclass(frozen=True)
class Seconds:
    """Where the time went, in seconds of wall clock.

    Attributes:
        retrieve: Searching passages.
        encode: Opening the token datastore: looking keys up and encoding what was not kept.
        prefill: Until the first token: reading the prompt.
        decode: All further tokens.
        total: From the call to the end; for a stream, time that the consumer spends is not counted.
        lm: Of prefill and decode: forward passes.
        mix: Of prefill and decode: searching the token datastore and mixing.
    """

    retrieve: float = 0.0
    encode: float = 0.0
    prefill: float = 0.0
    decode: float = 0.0
    total: float = 0.0
    lm: float = 0.0
    mix: float = 0.0


@dataclass(frozen=True)
class Stats:
    """Counts of one generation.

    These always hold: `attributed_tokens <= tokens`, `accepted <= drafted`,
    `steps <= tokens + 1`, and `tokens == lm_calls + accepted - ended`, where `ended` is 1 for an
    answer that ended by itself, 0 for one cut by the limit, and either for one cut by a stop
    string: each forward pass decides one token besides the guesses that come true, and an
    answer that ends by itself spends the last decision on its end.

    Attributes:
        mode: The mode.
        tokens: Tokens of the answer, without the one that ends it.
        attributed_tokens: Tokens that were emitted as part of a span.
        neighbor_hits: Tokens of the LM's own that some neighbor had as value.
        steps: Rounds of the method: a token chosen by itself, or one n-gram of a span.
        lm_calls: Forward passes while answering, that of the prompt included.
        drafted: Tokens read ahead in them as guesses.
        accepted: Guesses that came true.
        lambda_mean: Mean weight of the LM over the answer's tokens.
        prompt_tokens: Tokens of the prompt.
        passages: Passages searched and found relevant.
        seconds: Where the time went.
        document_runs: Lengths of the stretches copied from one document without a break, in
            tokens; they sum to `attributed_tokens`.
    """

    mode: str
    tokens: int
    attributed_tokens: int
    neighbor_hits: int
    steps: int
    lm_calls: int
    drafted: int
    accepted: int
    lambda_mean: float
    prompt_tokens: int = 0
    passages: int = 0
    seconds: Seconds = field(default_factory=Seconds)
    document_runs: tuple[int, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The statistics as plain values, those that JSON has."""
        return {**asdict(self), "document_runs": list(self.document_runs)}


@dataclass(frozen=True)
class Generation:
    """An answer.

    Attributes:
        text: The answer.
        citations: What of it was copied, in reading order.
        stats: Counts and times.
        finish_reason: `"end"`: by itself; `"length"`: at the token limit; `"stop"`: at a stop string.
        passages: The passages that were searched and found relevant, best first.
        trace: Its steps, where they were asked for (`trace=True`); else empty.
    """

    text: str
    citations: tuple[Citation, ...]
    stats: Stats
    finish_reason: FinishReason
    passages: tuple[ScoredPassage, ...] = ()
    trace: tuple[TraceStep, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Text, citations and statistics as plain values, as the command line prints them."""
        return {
            "text": self.text,
            "citations": [citation.to_dict() for citation in self.citations],
            "stats": self.stats.to_dict(),
        }

    def to_html(self, *, title: str = "", page: bool = True) -> str:
        """The answer as HTML, with what was copied marked and its sources on hover and focus.

        It works without scripts and without network; everything from documents is escaped.

        Args:
            title: A heading, such as the question.
            page: Whether to write a whole document, for a file; else a piece of one, without heading.
        """
        from nest_engine.rendering import to_page_or_piece, view_generation

        return to_page_or_piece(view_generation(self), title=title, page=page)

    def to_markdown(self) -> str:
        """The answer as Markdown, with a footnote for each source."""
        from nest_engine.rendering import to_markdown, view_generation

        return to_markdown(view_generation(self))

    def _repr_html_(self) -> str:
        """The answer as notebooks show it."""
        return self.to_html(page=False)


@dataclass(frozen=True)
class GenerationPiece:
    """A piece of a streamed answer.

    Attributes:
        text: What the answer grows by, possibly nothing.
        citations: Citations that are final by now and were not in an earlier piece; their
            ranges count from the start of the whole answer.
        generation: The whole answer, with the last piece only.
    """

    text: str
    citations: tuple[Citation, ...] = ()
    generation: Generation | None = None
