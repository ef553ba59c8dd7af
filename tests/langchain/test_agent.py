"""create_agent of langchain, with a retrieval tool."""

from __future__ import annotations

from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.tools import tool
from pydantic import BaseModel

from langchain_nest import ChatNest, cited_documents, message_citations
from nest_engine import NestConfig
from tests.langchain.helpers import check_citations
from tests.langchain.test_tools import grammar_that_calls
from tests.tiny import tiny_engine


@pytest.fixture
def model() -> ChatNest:
    return ChatNest(engine=tiny_engine(config=NestConfig(max_new_tokens=120, min_citation_words=2)))


def test_the_answer_cites_what_the_tool_found(model: ChatNest, documents: list[Document], monkeypatch: Any) -> None:
    @tool(response_format="content_and_artifact")
    def search(query: str) -> tuple[str, list[Document]]:
        """Search the documents."""
        return documents[1].page_content, [documents[1]]

    # A random model calls no tool by its own choice: the first turn is led into a call.
    import langchain_nest.tools as tools_module

    original = tools_module.call_grammar
    turns = iter([lambda tools, choice, **kw: grammar_that_calls(tools)])
    monkeypatch.setattr(tools_module, "call_grammar", lambda *a, **k: next(turns, original)(*a, **k))
    monkeypatch.setattr(ChatNest, "bind_tools", lambda self, tools, **k: self.bind(tools=tools_as_dicts(tools)))

    messages = create_agent(model, [search]).invoke({"messages": [("user", "What does raise do?")]})["messages"]
    assert [type(m) for m in messages[1:]] == [AIMessage, ToolMessage, AIMessage]
    assert messages[1].tool_calls[0]["name"] == "search"
    answer = messages[-1]
    assert {d.id for d in cited_documents(answer)} == {"raise"}
    check_citations(answer.text, message_citations(answer), cited_documents(answer), documents)


def tools_as_dicts(tools: Any) -> list[Any]:
    from langchain_nest.tools import to_tool

    return [to_tool(t).to_dict() for t in tools]


async def test_text_ends_the_agent(model: ChatNest) -> None:
    @tool
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    state = await create_agent(model, [add]).ainvoke({"messages": [("user", "Hello")]})
    assert isinstance(state["messages"][-1], AIMessage)


def test_structured_response(model: ChatNest) -> None:
    class Verdict(BaseModel):
        """A verdict."""

        good: bool

    state = create_agent(model, [], response_format=Verdict).invoke({"messages": [("user", "Is it?")]})
    assert isinstance(state["structured_response"], Verdict)
