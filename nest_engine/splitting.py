"""Split a document into passages of a size that suits retrieval and copying."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import regex

from nest_engine.errors import ConfigError
from nest_engine.passages import Passage
from nest_engine.words import count_words, word_units

if TYPE_CHECKING:
    from nest_engine.documents import Document

# Characters other than white space that a passage may have per word of its limit: code, tables and very long
# words have many more tokens per "word" than prose, whose words are shorter than this in every language.
_CHARACTERS_PER_WORD = 6

_PARAGRAPH = regex.compile(r"\r?\n(?:[ \t]*\r?\n)+|\f")
# A paragraph of one line, underlined as in reStructuredText, or short and without punctuation at its end.
_UNDERLINED = regex.compile(r"""[^\r\n]+\r?\n([=*\-~^#"`+])\1{2,}\s*""")
_BARE = regex.compile(r"""(?![-*•‣–+] |\s)[^\r\n]{1,80}(?<![.,;:!?…。！？：；，、\p{Pe}\s])\s*""")
_MOST_HEADING_WORDS = 10
_SENTENCE = regex.compile(
    r"""
      (?<! \b (?: Mr|Mrs|Ms|Dr|Prof|St|vs|etc|No|Fig|Eq|Sr|Sra|Ud|e\.g|i\.e|cf|\p{Lu} ) ) (?<=[.!?…])
        ["'”’»)\]]* \s+ (?=["'“‘«(\[¿¡*_`]* [\p{Lu}\p{Lt}\p{Lo}\p{N}])
    | [。！？｡]["”’」』）】]* \s*
    | [।॥؟]\s+
    | \r?\n (?=[ \t]* (?: [*•‣\-–+] | \d{1,3}[.)] ) [ \t])
    """,
    regex.VERBOSE | regex.VERSION1,
)
_CLAUSE = regex.compile(r"[，、；：]\s*|[,;:]\s+|\r?\n")
_SPACE = regex.compile(r"\s+")
_GRAPHEME = regex.compile(r"\X")
_FINER = (_SENTENCE, _CLAUSE, _SPACE, _GRAPHEME)

_SECTION_BORDER, _PARAGRAPH_BORDER, _SENTENCE_BORDER = 5, 4, 3
# Behind "For example:", and behind a heading.
_INTRODUCED_BORDER, _GLUED = 2, 0


@dataclass(frozen=True, slots=True)
class _Piece:
    """A stretch of text that is kept together.

    Attributes:
        start: Code points from the document's start.
        end: Code points from the document's start to just behind the piece.
        border: How good a place its start is to begin a passage, higher is better.
        cost: The share of a passage that it fills.
    """

    start: int
    end: int
    border: int
    cost: float


class _Splitter:
    """Cuts one text into passages of at most `words` words."""

    def __init__(self, text: str, words: int) -> None:
        self.text = text
        self.words = words

    def spans(self) -> Iterator[tuple[int, int]]:
        """Yield (start, end) of the passages, in code points, without the white space at their ends."""
        window: list[_Piece] = []
        for piece in self._pieces():
            while window and sum(part.cost for part in window) + piece.cost > 1:
                cut = _best_cut([*window, piece])
                yield from self._trimmed(window[0].start, window[cut - 1].end)
                window = window[cut:]
            window.append(piece)
        if window:
            yield from self._trimmed(window[0].start, window[-1].end)

    def _pieces(self) -> Iterator[_Piece]:
        """Yield the paragraphs, or parts of those that are too long, in order and without gaps."""
        border = _SECTION_BORDER
        for start, end in self._split(_PARAGRAPH, 0, len(self.text)):
            paragraph = self.text[start:end]
            heading = _is_heading(paragraph)
            # What follows a heading is cut if the two would not fit into one passage.
            limit = 0.5 if border == _GLUED else 1.0
            yield from self._parts(start, end, _SECTION_BORDER if heading else border, 0, limit)
            if heading:
                border = _GLUED
            else:
                border = _INTRODUCED_BORDER if paragraph.rstrip().endswith((":", "：")) else _PARAGRAPH_BORDER

    def _parts(self, start: int, end: int, border: int, level: int, limit: float) -> Iterator[_Piece]:
        """Yield text[start:end] whole if its cost is within the limit, else in finer and finer pieces."""
        cost = self._cost(start, end)
        if cost <= limit or level == len(_FINER):
            yield _Piece(start, end, border, cost)
            return
        for part_start, part_end in self._split(_FINER[level], start, end):
            part_border = border if part_start == start else _SENTENCE_BORDER - level
            yield from self._parts(part_start, part_end, part_border, level + 1, limit)

    def _split(self, pattern: regex.Pattern[str], start: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield the stretches of text[start:end] that end behind a match of `pattern`."""
        last = start
        for match in pattern.finditer(self.text, start, end):
            if last < match.end() < end:
                yield last, match.end()
                last = match.end()
        if last < end:
            yield last, end

    def _cost(self, start: int, end: int) -> float:
        text = self.text[start:end]
        halves = sum(unit.halves for unit in word_units(text))
        characters = len(_SPACE.sub("", text))
        return max(halves / (2 * self.words), characters / (_CHARACTERS_PER_WORD * self.words))

    def _trimmed(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        text = self.text[start:end]
        if text.strip():
            yield end - len(text.lstrip()), start + len(text.rstrip())


def _is_heading(paragraph: str) -> bool:
    if _UNDERLINED.fullmatch(paragraph):
        return True
    return bool(_BARE.fullmatch(paragraph)) and count_words(paragraph) <= _MOST_HEADING_WORDS


def _best_cut(pieces: list[_Piece]) -> int:
    """Choose where to end a passage: the index of the piece that starts the next one.

    The best kind of border behind the middle of the passage wins, of equal ones the last. Where
    all of them would tear things apart that belong together, the first half counts too.
    """
    filled, best = 0.0, (False, -1, 0)
    for index in range(1, len(pieces)):
        filled += pieces[index - 1].cost
        border = pieces[index].border
        best = max(best, (filled >= 0.5 and border >= _SENTENCE_BORDER, border, index))
    return best[2]


def split_document(document: Document, words: int = 150) -> list[Passage]:
    """Split a document into passages that end at paragraph or sentence borders wherever possible.

    No text is lost but white space between passages, and none is repeated. 150 words are
    about 200 tokens of English prose.

    Args:
        document: What to split.
        words: The largest number of words in a passage (`nest_engine.words`); text with
            unusually long words, such as code, is cut earlier.

    Returns:
        The passages in the document's order. For each of them
        `document.text[p.offset : p.offset + len(p.text)] == p.text`; their `metadata` holds the
        document's, and the page number (from 1) where the document has pages.

    Raises:
        ConfigError: If `words` is less than 1.
    """
    if words < 1:
        raise ConfigError(f"words must be at least 1, not {words}")
    return [
        Passage(
            text=document.text[start:end],
            title=document.title,
            id=f"{document.id}#{start}",
            document_id=document.id,
            offset=start,
            metadata=_metadata(document, start),
        )
        for start, end in _Splitter(document.text, words).spans()
    ]


def _metadata(document: Document, start: int) -> dict[str, Any]:
    metadata = dict(document.metadata)
    if document.page_starts:
        metadata["page"] = bisect_right(document.page_starts, start)
    return metadata
