"""NestLLM: what LangChain's standard suite checks of chat models, by hand for a text model."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.documents import Document
from langchain_core.messages import HumanMessage
from langchain_core.prompts import PromptTemplate

from langchain_nest import NestLLM, cited_documents
from nest_engine import NestEngine
from nest_engine.errors import ConfigError, PromptError
from tests.langchain.helpers import check_citations
from tests.tiny import greedy, tiny_engine

PROMPT = "What does the raise statement do?"


@pytest.fixture
def llm(engine: NestEngine, documents: list[Document]) -> NestLLM:
    return NestLLM(engine=engine, documents=documents)


class Tokens(BaseCallbackHandler):
    def __init__(self) -> None:
        self.tokens: list[str] = []
        self.ends: list[Any] = []

    def on_llm_new_token(self, token: str, **kwargs: Any) -> None:
        self.tokens.append(token)

    def on_llm_end(self, response: Any, **kwargs: Any) -> None:
        self.ends.append(response)


def test_generation_info(llm: NestLLM, documents: list[Document]) -> None:
    result = llm.generate([PROMPT])
    answer = result.generations[0][0]
    info = answer.generation_info
    assert info["citations"]
    check_citations(answer.text, info["citations"], cited_documents(info), documents)
    assert info["finish_reason"] == "length"
    assert result.llm_output["token_usage"]["completion_tokens"] == info["stats"]["tokens"]
    assert result.llm_output["model_name"] == llm.model_name


def test_invoke_stream_and_async_agree(llm: NestLLM) -> None:
    text = llm.invoke(PROMPT)
    pieces = list(llm.stream(PROMPT))
    assert "".join(pieces) == text
    assert len(pieces) > 10


async def test_async_agrees(llm: NestLLM) -> None:
    text = llm.invoke(PROMPT)
    assert await llm.ainvoke(PROMPT) == text
    assert "".join([piece async for piece in llm.astream(PROMPT)]) == text
    assert await llm.abatch([PROMPT, PROMPT]) == [text, text]


def test_the_prompt_is_not_echoed(llm: NestLLM) -> None:
    assert not llm.invoke(PROMPT).startswith(PROMPT)


def test_several_prompts_have_their_own_info(llm: NestLLM, documents: list[Document]) -> None:
    result = llm.generate([PROMPT, "Größe?"])
    assert len(result.generations) == 2
    for prompt, (answer,) in zip([PROMPT, "Größe?"], result.generations, strict=True):
        assert answer.text == llm.invoke(prompt)
        check_citations(
            answer.text, answer.generation_info["citations"], cited_documents(answer.generation_info), documents
        )
    tokens = [answer.generation_info["stats"]["tokens"] for (answer,) in result.generations]
    assert result.llm_output["token_usage"]["completion_tokens"] == sum(tokens)
    assert llm.batch([PROMPT, "Größe?"]) == [answer.text for (answer,) in result.generations]


def test_callbacks_get_each_piece_and_the_end(llm: NestLLM) -> None:
    handler = Tokens()
    text = "".join(llm.stream(PROMPT, config={"callbacks": [handler]}))
    assert "".join(handler.tokens) == text
    (end,) = handler.ends
    assert end.generations[0][0].generation_info["citations"]


async def test_events_carry_citations(llm: NestLLM) -> None:
    events = [event async for event in llm.astream_events(PROMPT, version="v2")]
    end = next(event for event in events if event["event"] == "on_llm_end")
    answer = end["data"]["output"]["generations"][0][0]
    info = answer["generation_info"] if isinstance(answer, dict) else answer.generation_info
    assert info["citations"]


def test_stop(llm: NestLLM) -> None:
    text = llm.invoke(PROMPT)
    stop = text[12:16]
    assert llm.invoke(PROMPT, stop=[stop]) == text[: text.index(stop)]
    assert llm.bind(stop=[stop]).invoke(PROMPT) == text[: text.index(stop)]
    assert "".join(llm.stream(PROMPT, stop=[stop])) == text[: text.index(stop)]


def test_settings_by_call(llm: NestLLM, engine: NestEngine, documents: list[Document]) -> None:
    five = llm.invoke(PROMPT, max_tokens=5)
    assert five == NestLLM(engine=engine, documents=documents, max_tokens=5).invoke(PROMPT)
    assert five == llm.bind(max_tokens=5).invoke(PROMPT)
    with pytest.raises(ConfigError, match="tools"):
        llm.invoke(PROMPT, tools=[])


def test_documents_by_call(llm: NestLLM) -> None:
    other = Document("Something else entirely, about trains and stations.", id="other")
    info = llm.generate([PROMPT], documents=[other]).generations[0][0].generation_info
    assert {d.id for d in cited_documents(info)} == {"other"}


def test_messages_and_templates(llm: NestLLM) -> None:
    assert isinstance(llm.invoke([HumanMessage(PROMPT)]), str)
    assert isinstance((PromptTemplate.from_template("{q}") | llm).invoke({"q": PROMPT}), str)


def test_query(engine: NestEngine) -> None:
    asked: list[str] = []

    class Source:
        def search(self, query: str, k: int) -> list[Any]:
            asked.append(query)
            return []

    llm = NestLLM(engine=engine, source=Source(), max_tokens=2)
    llm.invoke("A prompt.")
    llm.invoke("A prompt.", query="a query")
    llm.invoke("A prompt.", query_from=str.upper)
    assert asked == ["A prompt.", "a query", "A PROMPT."]


def test_tasks_word_prompts_differently(llm: NestLLM) -> None:
    answers = {task: llm.generate([PROMPT], task=task).generations[0][0] for task in ("raw", "question", "chat")}
    assert len({a.generation_info["stats"]["prompt_tokens"] for a in answers.values()}) == 3


def test_empty_prompt(llm: NestLLM) -> None:
    with pytest.raises(PromptError):
        llm.invoke(" ")


def test_trace_parameters_and_type(llm: NestLLM) -> None:
    assert llm._llm_type == "nest"
    params = llm._get_ls_params(temperature=0.7)
    assert (params["ls_provider"], params["ls_model_type"], params["ls_temperature"]) == ("nest", "llm", 0.7)


def test_pickle(engine: NestEngine, documents: list[Document]) -> None:
    again = pickle.loads(pickle.dumps(NestLLM(engine=engine, documents=documents, mode="lossless")))
    assert (again.mode, again.model_id, again.documents) == ("lossless", engine.model.name, documents)


def test_lossless_is_the_models_own_answer(documents: list[Document]) -> None:
    engine = tiny_engine()
    prompt = documents[1].page_content[:60]
    ids = engine.model.tokenizer.prefix + engine.model.tokenizer.encode(prompt).ids
    expected = greedy(engine.model.lm, ids, 40)
    answer = NestLLM(engine=engine, documents=documents, mode="lossless", max_tokens=40).invoke(prompt)
    assert answer == engine.model.tokenizer.decode(expected)
    assert torch.get_default_dtype() == torch.float32
