"""Tool calls and structured output, decoded under a grammar: even a random model follows it."""

import asyncio
from typing import Literal

import pytest
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.base.llms.types import ChatMessage, TextBlock, ToolCallBlock
from llama_index.core.prompts import PromptTemplate
from llama_index.core.tools import FunctionTool, QueryEngineTool
from pydantic import BaseModel

from llama_index_nest import NestQueryEngine
from llama_index_nest.messages import find_question, to_engine_messages
from llama_index_nest.tools import take_request, to_tool
from nest_engine.errors import ConfigError
from tests.llama_index.test_llms import prompt_of, user
from tests.llama_index.world import COPYING, QUESTIONS, memory_index, tiny_llm

CONFIG = COPYING.replace(max_new_tokens=200)
WINDOW = {"max_position_embeddings": 4096}


def multiply(a: int, b: int) -> int:
    """Multiply two numbers."""
    return a * b


def greet(mood: Literal["glad", "sad"]) -> str:
    """Greet somebody."""
    return f"a {mood} hello"


class Loaf(BaseModel):
    """A loaf of bread."""

    kind: Literal["rye", "wheat"]
    grams: int
    salted: bool


@pytest.fixture(scope="module")
def llm():
    return tiny_llm(CONFIG, ends=True, model_arguments=WINDOW)


@pytest.fixture(scope="module")
def tools():
    return [FunctionTool.from_defaults(multiply), FunctionTool.from_defaults(greet)]


def check_call(response):
    text, *calls = response.message.blocks
    assert text == TextBlock(text="")
    assert len(calls) == 1
    (call,) = calls
    assert isinstance(call, ToolCallBlock)
    assert call.tool_name in ("multiply", "greet")
    arguments = call.tool_kwargs
    if call.tool_name == "multiply":
        assert {k: type(v) for k, v in arguments.items()} == {"a": int, "b": int}
    else:
        assert arguments["mood"] in ("glad", "sad")
    return call


class TestCalls:
    def test_a_required_call_follows_the_tools(self, llm, tools):
        response = llm.chat_with_tools(tools, "What is 3 times 4?", tool_required=True)
        call = check_call(response)
        (selection,) = llm.get_tool_calls_from_response(response)
        assert (selection.tool_name, selection.tool_kwargs) == (call.tool_name, call.tool_kwargs)
        assert selection.tool_id == call.tool_call_id
        assert response.raw["stats"]["mode"] == "lm"

    def test_a_chosen_tool(self, llm, tools):
        for choice in ("greet", {"type": "function", "function": {"name": "greet"}}):
            assert check_call(llm.chat_with_tools(tools, "Hi", tool_choice=choice)).tool_name == "greet"

    def test_streams_and_async_are_the_same(self, llm, tools):
        def key(response):
            call = check_call(response)
            return call.tool_name, call.tool_kwargs

        expected = key(llm.chat_with_tools(tools, "Hi", tool_required=True))
        items = list(llm.stream_chat_with_tools(tools, "Hi", tool_required=True))
        assert key(items[-1]) == expected
        assert "".join(item.delta for item in items) == ""

        async def run():
            one = key(await llm.achat_with_tools(tools, "Hi", tool_required=True))
            stream = await llm.astream_chat_with_tools(tools, "Hi", tool_required=True)
            return one, key([item async for item in stream][-1])

        assert asyncio.run(run()) == (expected, expected)

    def test_free_choice_of_a_babbling_model_is_text_with_citations(self, tools):
        llm = tiny_llm(CONFIG, ends=True, model_arguments=WINDOW, index=memory_index())
        response = llm.chat_with_tools(tools, QUESTIONS[0])
        assert response.additional_kwargs["citations"]
        assert not llm.get_tool_calls_from_response(response, error_on_no_tool_call=False)
        assert response.raw["stats"]["mode"] == "nest"
        with pytest.raises(ConfigError, match="called no tool"):
            llm.get_tool_calls_from_response(response)

    def test_free_choice_without_a_source(self, llm, tools):
        assert llm.chat_with_tools(tools, QUESTIONS[0]).message.content

    def test_predict_and_call(self, llm, tools):
        (output,) = llm.predict_and_call(tools, "Hi", tool_choice="greet").sources
        assert output.content in ("a glad hello", "a sad hello")

    def test_none_means_text(self, llm, tools):
        response = llm.chat([user("Hi")], tools=tools, tool_choice="none")
        assert not [b for b in response.message.blocks if isinstance(b, ToolCallBlock)]


class TestPrompts:
    def test_tools_are_introduced_in_the_system_message(self, llm, tools):
        messages = [ChatMessage(role="system", content="Be brief."), user("Hi")]
        prompt = prompt_of(llm, lambda: llm.chat(messages, tools=tools, tool_choice="any"))
        system, rest = prompt.split("<|im_end|>", 1)
        assert "Be brief." in system
        assert "Multiply two numbers." in system
        assert "<tool_call>" in system
        assert "multiply" not in rest

    def test_calls_and_results_become_turns(self):
        block = ToolCallBlock(tool_call_id="1", tool_name="multiply", tool_kwargs={"a": 3, "b": 4})
        messages = [
            user("3 times 4?"),
            ChatMessage(role="assistant", blocks=[TextBlock(text=""), block]),
            ChatMessage(role="tool", content="12"),
            ChatMessage(role="tool", content="and more"),
        ]
        turns = to_engine_messages(messages)
        assert [t["role"] for t in turns] == ["user", "assistant", "user"]
        assert '{"name": "multiply", "arguments": {"a": 3, "b": 4}}' in turns[1]["content"]
        assert turns[2]["content"].count("<tool_response>") == 2
        native = to_engine_messages(messages, native_tools=True)
        assert [(t["role"], t["content"]) for t in native[2:]] == [("tool", "12"), ("tool", "and more")]
        assert find_question(messages) == "3 times 4?"

    def test_tools_in_every_form(self, tools):
        written = {"type": "function", "function": {"name": "greet", "description": "d", "parameters": {}}}
        assert to_tool(written).name == to_tool(written["function"]).name == "greet"
        assert to_tool(tools[0]).parameters["properties"].keys() == {"a", "b"}
        assert to_tool(to_tool(written)).description == "d"
        for bad in ("greet", {"function": {}}, 3):
            with pytest.raises(ConfigError, match="a tool must be"):
                to_tool(bad)
        with pytest.raises(ConfigError, match="tool_choice must be"):
            take_request({"tools": tools, "tool_choice": 3})


class TestStructuredOutput:
    def test_structured_predict(self, llm):
        template = PromptTemplate("Think of a loaf for {who}.")
        loaf = llm.structured_predict(Loaf, template, who="Ada")
        assert isinstance(loaf, Loaf)
        assert asyncio.run(llm.astructured_predict(Loaf, template, who="Ada")) == loaf
        assert list(llm.stream_structured_predict(Loaf, template, who="Ada"))[-1] == loaf

        async def run():
            return [item async for item in await llm.astream_structured_predict(Loaf, template, who="Ada")][-1]

        assert asyncio.run(run()) == loaf

    def test_structured_llm(self, llm):
        response = llm.as_structured_llm(Loaf).chat([user("Think of a loaf.")])
        assert isinstance(response.raw, Loaf)
        assert Loaf.model_validate_json(response.message.content) == response.raw


def test_function_agent_ends(llm, tools):
    """A random model babbles behind its first call, which is forced: the agent runs the tool and ends."""

    async def run():
        agent = FunctionAgent(tools=tools, llm=llm, initial_tool_choice="greet")
        return await agent.run("Greet me.")

    result = asyncio.run(run())
    assert str(result.tool_calls[0].tool_output.content) in ("a glad hello", "a sad hello")
    assert str(result)


def test_function_agent_gets_citations_from_the_query_engine(llm):
    index = memory_index()
    tool = QueryEngineTool.from_defaults(NestQueryEngine.from_args(index, llm=llm), name="places")

    async def run():
        return await FunctionAgent(tools=[tool], llm=llm, initial_tool_choice="places").run(QUESTIONS[0])

    output = asyncio.run(run()).tool_calls[0].tool_output
    assert "citations" in output.raw_output.metadata


def test_without_llguidance_it_is_no_function_calling_model(llm, monkeypatch):
    monkeypatch.setattr("llama_index_nest.llms.can_call_tools", lambda: False)
    assert not llm.metadata.is_function_calling_model
    monkeypatch.undo()
    assert llm.metadata.is_function_calling_model
    assert not tiny_llm(model_arguments={"chat_template": None}).metadata.is_function_calling_model
