"""A message with its sources marked: the same view as the engine's own answer."""

from __future__ import annotations

from langchain_core.documents import Document
from langchain_core.messages import AIMessage

from langchain_nest import ChatNest, message_citations, to_html, to_markdown
from langchain_nest.rendering import to_view
from nest_engine import NestEngine
from tests.engine.rendering.reading import check_inert, read_html

QUESTION = "What does the with statement wrap?"


def test_a_message_is_shown_with_its_sources(engine: NestEngine, documents: list[Document]) -> None:
    message = ChatNest(engine=engine, documents=documents).invoke(QUESTION)
    citations = message_citations(message)
    assert citations
    view = to_view(message)
    assert view.text == message.text
    assert [(s.start, s.end, s.number) for s in view.spans] == [
        (c["start_index"], c["end_index"], c["extras"]["number"])  # type: ignore[typeddict-item]
        for c in citations
    ]
    texts = [document.page_content for document in documents]
    for span in view.spans:
        excerpt = span.excerpt
        assert any(excerpt.before + excerpt.quote + excerpt.after in text for text in texts)
    assert view.facts is not None
    read = read_html(to_html(message, page=False))
    check_inert(read)
    assert read.numbers == [str(span.number) for span in view.spans]
    assert to_html(message, title=QUESTION).startswith("<!doctype html>")
    assert f"[^{view.spans[0].number}]" in to_markdown(message)


def test_titles_and_links_are_those_of_the_documents(engine: NestEngine, documents: list[Document]) -> None:
    message = ChatNest(engine=engine, documents=[documents[0]]).invoke(QUESTION)
    (source,) = to_view(message).sources
    assert (source.title, source.url) == ("The with statement", "https://example.org/compound")


def test_a_stored_message_is_shown_too(engine: NestEngine, documents: list[Document]) -> None:
    message = ChatNest(engine=engine, documents=documents).invoke(QUESTION)
    assert to_view(AIMessage.model_validate_json(message.model_dump_json())) == to_view(message)


def test_messages_of_other_models() -> None:
    citation = {"type": "citation", "start_index": 0, "end_index": 5, "cited_text": "Hello", "title": "<b>"}
    forged = {**citation, "extras": {"number": "1", "source_start": 0, "source_end": 5, "kind": '"><script>'}}
    for citations in ([], [citation], [forged]):
        message = AIMessage([{"type": "text", "text": "Hello you", "annotations": citations}])
        view = to_view(message)
        assert (view.text, view.spans, view.facts) == ("Hello you", (), None)
    assert "Hello" in to_html(AIMessage("Hello"))
