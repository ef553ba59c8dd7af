"""WikiText: articles from its raw form, with the marks of its tokenizer taken out."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

UNKNOWN = "<unk>"
"""What WikiText has in place of rare words. The text that the model should predict is not known there."""

_TITLE = re.compile(r"^ = ([^=].*?) = \s*$")
_HEADING = re.compile(r"^ ((?:= ){2,})(.+?)((?: =){2,}) \s*$")

_RULES = [
    (re.compile(r" @([-,.])@ "), r"\1"),
    (re.compile(r" ([,;:.?!)\]}%])"), r"\1"),
    (re.compile(r"([(\[{]) "), r"\1"),
    (re.compile(r" ('(?:s|re|ve|ll|d|m|t)?\b)"), r"\1"),
    (re.compile(r" n't\b"), "n't"),
    (re.compile(r"([$£€]) (?=\d)"), r"\1"),
]
_QUOTED = re.compile(r'" ([^"]*?) "')


@dataclass(frozen=True)
class Article:
    """A text to predict.

    Attributes:
        id: Number of the article in its file, from 1.
        title: Its heading.
        text: Its text, below the heading.
    """

    id: str
    title: str
    text: str

    @property
    def unknown(self) -> list[tuple[int, int]]:
        """Ranges of the text that hold `<unk>`, in characters: they leave the loss."""
        return [match.span() for match in re.finditer(re.escape(UNKNOWN), self.text)]


def detokenize(line: str) -> str:
    """Take WikiText's spaces and `@-@`, `@,@`, `@.@` out of a line; `<unk>` stays.

    >>> detokenize(' It weighs 0 @.@ 7 – 2 @.@ 2 kg ( 1 @,@ 500 lb ) , " more or less " , M @-@ 82 . ')
    'It weighs 0.7 – 2.2 kg (1,500 lb), "more or less", M-82.'
    """
    line = line.strip()
    for pattern, replacement in _RULES[:1]:
        line = pattern.sub(replacement, line)
    line = _QUOTED.sub(r'"\1"', line)
    for pattern, replacement in _RULES[1:]:
        line = pattern.sub(replacement, line)
    return line


def read_articles(text: str) -> Iterator[Article]:
    """Yield the articles of WikiText's raw form.

    Args:
        text: Lines; ` = Title = ` begins an article, ` = = Section = = ` a section in it. A line
            before the first title belongs to no article and is left out.
    """
    title: str | None = None
    lines: list[str] = []
    number = 0
    for line in [*text.split("\n"), None]:
        found = _TITLE.match(line) if line is not None else None
        if line is not None and not found:
            lines.append(_heading_or_text(line))
            continue
        body = "\n\n".join(part for part in lines if part)
        if title is not None and body:
            number += 1
            yield Article(str(number), title, body)
        title, lines = (detokenize(found.group(1)) if found else None), []


def _heading_or_text(line: str) -> str:
    heading = _HEADING.match(line)
    return detokenize(heading.group(2)) if heading else detokenize(line)
