"""Tool calls and structured output under a grammar, on a random model: what it writes is valid all the same."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from langchain_core.documents import Document
from langchain_core.exceptions import OutputParserException
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from pydantic import BaseModel, Field
from typing_extensions import TypedDict

from langchain_nest import ChatNest, cited_documents
from langchain_nest.tools import read_choice
from nest_engine import NestConfig, NestEngine
from nest_engine.constrained import CallScanner, GrammarProcessor, Tool, call_grammar, constrain, json_grammar
from nest_engine.constrained.grammar import close_objects
from nest_engine.errors import ConfigError
from nest_engine.generation import Generation
from tests.langchain.helpers import without_times
from tests.tiny import CHATML, tiny_engine

QUESTION = "What does the raise statement do?"
NATIVE = "{% if tools %}{{ '<tools>' + (tools | tojson) + '</tools> <tool_call>' }}{% endif %}" + CHATML


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool
def search(text: str) -> str:
    """Search the documents."""
    return text


class Person(BaseModel):
    """A person."""

    name: str = Field(description="the full name")
    age: int = Field(ge=0, le=150)
    tags: list[str] = []
    nick: str | None = None


@pytest.fixture(scope="module")
def engine() -> NestEngine:
    return tiny_engine(config=NestConfig(max_new_tokens=160))


@pytest.fixture
def model(engine: NestEngine) -> ChatNest:
    return ChatNest(engine=engine)


class TestCalls:
    @pytest.mark.parametrize(
        "choice", ["any", "required", True, "add", {"type": "function", "function": {"name": "add"}}]
    )
    def test_forced(self, model: ChatNest, choice: Any) -> None:
        message = model.bind_tools([add, search], tool_choice=choice).invoke(QUESTION)
        (call,) = message.tool_calls
        assert call["name"] in ("add", "search")
        if call["name"] == "add":
            assert {type(value) for value in call["args"].values()} == {int}
            assert set(call["args"]) == {"a", "b"}
        assert call["id"].startswith("call_")
        assert message.text == ""
        assert message.response_metadata["finish_reason"] == "tool_calls"
        assert message.response_metadata["stats"]["mode"] == "lm"

    def test_by_name(self, model: ChatNest) -> None:
        for name in ("add", "search"):
            (call,) = model.bind_tools([add, search], tool_choice=name).invoke(QUESTION).tool_calls
            assert call["name"] == name

    @pytest.mark.parametrize("limit", [50, 60, 90])
    def test_complete_within_the_token_limit(self, model: ChatNest, limit: int) -> None:
        message = model.bind_tools([search], tool_choice="any").invoke(QUESTION, max_tokens=limit + 30)
        assert message.invalid_tool_calls == []
        assert len(message.tool_calls) == 1

    def test_cut_off(self, model: ChatNest) -> None:
        message = model.bind_tools([search], tool_choice="any").invoke(QUESTION, max_tokens=20)
        assert message.tool_calls == []
        assert len(message.invalid_tool_calls) == 1

    def test_stream_adds_up(self, model: ChatNest) -> None:
        bound = model.bind_tools([add], tool_choice="any")
        full = None
        for chunk in bound.stream(QUESTION):
            full = chunk if full is None else full + chunk
        whole = bound.invoke(QUESTION)
        assert full.content == whole.content
        assert [(c["name"], c["args"]) for c in full.tool_calls] == [(c["name"], c["args"]) for c in whole.tool_calls]
        assert without_times(full.response_metadata) == without_times(whole.response_metadata)
        assert [block["type"] for block in whole.content_blocks if block["type"] != "text"] == ["tool_call"]

    async def test_async(self, model: ChatNest) -> None:
        bound = model.bind_tools([add], tool_choice="any")
        first, second = await bound.ainvoke(QUESTION), bound.invoke(QUESTION)
        assert first.tool_calls[0]["args"] == second.tool_calls[0]["args"]
        assert first.tool_calls[0]["id"] != second.tool_calls[0]["id"]

    def test_none_is_text(self, model: ChatNest) -> None:
        message = model.bind_tools([add], tool_choice="none").invoke(QUESTION)
        assert message.tool_calls == []

    def test_auto_text_is_nest_and_cited(self, engine: NestEngine, documents: list[Document]) -> None:
        model = ChatNest(engine=engine, documents=documents).bind_tools([add])
        message = model.invoke(QUESTION)
        assert message.tool_calls == []
        assert message.response_metadata["stats"]["mode"] == "nest"
        assert cited_documents(message)

    def test_auto_call_beside_documents(self, engine: NestEngine, documents: list[Document], monkeypatch: Any) -> None:
        # The random model would write text: lead it into a call.
        monkeypatch.setattr("langchain_nest.tools.call_grammar", lambda tools, choice, **kw: grammar_that_calls(tools))
        message = ChatNest(engine=engine, documents=documents).bind_tools([add]).invoke(QUESTION)
        assert [call["name"] for call in message.tool_calls] == ["add"]
        assert cited_documents(message) == []

    def test_results_come_back_to_the_model(self, model: ChatNest) -> None:
        asked = [
            HumanMessage(QUESTION),
            AIMessage("", tool_calls=[{"name": "add", "args": {"a": 1, "b": 2}, "id": "1"}]),
        ]
        bound = model.bind_tools([add])
        three = bound.invoke([*asked, ToolMessage("3", tool_call_id="1")])
        assert three.text != bound.invoke([*asked, ToolMessage("4", tool_call_id="1")]).text

    def test_native_templates_get_the_tools(self) -> None:
        native = ChatNest(engine=tiny_engine(chat_template=NATIVE, config=NestConfig(max_new_tokens=120)))
        tokenizer = native.load().model.tokenizer
        assert tokenizer.template_calls_tools
        with_tools = native.get_num_tokens_from_messages([HumanMessage("a")], [add])
        assert with_tools > native.get_num_tokens_from_messages([HumanMessage("a")]) + 50
        assert native.bind_tools([add], tool_choice="any").invoke(QUESTION).tool_calls

    def test_mistakes(self, model: ChatNest) -> None:
        with pytest.raises(ConfigError, match="no tool 'sub'"):
            model.bind_tools([add], tool_choice="sub")
        with pytest.raises(ConfigError, match="needs tools"):
            model.invoke(QUESTION, tool_choice="any")
        with pytest.raises(ConfigError, match="same name"):
            model.bind_tools([add, add]).invoke(QUESTION)
        with pytest.raises(ConfigError, match="no tool that LangChain knows"):
            model.bind_tools([3])
        with pytest.raises(ConfigError, match="response_format"):
            model.invoke(QUESTION, response_format={"type": "xml"})
        with pytest.raises(ConfigError):
            read_choice(3.5)

    def test_without_llguidance(self, model: ChatNest, monkeypatch: pytest.MonkeyPatch) -> None:
        import sys

        monkeypatch.setitem(sys.modules, "llguidance", None)
        monkeypatch.setattr("nest_engine.constrained.processor._vocabularies", {})
        with pytest.raises(ConfigError, match=r"nest-rag\[tools\]"):
            model.bind_tools([add], tool_choice="any").invoke(QUESTION)


def grammar_that_calls(tools: Any) -> Any:
    from dataclasses import replace

    return replace(call_grammar(tools, "any"), allows_text=True)


class TestStructuredOutput:
    @pytest.mark.parametrize("method", ["json_schema", "function_calling", "json_mode"])
    def test_pydantic(self, model: ChatNest, method: Any) -> None:
        person = model.with_structured_output(Person, method=method).invoke("Who?")
        assert isinstance(person, Person)

    def test_typed_dict_and_schema(self, model: ChatNest) -> None:
        class Pair(TypedDict):
            """A pair."""

            left: int
            right: bool

        pair = model.with_structured_output(Pair).invoke("Which?")
        assert set(pair) == {"left", "right"}
        person = model.with_structured_output(Person.model_json_schema()).invoke("Who?")
        assert set(person) <= {"name", "age", "tags", "nick"}

    def test_raw(self, model: ChatNest, engine: NestEngine) -> None:
        result = model.with_structured_output(Person, include_raw=True).invoke("Who?")
        assert isinstance(result["parsed"], Person)
        assert result["parsing_error"] is None
        assert json.loads(result["raw"].text)

    def test_cut_off(self, engine: NestEngine) -> None:
        class Note(BaseModel):
            text: str

        short = ChatNest(engine=engine, max_tokens=3)
        cut = short.with_structured_output(Note, include_raw=True).invoke("Who?")
        assert cut["parsed"] is None
        assert isinstance(cut["parsing_error"], OutputParserException)

    async def test_async_and_stream(self, model: ChatNest) -> None:
        structured = model.with_structured_output(Person)
        person = structured.invoke("Who?")
        assert await structured.ainvoke("Who?") == person
        assert list(structured.stream("Who?"))[-1] == person

    def test_documents_can_be_read_but_not_copied(self, engine: NestEngine, documents: list[Document]) -> None:
        model = ChatNest(engine=engine, documents=documents, mode="ra")
        result = model.with_structured_output(Person, include_raw=True).invoke("Who?")
        assert result["raw"].response_metadata["stats"]["mode"] == "ra"
        assert isinstance(result["parsed"], Person)

    def test_unknown_method(self, model: ChatNest) -> None:
        with pytest.raises(ConfigError, match="json_mode"):
            model.with_structured_output(Person, method="xml")


class TestProcessor:
    """The engine's part, by itself."""

    def processor(self, engine: NestEngine, limit: int = 100) -> GrammarProcessor:
        return GrammarProcessor(json_grammar({"type": "string"}), engine.model, limit)

    def allowed(self, processor: GrammarProcessor, engine: NestEngine, text: str) -> set[str]:
        ids = [7, 7, 7, *engine.model.tokenizer.encode(text).ids]
        width = engine.model.lm.open().read([1]).logits.shape[-1]
        logits = processor(torch.tensor([ids]), torch.zeros(1, width))[0]
        found = (logits > float("-inf")).nonzero().flatten().tolist()
        return {"END" if i in engine.model.lm.end_ids else engine.model.tokenizer.decode([i]) for i in found}

    def test_a_function_of_the_tokens(self, engine: NestEngine) -> None:
        processor = self.processor(engine)
        start = self.allowed(processor, engine, "")
        assert all(text.startswith('"') for text in start)
        inside = self.allowed(processor, engine, '"a')
        assert "END" not in inside
        assert self.allowed(processor, engine, '"a"') == {"END"}
        # Back again, and sideways: as if it had never been elsewhere.
        assert self.allowed(processor, engine, '"a') == inside
        assert self.allowed(processor, engine, '"bcd"') == {"END"}
        assert self.allowed(processor, engine, "") == start

    def test_a_guess_that_the_grammar_forbids(self, engine: NestEngine) -> None:
        processor = self.processor(engine)
        self.allowed(processor, engine, "")
        assert "a" in self.allowed(processor, engine, "no string at all")  # unmasked: the row is never used
        assert self.allowed(processor, engine, '"a"') == {"END"}

    def test_the_end_of_the_limit(self, engine: NestEngine) -> None:
        processor = self.processor(engine, limit=12)
        self.allowed(processor, engine, "")
        assert self.allowed(processor, engine, '"abcdefghi') == {'"'}

    def test_what_the_grammar_leaves_no_choice_about_is_read_ahead(
        self, engine: NestEngine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def answer() -> Generation:
            grammar = call_grammar([Tool("weather_of_a_city", parameters=Person.model_json_schema())], "any")
            processor = GrammarProcessor(grammar, engine.model, 120)
            return engine.generate("a", logits_processors=[processor], mode="lm", max_new_tokens=120)

        ahead = answer()
        monkeypatch.setattr(GrammarProcessor, "foresee", lambda self, tokens: ())
        plain = answer()
        assert ahead.text == plain.text
        assert plain.stats.drafted == 0
        assert ahead.stats.accepted > 10
        assert ahead.stats.lm_calls == plain.stats.lm_calls - ahead.stats.accepted

    def test_settings(self) -> None:
        assert constrain(NestConfig(mode="nest", stop=("x",))).mode == "lm"
        assert constrain(NestConfig(mode="ra-nest")).mode == "ra"
        assert constrain(NestConfig(stop=("x",))).stop == ()

    def test_unusable_schema(self, engine: NestEngine) -> None:
        with pytest.raises(ConfigError, match="cannot be followed"):
            engine.generate(
                "a",
                logits_processors=[GrammarProcessor(json_grammar({"type": "nonsense"}), engine.model, 9)],
                mode="lm",
            )

    def test_objects_are_closed(self) -> None:
        schema = {
            "properties": {"properties": {"type": "string"}, "inner": {"properties": {}, "additionalProperties": True}},
            "enum": [{"properties": 1}],
        }
        closed = close_objects(schema)
        assert closed["additionalProperties"] is False
        assert "additionalProperties" not in closed["properties"]
        assert closed["properties"]["inner"]["additionalProperties"] is True
        assert closed["enum"] == [{"properties": 1}]

    def test_several_calls_and_answers(self, engine: NestEngine) -> None:
        assert "MORE" in call_grammar([Tool("f")], several=True).lark
        assert "MORE" not in call_grammar([Tool("f")]).lark
        with_answer = call_grammar([Tool("f")], answer={"type": "object"})
        assert not with_answer.allows_text
        text = engine.generate(
            "a", logits_processors=[GrammarProcessor(with_answer, engine.model, 120)], mode="lm", max_new_tokens=120
        ).text
        assert text.startswith(("{", "<tool_call>"))


class TestScanner:
    def scan(self, text: str, size: int) -> tuple[str, list[Any]]:
        scanner, shown = CallScanner(), ""
        for start in range(0, len(text), size):
            shown += scanner.add(text[start : start + size])[0]
        return shown + scanner.finish()[0], scanner.calls

    @pytest.mark.parametrize("size", [1, 3, 1000])
    def test_text_and_calls(self, size: int) -> None:
        one = '<tool_call>\n{"name": "f", "arguments": {"a": "<tool"}}\n</tool_call>'
        text, calls = self.scan(f"Let me see. < {one}\n{one}\n", size)
        assert text == "Let me see. < "
        assert [(c.name, c.arguments) for c in calls] == [("f", {"a": "<tool"})] * 2

    def test_half_a_mark_is_text(self) -> None:
        assert self.scan("a <tool_ca", 1) == ("a <tool_ca", [])

    @pytest.mark.parametrize(
        "broken", ['{"name": "f"', "[]", '{"name": 1, "arguments": {}}', '{"name": "f", "arguments": 3}']
    )
    def test_what_cannot_be_read(self, broken: str) -> None:
        _, (call,) = self.scan(f"<tool_call>{broken}", 4)
        assert not call.is_valid
        assert call.text == broken
