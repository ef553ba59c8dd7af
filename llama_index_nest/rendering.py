"""Responses with their sources marked, as HTML and Markdown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llama_index.core.schema import MetadataMode, NodeWithScore

from nest_engine.citations.citation import Citation
from nest_engine.passages import Passage
from nest_engine.rendering import View, make_view, to_page_or_piece
from nest_engine.rendering import to_markdown as render_markdown


def to_html(response: Any, *, title: str = "", page: bool = True) -> str:
    """Write an answer as HTML, with what was copied marked and its sources on hover and focus.

    It works without scripts and without network; everything from documents is escaped. In a
    notebook: `IPython.display.HTML(to_html(response, page=False))`.

    Args:
        response: A response of `NestQueryEngine`, `NestSynthesizer` or `NestChatEngine`; a streaming one
            when it has been read. Responses of other engines are shown without sources.
        title: A heading, such as the question.
        page: Whether to write a whole document, for a file; else a piece of one, without heading.
    """
    return to_page_or_piece(to_view(response), title=title, page=page)


def to_markdown(response: Any) -> str:
    """Write an answer as Markdown, with a footnote for each source.

    Args:
        response: As in `to_html`.
    """
    return render_markdown(to_view(response))


def to_view(response: Any) -> View:
    """What is shown of a response.

    Args:
        response: As in `to_html`.
    """
    metadata: Mapping[str, Any] = response.metadata or {}
    text = metadata.get("text")
    if not isinstance(text, str):
        text = str(response.response or "") if hasattr(response, "response") else str(response)
    return make_view(
        text,  # the answer without the marks of `markers=True`: citations count its characters
        [Citation(**citation) for citation in metadata.get("citations") or ()],
        [passage for node in response.source_nodes if (passage := _to_passage(node)) is not None],
        metadata.get("stats"),
        finish_reason=str(metadata.get("finish_reason", "end")),
    )


def _to_passage(node: NodeWithScore) -> Passage | None:
    text = node.node.get_content(metadata_mode=MetadataMode.NONE)
    return Passage(text, id=node.node.node_id, metadata=node.node.metadata) if text.strip() else None
