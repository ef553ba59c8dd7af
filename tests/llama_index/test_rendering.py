"""A response with its sources marked: the same view as the engine's own answer."""

import pytest
from llama_index.core.base.response.schema import Response, StreamingResponse
from llama_index.core.schema import NodeWithScore, TextNode

from llama_index_nest import NestChatEngine, NestQueryEngine, to_html, to_markdown
from llama_index_nest.rendering import to_view
from tests.answers import hostile, island
from tests.engine.rendering.reading import check_inert, read_html
from tests.llama_index.world import memory_index, tiny_llm

QUESTION = "When was the lighthouse at Cape Morwen built?"


def response_of(generation):
    """A response as the query engine makes it."""
    nodes = [
        NodeWithScore(node=TextNode(id_=s.passage.id, text=s.passage.text, metadata=dict(s.passage.metadata)))
        for s in generation.passages
    ]
    metadata = {**generation.to_dict(), "finish_reason": generation.finish_reason}
    return Response(generation.text, nodes, metadata)


@pytest.mark.parametrize("make", [island, hostile])
def test_the_same_as_the_engines_own(make):
    generation = make()
    response = response_of(generation)
    assert to_markdown(response) == generation.to_markdown()
    assert to_html(response, title="Q") == generation.to_html(title="Q")
    check_inert(read_html(to_html(response, page=False)))


@pytest.mark.parametrize("options", [{}, {"markers": True}, {"streaming": True}])
def test_responses_of_the_query_engine(options):
    response = NestQueryEngine.from_args(memory_index(), llm=tiny_llm(), **options).query(QUESTION)
    str(response)  # reads a stream
    view = to_view(response)
    assert view.spans
    assert len(view.spans) == len(response.metadata["citations"])
    assert view.text == response.metadata["text"]
    assert any(span.excerpt.before or span.excerpt.after for span in view.spans)
    assert view.facts is not None


def test_responses_of_the_chat_engine():
    response = NestChatEngine.from_defaults(memory_index(), llm=tiny_llm()).chat(QUESTION)
    view = to_view(response)
    assert len(view.spans) == len(response.metadata["citations"])
    assert view.text == response.response


def test_responses_of_other_engines():
    for response in (Response("Hello", []), StreamingResponse(iter(["Hel", "lo"]))):
        view = to_view(response)
        assert (view.text, view.spans, view.facts) == ("Hello", (), None)
    assert to_view(Response(None)).text == ""
