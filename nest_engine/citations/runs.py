"""From token provenance to character ranges that are verbatim on both sides."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from nest_engine.citations.citation import Kind

_BROKEN = "\ufffd"


@dataclass(frozen=True)
class Segment:
    """A range that an answer and a passage share, not yet numbered.

    Attributes:
        passage: Number of the passage.
        start: Start in the answer, in characters.
        source_start: Start in the passage's text, in characters.
        length: Characters.
        kind: How they came to share it.
    """

    passage: int
    start: int
    source_start: int
    length: int
    kind: Kind = "copied"

    @property
    def end(self) -> int:
        """End in the answer, in characters."""
        return self.start + self.length


@dataclass
class Run:
    """Tokens that were copied one after the other and stand one after the other in a passage.

    Attributes:
        passage: Number of the passage.
        next_position: Position in the passage, in tokens, at which the run would go on.
        start: Characters of the answer that were complete before its first token.
        source_start: Characters of the passage that were complete before its first token.
        ends: Characters of the answer that are complete after each token.
        source_ends: Characters of the passage that are complete after each token.
    """

    passage: int
    next_position: int
    start: int
    source_start: int
    ends: list[int]
    source_ends: list[int]

    def continues(self, passage: int, position: int) -> bool:
        """Whether a token at this place is the run's next one."""
        return passage == self.passage and position == self.next_position

    def add(self, end: int, source_end: int) -> None:
        """Add the run's next token, by where it ends on both sides."""
        self.next_position += 1
        self.ends.append(end)
        self.source_ends.append(source_end)


def verbatim_segments(run: Run, answer: str, source: str) -> Iterator[Segment]:
    """The parts of a run that read the same on both sides, white space trimmed.

    They do not always: a run can begin or end inside a character that is spread over several
    tokens, and a tokenizer can normalize what it reads. Token by token the two texts are
    compared from the last point at which they were equal; a token where they differ is left out.

    Args:
        run: The run.
        answer: Text of the answer, as far as the run's end at least.
        source: Text of the passage.
    """
    start, source_start = run.start, run.source_start
    good = 0  # length that is equal at a token's end
    floor = source_start  # where the source's part without a match begins
    recovering = False  # behind the rest of a character that was cut, with nothing equal yet
    for end, source_end in zip(run.ends, run.source_ends, strict=True):
        if good == 0:
            start, source_start = _skip_space(answer, start, end), _skip_space(source, source_start, source_end)
        ours, theirs = answer[start:end], source[source_start:source_end]
        if ours == theirs:
            good = len(ours)
        elif not (ours.startswith(theirs) or theirs.startswith(ours)):
            yield from _trimmed(Segment(run.passage, start, source_start, good), answer)
            if not recovering or good:
                floor = source_start + good
            # Behind the rest of a character that was cut, whole ones may follow, in this token or some later.
            recovering = _BROKEN in ours[good:] or (recovering and not good)
            good = _common_suffix(ours[good:], source[floor:source_end]) if recovering else 0
            start, source_start = end - good, source_end - good
    yield from _trimmed(Segment(run.passage, start, source_start, good), answer)


def clip(segments: Sequence[Segment], length: int, answer: str) -> Iterator[Segment]:
    """Cut segments to an answer of `length` characters."""
    for segment in segments:
        keep = min(segment.length, length - segment.start)
        if keep > 0:
            yield from _trimmed(replace(segment, length=keep), answer)


def _common_suffix(left: str, right: str) -> int:
    """Characters at the end of two texts that are the same."""
    length = 0
    while length < min(len(left), len(right)) and left[-1 - length] == right[-1 - length]:
        length += 1
    return length


def _skip_space(text: str, start: int, end: int) -> int:
    while start < end and text[start].isspace():
        start += 1
    return start


def _trimmed(segment: Segment, answer: str) -> Iterator[Segment]:
    """The segment without white space at its ends, if anything is left."""
    text = answer[segment.start : segment.end]
    lead = len(text) - len(text.lstrip())
    length = len(text.strip())
    if length:
        start, source_start = segment.start + lead, segment.source_start + lead
        yield replace(segment, start=start, source_start=source_start, length=length)
