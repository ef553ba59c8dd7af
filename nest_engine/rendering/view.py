"""What is shown of an answer: text, spans, sources and facts, without a word of markup."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from nest_engine.citations.citation import Citation, Kind
from nest_engine.passages import Passage
from nest_engine.rendering.characters import character_end, one_line, shorten
from nest_engine.rendering.link import find_url

if TYPE_CHECKING:
    from nest_engine.generation import Generation

_CONTEXT = 160  # characters of the source shown on either side of a quote
_TITLE = 160  # longest title, in characters
_WORD = 24  # characters within which a word's edge is looked for where the context is cut

KIND_NOTES = {"copied": "Copied from", "matched": "The model’s own words, found in"}
"""What is said of a span's source, by kind."""


@dataclass(frozen=True)
class Excerpt:
    """A quote where it stands in its source.

    Attributes:
        before: Source text in front of it; empty where the passage is not known.
        quote: What was copied.
        after: Source text behind it.
        is_cut_before: Whether the passage begins earlier than `before`.
        is_cut_after: Whether the passage goes on behind `after`.
    """

    before: str
    quote: str
    after: str
    is_cut_before: bool = False
    is_cut_after: bool = False


@dataclass(frozen=True)
class Span:
    """A cited range of an answer.

    Attributes:
        start: Its start in the answer, in characters (code points).
        end: Its end.
        number: Number of its source.
        kind: `"copied"`, or `"matched"`: the model's own words, found in a passage afterwards.
        excerpt: The quote inside its surrounding source text.
        source_start: Start of the quote in its document or passage, in characters.
        source_end: End of it.
        counted_from: What these count from the start of.
    """

    start: int
    end: int
    number: int
    kind: Kind
    excerpt: Excerpt
    source_start: int
    source_end: int
    counted_from: Literal["document", "passage"]

    @property
    def place(self) -> str:
        """Where the quote stands, in words."""
        return f"characters {self.source_start}–{self.source_end} of the {self.counted_from}"


@dataclass(frozen=True)
class Source:
    """A document that was cited.

    Attributes:
        number: Its number.
        title: Its title, else its id, in one line.
        url: Where it can be read, http or https; empty where that is not known.
        spans: Places of its spans in `View.spans`.
    """

    number: int
    title: str
    url: str
    spans: tuple[int, ...]


@dataclass(frozen=True)
class Facts:
    """Counts of an answer.

    Attributes:
        mode: The mode.
        tokens: Tokens of the answer.
        copied: Share of them that was copied, 0 to 1.
        tokens_per_call: Tokens per forward pass of the language model.
        seconds: Wall clock, in seconds.
        is_cut: Whether the answer ended at the token limit.
    """

    mode: str
    tokens: int
    copied: float
    tokens_per_call: float
    seconds: float
    is_cut: bool = False

    def to_lines(self) -> list[str]:
        """The facts in words, as every form of an answer shows them."""
        words = [
            f"mode {self.mode}",
            f"{self.copied:.0%} of {self.tokens} tokens copied",
            f"{self.tokens_per_call:.1f} tokens per LM call",
            f"{self.seconds:.1f} s",
        ]
        return [*words, "cut at the token limit"] if self.is_cut else words


@dataclass(frozen=True)
class View:
    """What is shown of an answer.

    Attributes:
        text: The answer.
        spans: Its cited ranges, by start.
        sources: The documents they are from, by number.
        facts: Counts; None where they are not known (yet).
        is_complete: Whether the answer is all there; while it is streamed, it is not.
    """

    text: str
    spans: tuple[Span, ...] = ()
    sources: tuple[Source, ...] = ()
    facts: Facts | None = None
    is_complete: bool = True


def make_view(
    text: str,
    citations: Iterable[Citation],
    passages: Sequence[Passage] = (),
    stats: Mapping[str, Any] | None = None,
    *,
    finish_reason: str = "end",
    is_complete: bool = True,
) -> View:
    """Make a view of an answer. Citations that are not verbatim in it are left out.

    Args:
        text: The answer.
        citations: What of it was copied.
        passages: Where the surrounding text and the links are looked for.
        stats: Counts and times, as `Stats.to_dict()` gives them.
        finish_reason: Why the answer ended.
        is_complete: Whether it has ended.
    """
    cited = sorted((c for c in citations if _is_verbatim(text, c)), key=lambda c: (c.start, c.end))
    found = [_find(c, passages) for c in cited]
    return View(
        text,
        tuple(_span(c, passage) for c, passage in zip(cited, found, strict=True)),
        tuple(_sources(cited, found)),
        None if not stats else _facts(stats, is_cut=finish_reason == "length"),
        is_complete,
    )


def view_generation(generation: Generation) -> View:
    """Make a view of what the engine gives back."""
    return make_view(
        generation.text,
        generation.citations,
        [scored.passage for scored in generation.passages],
        generation.stats.to_dict(),
        finish_reason=generation.finish_reason,
    )


def _is_verbatim(text: str, citation: Citation) -> bool:
    return 0 <= citation.start < citation.end and text[citation.start : citation.end] == citation.text


def _find(citation: Citation, passages: Sequence[Passage]) -> Passage | None:
    """The passage that was copied from: by id, and by text where ids repeat or texts have changed since."""
    for passage in passages:
        if passage.id == citation.passage_id and (
            passage.text[citation.source_start : citation.source_end] == citation.text
        ):
            return passage
    return None


def _span(citation: Citation, passage: Passage | None) -> Span:
    start = citation.source_start if citation.document_start is None else citation.document_start
    return Span(
        start=citation.start,
        end=citation.end,
        number=citation.number,
        kind=citation.kind,
        excerpt=_excerpt(citation, passage),
        source_start=start,
        source_end=start + len(citation.text),
        counted_from="passage" if citation.document_start is None else "document",
    )


def _excerpt(citation: Citation, passage: Passage | None) -> Excerpt:
    if passage is None:
        return Excerpt("", citation.text, "")
    text, start, end = passage.text, citation.source_start, citation.source_end
    first, last = _context_start(text, start), _context_end(text, end)
    return Excerpt(text[first:start], citation.text, text[end:last], first > 0, last < len(text))


def _context_start(text: str, start: int) -> int:
    """Where to begin showing a text in front of a place: at a word, where one begins nearby."""
    at = start - _CONTEXT
    if at <= 0:
        return 0
    for i in range(at, min(at + _WORD, start)):
        if text[i].isspace():
            return i + 1
    return min(character_end(text, at), start)


def _context_end(text: str, end: int) -> int:
    at = end + _CONTEXT
    if at >= len(text):
        return len(text)
    for i in range(at, max(at - _WORD, end), -1):
        if text[i].isspace():
            return i
    return character_end(text, at)


def _sources(cited: Sequence[Citation], found: Sequence[Passage | None]) -> list[Source]:
    """The sources of citations, by number."""
    sources: dict[int, Source] = {}
    for place, (citation, passage) in enumerate(zip(cited, found, strict=True)):
        title = _title(citation)
        source = sources.setdefault(citation.number, Source(citation.number, title, "", ()))
        url = source.url or find_url(passage.metadata if passage else {}, citation.document_id)
        sources[citation.number] = replace(source, url=url, spans=(*source.spans, place))
    return [sources[number] for number in sorted(sources)]


def _title(citation: Citation) -> str:
    names = (one_line(name) for name in (citation.title, citation.document_id, citation.passage_id))
    head, rest = shorten(next((name for name in names if name), "untitled"), _TITLE)
    return f"{head} … {rest}" if rest else head


def _facts(stats: Mapping[str, Any], *, is_cut: bool) -> Facts:
    tokens, calls = int(stats["tokens"]), int(stats["lm_calls"])
    return Facts(
        mode=str(stats["mode"]),
        tokens=tokens,
        copied=stats["attributed_tokens"] / tokens if tokens else 0.0,
        tokens_per_call=tokens / calls if calls else 0.0,
        seconds=float(stats["seconds"]["total"]),
        is_cut=is_cut,
    )
