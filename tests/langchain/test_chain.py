"""create_nest_chain, and models in LCEL chains."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.documents import Document
from langchain_core.language_models import FakeListChatModel
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableLambda, RunnablePassthrough
from langchain_core.vectorstores import InMemoryVectorStore

from langchain_nest import ChatNest, NestLLM, create_nest_chain
from nest_engine import NestEngine
from nest_engine.errors import ConfigError
from tests.langchain.helpers import WordEmbeddings, check_citations

QUESTION = "What does the raise statement do?"


@pytest.fixture
def retriever(documents: list[Document]) -> Any:
    store = InMemoryVectorStore(WordEmbeddings())
    store.add_documents(documents)
    return store.as_retriever(search_kwargs={"k": 2})


@pytest.fixture(params=["chat", "text"])
def chain(request: pytest.FixtureRequest, engine: NestEngine, retriever: Any) -> Any:
    model = ChatNest(engine=engine) if request.param == "chat" else NestLLM(engine=engine)
    return create_nest_chain(model, retriever)


def assert_good(output: dict[str, Any]) -> None:
    assert set(output) == {"input", "context", "answer", "citations"}
    assert output["input"] == QUESTION
    assert output["context"][0].id == "raise"
    assert isinstance(output["answer"], str)
    assert output["citations"]
    contents = {d.page_content for d in output["context"]}
    for citation in output["citations"]:
        assert output["answer"][citation["start_index"] : citation["end_index"]] == citation["cited_text"]
        assert any(citation["cited_text"] in content for content in contents)


def test_output(chain: Any, documents: list[Document]) -> None:
    assert_good(chain.invoke({"input": QUESTION}))


async def test_async_output(chain: Any, documents: list[Document]) -> None:
    assert await chain.ainvoke({"input": QUESTION}) == chain.invoke({"input": QUESTION})


def test_stream_adds_up(chain: Any, documents: list[Document]) -> None:
    pieces = list(chain.stream({"input": QUESTION}))
    assert sum("answer" in piece for piece in pieces) > 2
    full = pieces[0]
    for piece in pieces[1:]:
        full = full + piece
    assert full == chain.invoke({"input": QUESTION})


async def test_async_stream_adds_up(chain: Any) -> None:
    full: Any = None
    async for piece in chain.astream({"input": QUESTION}):
        full = piece if full is None else full + piece
    assert full == chain.invoke({"input": QUESTION})


def test_nothing_copied(engine: NestEngine, retriever: Any) -> None:
    output = create_nest_chain(ChatNest(engine=engine, mode="lm"), retriever).invoke({"input": QUESTION})
    assert output["citations"] == []
    assert output["context"]


def test_history_and_prompt(engine: NestEngine, retriever: Any) -> None:
    chain = create_nest_chain(ChatNest(engine=engine, mode="lm"), retriever)
    history = [HumanMessage("Hello."), AIMessage("Hello!")]
    alone, behind = chain.invoke({"input": QUESTION}), chain.invoke({"input": QUESTION, "chat_history": history})
    assert alone["answer"] != behind["answer"]
    prompt = ChatPromptTemplate.from_messages([("human", "Hello."), ("ai", "Hello!"), ("human", "{input}")])
    other = create_nest_chain(ChatNest(engine=engine, mode="lm"), retriever, prompt=prompt)
    assert other.invoke({"input": QUESTION})["answer"] == behind["answer"]


def test_any_runnable_as_retriever(engine: NestEngine, documents: list[Document]) -> None:
    chain = create_nest_chain(ChatNest(engine=engine), RunnableLambda(lambda inputs: documents[: inputs["n"]]))
    output = chain.invoke({"input": QUESTION, "n": 1})
    assert output["context"] == documents[:1]
    assert output["n"] == 1


def test_wrong_model_and_input(engine: NestEngine, retriever: Any) -> None:
    with pytest.raises(ConfigError, match="create_retrieval_chain"):
        create_nest_chain(FakeListChatModel(responses=["a"]), retriever)
    with pytest.raises(ConfigError, match="input"):
        create_nest_chain(ChatNest(engine=engine), retriever).invoke({"question": QUESTION})


def test_lcel(engine: NestEngine, retriever: Any, documents: list[Document]) -> None:
    model = ChatNest(engine=engine)
    chain = RunnablePassthrough.assign(documents=lambda x: retriever.invoke(x["q"])) | RunnableLambda(
        lambda x: model.bind(documents=x["documents"]).invoke(x["q"])
    )
    message = chain.invoke({"q": QUESTION})
    from langchain_nest import cited_documents, message_citations

    check_citations(message.text, message_citations(message), cited_documents(message), documents)
    text = (ChatPromptTemplate.from_template("{q}") | model | StrOutputParser()).invoke({"q": QUESTION})
    assert isinstance(text, str)
