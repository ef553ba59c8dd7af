"""LangChain documents to passages of the engine, and back."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from langchain_core.documents import Document

from nest_engine import Passage
from nest_engine.errors import SourceError
from nest_engine.passages import content_id

logger = logging.getLogger(__name__)

_DOCUMENT = "langchain_document"
"""Key in a passage's metadata under which it carries the document that it was made from."""


def to_passage(document: Document, *, by_content: bool = False) -> Passage | None:
    """Make a passage of a document.

    The id is the document's, else one made from its content. Documents are numbered by
    `metadata["document_id"]` or `metadata["source"]`, so that chunks of one file share a number.

    Args:
        document: The document.
        by_content: Make the id from the text even where the document has one: two stores may know
            the same text by different ids, or with different metadata.

    Returns:
        The passage, or None where the document is blank: it is left out with a warning.

    Raises:
        SourceError: If it is no document, or its content is not text.
    """
    if not isinstance(document, Document):
        raise SourceError(
            f"a source returned a {type(document).__name__} instead of a Document: "
            "wrap texts as Document(page_content=...)"
        )
    text, metadata = document.page_content, document.metadata or {}
    if not isinstance(text, str):
        raise SourceError(
            f"the content of document {document.id!r} is {type(text).__name__}, not text: convert it before indexing"
        )
    if not text.strip():
        logger.warning("document %s has no text and is left out: remove it from the store", document.id or metadata)
        return None
    title = metadata.get("title")
    return Passage(
        text,
        title=title if isinstance(title, str) else "",
        id=content_id("", text) if by_content else str(document.id or ""),
        document_id=_group(metadata),
        offset=_offset(metadata),
        metadata={_DOCUMENT: document},
    )


def to_passages(documents: Iterable[Document]) -> list[Passage]:
    """Make passages of documents; blank ones are left out with a warning.

    Raises:
        SourceError: If something is no document.
    """
    return [passage for document in documents if (passage := to_passage(document)) is not None]


def to_document(passage: Passage) -> Document:
    """The document that a passage was made from; for other passages, a new one."""
    document = passage.metadata.get(_DOCUMENT)
    if isinstance(document, Document):
        return document
    metadata = {"document_id": passage.document_id, **passage.metadata}
    if passage.title:
        metadata.setdefault("title", passage.title)
    if passage.offset is not None:
        metadata.setdefault("start_index", passage.offset)
    return Document(page_content=passage.text, metadata=metadata, id=passage.id)


def _group(metadata: Mapping[str, Any]) -> str:
    for name in ("document_id", "doc_id", "source"):
        value = metadata.get(name)
        if isinstance(value, str) and value:
            return value
    return ""


def _offset(metadata: Mapping[str, Any]) -> int | None:
    """Where a splitter says that the text began; splitters write -1 where they do not know."""
    start = metadata.get("start_index")
    return start if isinstance(start, int) and not isinstance(start, bool) and start >= 0 else None
