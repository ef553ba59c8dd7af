"""Citations from the places of emitted tokens, as soon as they are final."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from nest_engine.citations.citation import Citation
from nest_engine.citations.matching import Matcher
from nest_engine.citations.runs import Run, Segment, clip, verbatim_segments
from nest_engine.passages import Passage
from nest_engine.words import count_words


class CitationBuilder:
    """Collects copied tokens into runs, and turns finished runs into numbered citations."""

    def __init__(
        self,
        passages: Sequence[Passage],
        token_ends: Sequence[NDArray[np.int32]],
        min_words: int,
        matcher: Matcher | None = None,
    ) -> None:
        """Cite from `passages`.

        Args:
            passages: The passages, by number.
            token_ends: int32 [m] of each: characters complete after each token.
            min_words: Shorter runs are not shown, in words.
            matcher: Traces what is not copied back to the passages, once the answer is complete;
                citations are numbered in reading order, so all of them wait for it.
        """
        self._passages = passages
        self._token_ends = token_ends
        self._min_words = min_words
        self._matcher = matcher
        self._run: Run | None = None
        self._waiting: list[Segment] = []
        self._numbers: dict[str, int] = {}

    def document(self, passage: int) -> str:
        """Id of the document that a passage is of, by the passage's number."""
        return self._passages[passage].document_id

    def add_copied(self, passage: int, position: int, start: int, end: int, answer: str) -> None:
        """Take a copied token.

        Args:
            passage: Number of the passage it was copied from.
            position: Its position there, in tokens.
            start: Characters of the answer complete before it.
            end: Characters of the answer complete after it.
            answer: The answer so far.
        """
        ends = self._token_ends[passage]
        if self._run is None or not self._run.continues(passage, position):
            self.close(answer)
            source_start = int(ends[position - 1]) if position else 0
            self._run = Run(passage, position, start, source_start, [], [])
        self._run.add(end, int(ends[position]))

    def close(self, answer: str) -> None:
        """End the run, if there is one: the next token does not continue it."""
        if self._run is not None:
            source = self._passages[self._run.passage].text
            self._waiting.extend(verbatim_segments(self._run, answer, source))
            self._run = None

    def release(self, length: int, answer: str, *, final: bool = False) -> list[Citation]:
        """Citations of finished runs that lie within the first `length` characters, in reading order.

        Args:
            length: Characters of the answer that have been given out and will not change.
            answer: The answer so far.
            final: Cut what reaches further, instead of waiting for it.
        """
        if self._matcher is not None and not final:
            return []
        ready = [s for s in self._waiting if final or s.end <= length]
        self._waiting = [s for s in self._waiting if not final and s.end > length]
        shown = [s for s in clip(ready, length, answer) if self._is_long_enough(s, answer)]
        if self._matcher is not None:
            shown += self._matcher.matches(answer, _gaps(shown, length))
            shown.sort(key=lambda segment: segment.start)
        return [self._cite(segment, answer) for segment in shown]

    def _is_long_enough(self, segment: Segment, answer: str) -> bool:
        return count_words(answer[segment.start : segment.end]) >= self._min_words

    def _cite(self, segment: Segment, answer: str) -> Citation:
        passage = self._passages[segment.passage]
        text = answer[segment.start : segment.end]
        source_end = segment.source_start + segment.length
        if passage.text[segment.source_start : source_end] != text:
            raise AssertionError(f"a citation of passage {passage.id} is not verbatim")
        number = self._numbers.setdefault(passage.document_id, len(self._numbers) + 1)
        return Citation(
            number=number,
            kind=segment.kind,
            start=segment.start,
            end=segment.end,
            passage_id=passage.id,
            document_id=passage.document_id,
            title=passage.title,
            source_start=segment.source_start,
            source_end=source_end,
            document_start=None if passage.offset is None else passage.offset + segment.source_start,
            text=text,
        )


def _gaps(segments: Sequence[Segment], length: int) -> list[tuple[int, int]]:
    """The ranges of an answer of `length` characters between some segments, in characters."""
    starts = [0, *(segment.end for segment in segments)]
    ends = [*(segment.start for segment in segments), length]
    return [(start, end) for start, end in zip(starts, ends, strict=True) if start < end]
