"""Documents, an embedding model without weights, and what every cited answer must hold."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Sequence
from typing import Any

from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.messages import BaseMessage

from langchain_nest import message_citations

DOCUMENTS = [
    Document(
        "The with statement is used to wrap the execution of a block with methods defined by a context manager.",
        metadata={"title": "The with statement", "source": "https://example.org/compound", "start_index": 100},
        id="with",
    ),
    Document(
        "The raise statement raises the exception that it names. With no expression it raises the active one again.",
        metadata={"title": "The raise statement", "source": "simple.rst", "start_index": -1},
        id="raise",
    ),
    Document("Ein Größenvergleich: 🙂 naïve café, 漢字 and 🇫🇷 flags are copied as they are.", id="scripts"),
    Document("A generator function contains a yield expression. Calling it returns an iterator.", metadata={"page": 3}),
]
"""With and without ids, titles, offsets and metadata; in several scripts."""


class WordEmbeddings(Embeddings):
    """Hashed words, unit length: similar texts are those that share words."""

    def __init__(self, size: int = 256) -> None:
        self.size = size
        self.calls = 0

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return [self.embed_query(text) for text in texts]

    def embed_query(self, text: str) -> list[float]:
        self.calls += 1
        vector = [0.0] * self.size
        for word in re.findall(r"\w+", text.lower()):
            vector[int.from_bytes(hashlib.sha256(word.encode()).digest()[:4], "big") % self.size] += 1.0
        norm = math.sqrt(sum(x * x for x in vector)) or 1.0
        return [x / norm for x in vector]


def check_citations(
    text: str, citations: Sequence[Any], documents: Sequence[Document], known: Sequence[Document]
) -> None:
    """Each citation is verbatim in its document, and each document one that the source returned.

    Args:
        text: The answer.
        citations: Its citations, in the standard form.
        documents: The documents it says it copied from.
        known: The documents of the source.
    """
    end = 0
    for citation in citations:
        extras = citation["extras"]
        document = documents[extras["source_index"]]
        assert text[citation["start_index"] : citation["end_index"]] == citation["cited_text"]
        assert document.page_content[extras["source_start"] : extras["source_end"]] == citation["cited_text"]
        assert document.id == extras["document_id"]
        assert any(
            original.page_content == document.page_content
            and original.id in (document.id, None)
            and original.metadata == document.metadata
            for original in known
        )
        assert citation["start_index"] >= end
        end = citation["end_index"]
    assert len(documents) == len({extras_index(c) for c in citations})


def extras_index(citation: Any) -> int:
    return int(citation["extras"]["source_index"])


def text_and_citations(message: BaseMessage) -> tuple[str, list[Any]]:
    return message.text, list(message_citations(message))


def without_times(value: Any) -> Any:
    """A message's metadata without the seconds that it took."""
    if isinstance(value, dict):
        return {k: without_times(v) for k, v in value.items() if k != "seconds"}
    return [without_times(v) for v in value] if isinstance(value, list) else value
