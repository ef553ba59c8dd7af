"""Tracing what a model wrote by itself back to the passages: maximal verbatim runs of words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from nest_engine.citations.runs import Segment
from nest_engine.words import WordUnit, word_units

_SEED = 3
"""Word units that have to agree before a run is looked at."""


class Matcher:
    """Finds where a text repeats passages word for word. No model is needed."""

    def __init__(self, passages: Sequence[str], min_words: int) -> None:
        """Trace to some texts.

        Args:
            passages: Their texts.
            min_words: Shortest run that counts, in words, at least 1.
        """
        self._passages = passages
        self._halves = 2 * min_words
        self._ends: list[set[int]] = []
        self._seeds: dict[tuple[str, ...], list[tuple[int, int]]] = {}
        for number, text in enumerate(passages):
            units = list(word_units(text))
            self._ends.append({unit.end for unit in units})
            for i in range(len(units) - _SEED + 1):
                seed = tuple(text[u.start : u.end] for u in units[i : i + _SEED])
                self._seeds.setdefault(seed, []).append((number, units[i].start))

    def matches(self, answer: str, gaps: Sequence[tuple[int, int]]) -> Iterator[Segment]:
        """The maximal runs within some ranges of an answer, in reading order.

        Args:
            answer: The answer.
            gaps: Ranges [start, end) that are not cited yet, in characters.
        """
        for start, end in gaps:
            units = [u for u in word_units(answer) if start <= u.start and u.end <= end]
            i = 0
            while i + _SEED <= len(units):
                best = self._longest(answer, units, i)
                if best is None:
                    i += 1
                    continue
                yield best
                while i < len(units) and units[i].start < best.end:
                    i += 1

    def _longest(self, answer: str, units: Sequence[WordUnit], i: int) -> Segment | None:
        """The longest run that begins with a word, if one is long enough; the first of equally long ones."""
        seed = tuple(answer[u.start : u.end] for u in units[i : i + _SEED])
        best: Segment | None = None
        for number, source_start in self._seeds.get(seed, ()):
            length = self._extend(answer, units, i, number, source_start)
            if length and (best is None or length > best.length):
                best = Segment(number, units[i].start, source_start, length, kind="matched")
        return best

    def _extend(self, answer: str, units: Sequence[WordUnit], i: int, number: int, source_start: int) -> int:
        """Characters of the run, up to the last word that ends on both sides; 0 if it has too few words."""
        source, start = self._passages[number], units[i].start
        length = halves = 0
        for unit in units[i:]:
            here = unit.end - start
            if answer[start : unit.end] != source[source_start : source_start + here]:
                break
            halves += unit.halves
            if halves >= self._halves and source_start + here in self._ends[number]:
                length = here
        return length
