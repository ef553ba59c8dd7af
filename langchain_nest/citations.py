"""The engine's citations in LangChain's standard form, and documents back from messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from langchain_core.documents import Document
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.messages.content import Citation as StandardCitation
from langchain_core.messages.content import create_citation

from langchain_nest.documents import to_document
from nest_engine import Citation, Generation, Passage

SOURCE_DOCUMENTS = "source_documents"
"""Key of `response_metadata` and `generation_info` under which the documents lie that were copied from."""


class CitationWriter:
    """Turns citations into LangChain's form, as they come.

    Attributes:
        written: The citations so far.
        documents: The documents that they copy from, in citation order, each once.
    """

    def __init__(self, passages: Sequence[Passage]) -> None:
        """Cite from `passages`."""
        self._passages = passages
        self.written: list[StandardCitation] = []
        self.documents: list[Document] = []
        self._places: dict[int, int] = {}  # number of a passage -> place in `documents`

    def add(self, citations: Sequence[Citation]) -> list[StandardCitation]:
        """Turn further citations into LangChain's form."""
        before = len(self.written)
        for citation in citations:
            self.written.append(self._convert(citation))
        return self.written[before:]

    def _convert(self, citation: Citation) -> StandardCitation:
        number = self._find(citation)
        document = to_document(self._passages[number])
        if number not in self._places:
            self._places[number] = len(self.documents)
            self.documents.append(document)
        return create_citation(
            # A counter, so that a stream and a single answer have the same ids.
            id=f"nest-{len(self.written)}",
            url=_url(document.metadata),
            title=citation.title or _title(document.metadata),
            start_index=citation.start,
            end_index=citation.end,
            cited_text=citation.text,
            number=citation.number,
            kind=citation.kind,
            document_id=citation.passage_id,
            source_index=self._places[number],
            source_start=citation.source_start,
            source_end=citation.source_end,
            document_start=citation.document_start,
        )

    def _find(self, citation: Citation) -> int:
        """The passage that a citation copies from: by id, and by text where a store repeats ids."""
        for number, passage in enumerate(self._passages):
            if passage.id == citation.passage_id and (
                passage.text[citation.source_start : citation.source_end] == citation.text
            ):
                return number
        raise LookupError(f"the citation's passage {citation.passage_id} is not among those that were searched")


def answer_info(generation: Generation, documents: Sequence[Document]) -> dict[str, Any]:
    """What is told about an answer besides its text: reasons, statistics, and the documents that were copied from."""
    ids = [passage_id(document) for document in documents]
    return {
        "finish_reason": "length" if generation.finish_reason == "length" else "stop",
        SOURCE_DOCUMENTS: [
            {"id": name, "page_content": document.page_content, "metadata": dict(document.metadata)}
            for name, document in zip(ids, documents, strict=True)
        ],
        "source_ids": ids,
        "stats": generation.stats.to_dict(),
    }


def passage_id(document: Document) -> str:
    """The id that citations know a document by: its own, else one made from its content."""
    if document.id:
        return str(document.id)
    title = document.metadata.get("title")
    return Passage(document.page_content, title=title if isinstance(title, str) else "").id


def message_citations(message: BaseMessage) -> list[StandardCitation]:
    """The citations of a message, in reading order; none for messages of other models."""
    if not isinstance(message, AIMessage):
        return []
    blocks = [cast("Mapping[str, Any]", block) for block in message.content_blocks]
    return [
        cast("StandardCitation", annotation)
        for block in blocks
        for annotation in block.get("annotations") or ()
        if annotation.get("type") == "citation"
    ]


def cited_documents(message: BaseMessage | Mapping[str, Any]) -> list[Document]:
    """The documents that an answer was copied from, in citation order.

    Documents that were retrieved but not copied from are not among them. Copied is not the
    same as true: see the concepts guide.

    Args:
        message: An answer of `ChatNest`, or the `generation_info` of one of `NestLLM`.

    Returns:
        The documents, each once; none where nothing was copied.
    """
    info = message.response_metadata if isinstance(message, BaseMessage) else message
    return [
        Document(page_content=entry["page_content"], metadata=dict(entry["metadata"]), id=entry["id"])
        for entry in info.get(SOURCE_DOCUMENTS) or ()
    ]


def _url(metadata: Mapping[str, Any]) -> str | None:
    for name in ("url", "source"):
        value = metadata.get(name)
        if isinstance(value, str) and value.startswith(("http://", "https://")):
            return value
    return None


def _title(metadata: Mapping[str, Any]) -> str | None:
    for name in ("title", "source"):
        value = metadata.get(name)
        if isinstance(value, str) and value:
            return value
    return None
