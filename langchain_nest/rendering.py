"""Messages with their sources marked, as HTML and Markdown."""

from __future__ import annotations

from typing import Any

from langchain_core.messages import BaseMessage
from langchain_core.messages.content import Citation as StandardCitation

from langchain_nest.citations import cited_documents, message_citations
from nest_engine.citations.citation import Citation
from nest_engine.passages import Passage
from nest_engine.rendering import View, make_view, to_page_or_piece
from nest_engine.rendering import to_markdown as render_markdown


def to_html(message: BaseMessage, *, title: str = "", page: bool = True) -> str:
    """Write an answer as HTML, with what was copied marked and its sources on hover and focus.

    It works without scripts and without network; everything from documents is escaped. In a
    notebook: `IPython.display.HTML(to_html(message, page=False))`.

    Args:
        message: An answer of `ChatNest`. Messages of other models are shown without sources.
        title: A heading, such as the question.
        page: Whether to write a whole document, for a file; else a piece of one, without heading.
    """
    return to_page_or_piece(to_view(message), title=title, page=page)


def to_markdown(message: BaseMessage) -> str:
    """Write an answer as Markdown, with a footnote for each source.

    Args:
        message: An answer of `ChatNest`.
    """
    return render_markdown(to_view(message))


def to_view(message: BaseMessage) -> View:
    """What is shown of a message.

    Args:
        message: An answer of `ChatNest`.
    """
    info = message.response_metadata
    citations = [_to_citation(citation) for citation in message_citations(message) if _is_ours(citation)]
    passages = [
        Passage(document.page_content, id=str(document.id or ""), metadata=document.metadata)
        for document in cited_documents(message)
    ]
    finish_reason = str(info.get("finish_reason", "stop"))
    return make_view(str(message.text), citations, passages, info.get("stats"), finish_reason=finish_reason)


def _is_ours(citation: StandardCitation) -> bool:
    """Whether a citation tells the ranges that this package writes; other models' citations do not."""
    extras = citation.get("extras") or {}
    return all(isinstance(extras.get(name), int) for name in ("number", "source_start", "source_end"))


def _to_citation(citation: StandardCitation) -> Citation:
    extras: dict[str, Any] = citation.get("extras") or {}
    name = str(extras.get("document_id") or "")
    return Citation(
        number=extras["number"],
        kind="matched" if extras.get("kind") == "matched" else "copied",
        start=citation.get("start_index", 0),
        end=citation.get("end_index", 0),
        passage_id=name,
        document_id=citation.get("url") or name,
        title=citation.get("title") or "",
        source_start=extras["source_start"],
        source_end=extras["source_end"],
        document_start=extras.get("document_start"),
        text=citation.get("cited_text", ""),
    )
