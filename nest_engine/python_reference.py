"""The Python language reference that ships inside every CPython, as a document collection.

`pydoc_data.topics` holds the text of `help("with")` and its like: real prose, at hand
without any download, in the version of the running interpreter.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from itertools import groupby

from nest_engine.documents import Document, split_document
from nest_engine.errors import DocumentError
from nest_engine.passages import Passage
from nest_engine.words import count_words

_UNDERLINED = re.compile(r"^(.+)\n([*=\-~^\"'])\2{2,}$", re.MULTILINE)
_PARAGRAPH = re.compile(r".+?(?:\n[ \t]*(?:\n[ \t]*)+(?=\S)|\Z)", re.DOTALL)
# Shorter paragraphs ("For example:") are alike without being repetitions, and shorter rests are headings.
_MIN_REPEATED_CHARACTERS = 60
_MIN_REST_WORDS = 12


def python_documents() -> list[Document]:
    """Return the topics of the language reference, sorted by name.

    A topic's heading is its title and no part of the text; the lines of signs under headings
    are left out.

    Raises:
        DocumentError: If this Python was installed without `pydoc_data`.
    """
    try:
        topics: dict[str, str] = import_module("pydoc_data.topics").topics
    except ImportError as error:
        raise DocumentError(
            "this Python has no pydoc_data.topics; use a complete installation of CPython, or your own --docs"
        ) from error
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    return [
        _document(name, text, {"topic": name, "python": version})
        for name, text in sorted(topics.items())
        if text.strip()
    ]


def python_passages(words: int = 150) -> list[Passage]:
    """Return the passages of the language reference, each text once.

    Some topics repeat others whole ("compound" holds "if", "for" and more). Such repetitions
    would fill the search results with copies of one text, so paragraphs that stand in a shorter
    topic, too, are left out of the longer one.

    Args:
        words: The largest number of words in a passage.

    Raises:
        DocumentError: If this Python was installed without `pydoc_data`.
    """
    documents = sorted(python_documents(), key=lambda document: (len(document.text), document.id))
    passages: list[Passage] = []
    known: set[str] = set()
    for document in documents:
        for start, end in _new_stretches(document.text, known):
            passages += _split_stretch(document, start, end, words)
        known.update(paragraph for _, _, paragraph in _paragraphs(document.text))
    return sorted(passages, key=lambda passage: (passage.document_id, passage.offset or 0))


def _document(name: str, text: str, metadata: dict[str, str]) -> Document:
    heading = _UNDERLINED.match(text.lstrip())
    title = heading[1].strip() if heading else name
    body = text.lstrip()[heading.end() :] if heading else text
    return Document(_UNDERLINED.sub(r"\1", body).strip(), title, f"python/{name}", metadata=metadata)


def _paragraphs(text: str) -> Iterator[tuple[int, int, str]]:
    """Yield (start, end, paragraph), start and end in code points, with the blank lines after it."""
    for match in _PARAGRAPH.finditer(text):
        yield match.start(), match.end(), match[0].strip()


def _new_stretches(text: str, known: set[str]) -> Iterator[tuple[int, int]]:
    """Yield (start, end) of the longest runs of paragraphs that are not in `known`."""
    repeated, marked = False, []
    for start, end, paragraph in _paragraphs(text):
        if len(paragraph) >= _MIN_REPEATED_CHARACTERS:
            repeated = paragraph in known
        marked.append((repeated, start, end))
    for is_repeated, group in groupby(marked, key=lambda mark: mark[0]):
        run = list(group)
        start, end = run[0][1], run[-1][2]
        if not is_repeated and count_words(text[start:end]) >= min(_MIN_REST_WORDS, count_words(text)):
            yield start, end


def _split_stretch(document: Document, start: int, end: int, words: int) -> Iterator[Passage]:
    """Split a part of a document into passages whose offsets count from the whole document's start."""
    for passage in split_document(replace(document, text=document.text[start:end]), words):
        offset = start + (passage.offset or 0)
        yield replace(passage, id=f"{document.id}#{offset}", offset=offset)
