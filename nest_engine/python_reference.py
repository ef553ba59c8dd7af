"""The Python language reference that ships inside every CPython, as a document collection.

`pydoc_data.topics` holds the text of `help("with")` and its like: real prose, at hand
without any download, in the version of the running interpreter.
"""

from __future__ import annotations

import sys
from importlib import import_module

from nest_engine.documents import Document, split_document
from nest_engine.errors import DocumentError
from nest_engine.passages import Passage


def python_documents() -> list[Document]:
    """Return the topics of the language reference, sorted by name.

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
        Document(text, _title(name, text), f"python/{name}", metadata={"topic": name, "python": version})
        for name, text in sorted(topics.items())
        if text.strip()
    ]


def python_passages(words: int = 150) -> list[Passage]:
    """Return the passages of the language reference, each text once.

    Some topics repeat others whole ("compound" holds "if", "for" and more). Such a repetition
    would fill the search results with copies of one text, so a passage is left out where its text
    stands in a shorter topic, too.

    Args:
        words: The largest number of words in a passage.

    Raises:
        DocumentError: If this Python was installed without `pydoc_data`.
    """
    documents = sorted(python_documents(), key=lambda document: (len(document.text), document.id))
    passages: list[Passage] = []
    shorter = ""
    for document in documents:
        passages += [passage for passage in split_document(document, words) if passage.text not in shorter]
        shorter += document.text + "\0"
    return sorted(passages, key=lambda passage: (passage.document_id, passage.offset or 0))


def _title(name: str, text: str) -> str:
    """Return the heading of a topic, or its name where it starts otherwise."""
    lines = text.lstrip().splitlines()
    underlined = len(lines) > 1 and len(set(lines[1].strip())) == 1 and not lines[1].strip().isalnum()
    return lines[0].strip() if underlined else name
