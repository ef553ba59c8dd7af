"""ChatNest: answers, citations, streams, settings, errors."""

from __future__ import annotations

import copy
import logging
import pickle
from dataclasses import replace
from typing import Any

import pytest
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, AIMessageChunk, ChatMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.prompts import ChatPromptTemplate

from langchain_nest import ChatNest, cited_documents, message_citations
from langchain_nest.citations import CitationWriter
from langchain_nest.documents import to_passages
from langchain_nest.messages import add_to_system, attached_documents, last_question, to_messages
from langchain_nest.models import SETTINGS
from nest_engine import Citation, NestConfig, NestEngine, Passage
from nest_engine.errors import ConfigError, ContextOverflowError, PromptError
from nest_engine.retrieval.source import ListSource
from tests.langchain.helpers import check_citations, text_and_citations, without_times
from tests.tiny import tiny_engine

QUESTION = "What does the raise statement do?"


@pytest.fixture
def model(engine: NestEngine, documents: list[Document]) -> ChatNest:
    return ChatNest(engine=engine, documents=documents)


def merged(model: Any, prompt: Any, **arguments: Any) -> AIMessageChunk:
    chunks = list(model.stream(prompt, **arguments))
    assert chunks[-1].chunk_position == "last"
    assert all(chunk.chunk_position is None for chunk in chunks[:-1])
    full = chunks[0]
    for chunk in chunks[1:]:
        full = full + chunk
    return full


def assert_equal(streamed: AIMessage, whole: AIMessage) -> None:
    assert streamed.content == whole.content
    assert streamed.additional_kwargs == whole.additional_kwargs
    assert streamed.usage_metadata == whole.usage_metadata
    assert without_times(streamed.response_metadata) == without_times(whole.response_metadata)


class TestCitations:
    def test_standard_form(self, model: ChatNest, documents: list[Document]) -> None:
        message = model.invoke(QUESTION)
        text, citations = text_and_citations(message)
        assert citations
        assert [block["type"] for block in message.content_blocks] == ["text"]
        assert {c["type"] for c in citations} == {"citation"}
        check_citations(text, citations, cited_documents(message), documents)

    def test_every_script(self, engine: NestEngine, documents: list[Document]) -> None:
        message = ChatNest(engine=engine, documents=[documents[2]]).invoke("café?")
        text, citations = text_and_citations(message)
        assert citations
        assert "漢字 and 🇫🇷" in "".join(c["cited_text"] for c in citations)
        check_citations(text, citations, cited_documents(message), documents)

    def test_title_url_and_place_in_the_document(self, engine: NestEngine, documents: list[Document]) -> None:
        message = ChatNest(engine=engine, documents=[documents[0]]).invoke(QUESTION)
        citation = message_citations(message)[0]
        assert citation["title"] == "The with statement"
        assert citation["url"] == "https://example.org/compound"
        assert citation["extras"]["document_start"] == 100 + citation["extras"]["source_start"]

    def test_unknown_place_in_the_document(self, engine: NestEngine, documents: list[Document]) -> None:
        message = ChatNest(engine=engine, documents=[documents[1]]).invoke(QUESTION)
        extras = message_citations(message)[0]["extras"]
        assert "document_start" not in extras  # the splitter said -1
        assert "url" not in message_citations(message)[0]  # a file is no url

    def test_metadata_comes_back(self, engine: NestEngine, documents: list[Document]) -> None:
        message = ChatNest(engine=engine, documents=[documents[3]]).invoke(QUESTION)
        (document,) = cited_documents(message)
        assert document.metadata == {"page": 3}
        assert document.id  # made from the content, as the document has none
        assert message.response_metadata["source_ids"] == [document.id]

    def test_only_what_was_copied(self, model: ChatNest) -> None:
        message = model.invoke(QUESTION, max_tokens=8)
        assert len(cited_documents(message)) < 4
        assert message.response_metadata["stats"]["passages"] == 4

    def test_nothing_copied_no_sources(self, model: ChatNest) -> None:
        message = model.invoke(QUESTION, mode="lm")
        assert message_citations(message) == []
        assert cited_documents(message) == []
        assert message.response_metadata["source_documents"] == []

    def test_without_sources_the_content_is_plain_text(self, engine: NestEngine) -> None:
        message = ChatNest(engine=engine).invoke(QUESTION)
        assert isinstance(message.content, str)
        assert cited_documents(message) == []

    def test_a_store_that_repeats_ids(self) -> None:
        twins = [Document("Apples and pears.", id="x"), Document("Another text, on cars.", id="x")]
        writer = CitationWriter(to_passages(twins))
        citation = Citation(1, "copied", 0, 4, "x", "x", "", 17, 21, None, "cars")
        assert writer.add([citation])[0]["extras"]["source_index"] == 0
        assert writer.documents == [twins[1]]
        with pytest.raises(LookupError):
            writer.add([replace(citation, text="ants")])

    def test_blank_documents_are_left_out(self, engine: NestEngine, documents: list[Document], caplog: Any) -> None:
        model = ChatNest(engine=engine, documents=[Document("  \n", id="blank"), documents[0]])
        assert [d.id for d in cited_documents(model.invoke(QUESTION))] == ["with"]
        assert "blank" in caplog.text

    def test_messages_of_other_models(self) -> None:
        assert cited_documents(AIMessage("hello")) == []
        assert message_citations(AIMessage("hello")) == []
        assert message_citations(HumanMessage("hello")) == []


class TestStreams:
    def test_merged_stream_equals_invoke(self, model: ChatNest) -> None:
        assert_equal(merged(model, QUESTION), model.invoke(QUESTION))

    def test_merged_stream_equals_invoke_without_sources(self, engine: NestEngine) -> None:
        model = ChatNest(engine=engine)
        assert_equal(merged(model, QUESTION), model.invoke(QUESTION))

    async def test_async_equals_sync(self, model: ChatNest) -> None:
        whole = model.invoke(QUESTION)
        assert_equal(await model.ainvoke(QUESTION), whole)
        full = None
        async for chunk in model.astream(QUESTION):
            full = chunk if full is None else full + chunk
        assert full is not None
        assert_equal(full, whole)

    def test_comes_in_pieces(self, model: ChatNest) -> None:
        chunks = list(model.stream(QUESTION))
        assert len(chunks) > 10
        assert all(chunk.usage_metadata is None for chunk in chunks[:-1])

    def test_events_v3(self, model: ChatNest) -> None:
        stream = model.stream_events(QUESTION, version="v3")
        assert list(stream)
        whole = model.invoke(QUESTION)
        assert stream.output.text == whole.text
        assert message_citations(stream.output) == message_citations(whole)
        assert cited_documents(stream.output) == cited_documents(whole)

    async def test_events_v2(self, model: ChatNest) -> None:
        events = [event async for event in model.astream_events(QUESTION, version="v2")]
        ends = [event for event in events if event["event"] == "on_chat_model_end"]
        assert len(ends) == 1
        assert_equal(ends[0]["data"]["output"], model.invoke(QUESTION))
        assert sum(event["event"] == "on_chat_model_stream" for event in events) > 10

    def test_output_version_v1(self, engine: NestEngine, documents: list[Document]) -> None:
        model = ChatNest(engine=engine, documents=documents, output_version="v1")
        whole = model.invoke(QUESTION)
        full = merged(model, QUESTION)
        assert message_citations(full) == message_citations(whole)
        assert full.text == whole.text

    def test_streaming_field(self, engine: NestEngine, documents: list[Document]) -> None:
        model = ChatNest(engine=engine, documents=documents, streaming=True)
        assert_equal(model.invoke(QUESTION), ChatNest(engine=engine, documents=documents).invoke(QUESTION))


class TestSettings:
    @pytest.mark.parametrize("name", SETTINGS)
    def test_every_setting_is_taken(self, engine: NestEngine, name: str, caplog: pytest.LogCaptureFixture) -> None:
        value = getattr(NestConfig(gamma=0.123, seed=3, stop=("x",)), name)
        model = ChatNest(engine=engine, **{name: value})
        assert caplog.text == ""
        if value is not None:
            taken = model._settings()[name]
            assert (tuple(taken) if name == "stop" else taken) == value

    def test_by_constructor_bind_and_invoke(self, engine: NestEngine, documents: list[Document]) -> None:
        made = ChatNest(engine=engine, documents=documents, max_tokens=5).invoke(QUESTION)
        plain = ChatNest(engine=engine, documents=documents)
        assert made.usage_metadata["output_tokens"] == 5
        assert plain.bind(max_tokens=5).invoke(QUESTION).content == made.content
        assert plain.invoke(QUESTION, max_tokens=5).content == made.content
        assert plain.invoke(QUESTION, max_new_tokens=5).content == made.content
        assert plain.invoke(QUESTION, nest_config=NestConfig(max_new_tokens=5)).usage_metadata["output_tokens"] == 5

    def test_finish_reason(self, engine: NestEngine, documents: list[Document]) -> None:
        model = ChatNest(engine=engine, documents=documents)
        assert model.invoke(QUESTION, max_tokens=5).response_metadata["finish_reason"] == "length"
        assert model.invoke(QUESTION, stop=["s"]).response_metadata["finish_reason"] == "stop"

    def test_stop_is_a_string_and_not_part_of_the_answer(self, engine: NestEngine, documents: list[Document]) -> None:
        model = ChatNest(engine=engine, documents=documents)
        text = model.invoke(QUESTION).text
        stop = text[10:14]
        cut = model.invoke(QUESTION, stop=[stop])
        assert cut.text == text[: text.index(stop)]
        assert ChatNest(engine=engine, documents=documents, stop=[stop]).invoke(QUESTION).text == cut.text
        assert merged(model, QUESTION, stop=[stop]).text == cut.text
        check_citations(*text_and_citations(cut), cited_documents(cut), documents)

    def test_seed_and_temperature(self, engine: NestEngine) -> None:
        model = ChatNest(engine=engine, temperature=1.0, seed=1)
        assert model.invoke(QUESTION).text == model.invoke(QUESTION).text
        assert model.invoke(QUESTION, seed=2).text != model.invoke(QUESTION).text
        assert model.invoke(QUESTION, temperature=0.0).text == ChatNest(engine=engine).invoke(QUESTION).text

    @pytest.mark.parametrize(
        "wrong", [{"gamma": 2.0}, {"mode": "best"}, {"stop": [""]}, {"device": 0, "device_map": "auto"}]
    )
    def test_wrong_settings_are_refused_when_made(self, engine: NestEngine, wrong: dict[str, Any]) -> None:
        with pytest.raises(ConfigError):
            ChatNest(engine=engine, **wrong)

    def test_wrong_settings_are_refused_at_the_call(self, model: ChatNest) -> None:
        with pytest.raises(ConfigError, match="gamma"):
            model.invoke(QUESTION, gamma=2.0)
        with pytest.raises(ConfigError, match="did you mean temperature"):
            model.invoke(QUESTION, temprature=0.5)

    def test_no_model(self) -> None:
        with pytest.raises(ConfigError, match="model_id"):
            ChatNest()

    def test_two_sources(self, engine: NestEngine, documents: list[Document]) -> None:
        with pytest.raises(ConfigError, match="not documents and source"):
            ChatNest(engine=engine, documents=documents, source=ListSource([Passage("text")]))

    def test_misspelled_field_is_warned_of(self, engine: NestEngine, caplog: pytest.LogCaptureFixture) -> None:
        with caplog.at_level(logging.WARNING):
            ChatNest(engine=engine, temprature=0.5, timeout=60, max_retries=2, api_key="x")
        assert "did you mean temperature" in caplog.text
        assert "max_retries" not in caplog.text

    def test_names_of_hugging_face_pipeline(self) -> None:
        model = ChatNest.from_model_id(
            "somewhere", task="text-generation", device=-1, model_kwargs={"a": 1}, pipeline_kwargs={"max_new_tokens": 7}
        )
        assert (model.model_id, model.device, model.model_kwargs, model.max_tokens) == ("somewhere", -1, {"a": 1}, 7)

    def test_model_override(self, engine: NestEngine) -> None:
        with pytest.raises(Exception, match="no model 'nowhere/at/all'"):
            ChatNest(engine=engine).invoke(QUESTION, model="nowhere/at/all")


class TestPrompts:
    def test_per_call_documents_replace_the_models(self, model: ChatNest, documents: list[Document]) -> None:
        other = Document("Something else entirely, about trains and stations.", id="other")
        assert {d.id for d in cited_documents(model.invoke(QUESTION, documents=[other]))} == {"other"}

    def test_no_documents_is_no_sources(self, model: ChatNest, caplog: pytest.LogCaptureFixture) -> None:
        message = model.invoke(QUESTION, documents=[])
        assert cited_documents(message) == []
        assert "no passages" in caplog.text

    def test_query(self, engine: NestEngine) -> None:
        asked: list[str] = []

        class Source:
            def search(self, query: str, k: int) -> list[Any]:
                asked.append(query)
                return []

        history = [SystemMessage("Be brief."), HumanMessage("First?"), AIMessage("Yes."), HumanMessage("And then?")]
        model = ChatNest(engine=engine, source=Source(), max_tokens=2)
        model.invoke(history)
        model.invoke(history, query="what then")
        model.invoke(history, query_from=lambda messages: messages[1].text)
        ChatNest(engine=engine, source=Source(), query_from=lambda m: f"{len(m)} messages", max_tokens=2).invoke(
            history
        )
        assert asked == ["And then?", "what then", "First?", "4 messages"]

    def test_history_changes_the_answer(self, engine: NestEngine) -> None:
        model = ChatNest(engine=engine)
        alone = model.invoke([HumanMessage("And then?")])
        assert model.invoke([HumanMessage("A"), AIMessage("B"), HumanMessage("And then?")]).text != alone.text
        assert model.invoke([SystemMessage("S"), HumanMessage("And then?")]).text != alone.text

    def test_roles(self) -> None:
        turns = to_messages([
            SystemMessage("s"), HumanMessage(["a", {"type": "text", "text": "b"}]), ChatMessage("c", role="developer"),
            AIMessage("", tool_calls=[{"name": "f", "args": {"x": "é"}, "id": "1"}]),
            ToolMessage("r1", tool_call_id="1"), ToolMessage([{"type": "text", "text": "r2"}], tool_call_id="2"),
        ])  # fmt: skip
        assert [turn["role"] for turn in turns] == ["system", "user", "system", "assistant", "user"]
        assert turns[1]["content"] == "ab"
        assert '"arguments": {"x": "é"}' in turns[3]["content"]
        assert "r1" in turns[4]["content"]
        assert "r2" in turns[4]["content"]

    def test_native_tool_role(self) -> None:
        assert to_messages([ToolMessage("r", tool_call_id="1")], native_tools=True)[0] == {
            "role": "tool",
            "content": "r",
        }

    def test_images_are_refused(self, model: ChatNest) -> None:
        image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,"}}
        with pytest.raises(PromptError, match="image_url"):
            model.invoke([HumanMessage([{"type": "text", "text": "What is this?"}, image])])

    def test_empty_prompts(self, model: ChatNest) -> None:
        with pytest.raises(PromptError):
            model.invoke("   ")
        with pytest.raises(PromptError, match="no messages"):
            model.invoke([])

    def test_prompt_beyond_the_window(self, model: ChatNest) -> None:
        with pytest.raises(ContextOverflowError, match="shorten the prompt"):
            model.invoke("word " * 3000)

    def test_question_of_messages(self) -> None:
        assert last_question([SystemMessage("s"), HumanMessage(" q "), AIMessage("a")]) == "q"
        assert last_question([AIMessage("a")]) == "a"
        assert last_question([HumanMessage(" ")]) == ""

    def test_system_message_is_made_or_extended(self) -> None:
        assert add_to_system([{"role": "user", "content": "q"}], "t")[0] == {"role": "system", "content": "t"}
        assert add_to_system([{"role": "system", "content": "s"}], "t") == [{"role": "system", "content": "s\n\nt"}]

    def test_documents_of_tool_messages(self, engine: NestEngine, documents: list[Document]) -> None:
        messages = [
            HumanMessage("old"), ToolMessage("x", tool_call_id="0", artifact=[documents[2]]), HumanMessage(QUESTION),
            AIMessage("", tool_calls=[{"name": "search", "args": {}, "id": "1"}]),
            ToolMessage("x", tool_call_id="1", artifact=[documents[0]]),
        ]  # fmt: skip
        assert attached_documents(messages) == [documents[0]]
        assert {d.id for d in cited_documents(ChatNest(engine=engine).invoke(messages))} == {"with"}

    def test_prompt_templates(self, model: ChatNest) -> None:
        chain = ChatPromptTemplate.from_messages([("system", "Be brief."), ("human", "{q}")]) | model
        assert cited_documents(chain.invoke({"q": QUESTION}))


class TestModelObject:
    def test_pickle_is_the_configuration(self, engine: NestEngine, documents: list[Document]) -> None:
        model = ChatNest(engine=engine, documents=documents, gamma=0.25)
        again = pickle.loads(pickle.dumps(model))
        assert again.engine is None
        assert again.model_id == engine.model.name
        assert again.nest_config == engine.config
        assert again.gamma == 0.25
        assert again.documents == documents
        assert model.engine is engine

    def test_copies_share_the_engine(self, model: ChatNest) -> None:
        for other in (copy.copy(model), copy.deepcopy(model), model.model_copy()):
            assert other.engine is model.engine
            assert other.invoke(QUESTION).content == model.invoke(QUESTION).content

    def test_usage_and_token_counts(self, model: ChatNest) -> None:
        usage = model.invoke(QUESTION).usage_metadata
        assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
        assert usage["input_tokens"] == model.get_num_tokens_from_messages([HumanMessage(QUESTION)])
        assert model.get_num_tokens("é🙂") == len(model.load().model.tokenizer.encode("é🙂").ids)
        assert model.get_token_ids("abc") == model.load().model.tokenizer.encode("abc").ids

    def test_trace_parameters(self, engine: NestEngine) -> None:
        model = ChatNest(engine=engine, temperature=0.5, max_tokens=9, stop=["x"])
        assert model._get_ls_params() == {
            "ls_provider": "nest", "ls_model_name": engine.model.name, "ls_model_type": "chat",
            "ls_temperature": 0.5, "ls_max_tokens": 9, "ls_stop": ["x"],
        }  # fmt: skip
        assert model._get_ls_params(stop=["y"], temperature=0.0)["ls_temperature"] == 0.0

    def test_versions_in_metadata(self, model: ChatNest) -> None:
        assert "nest-rag" in model.metadata["lc_versions"]

    def test_batch(self, model: ChatNest) -> None:
        questions = [QUESTION, "And the with statement?", "Größe?"]
        assert [m.content for m in model.batch(questions)] == [model.invoke(q).content for q in questions]

    def test_two_streams_in_turn(self, model: ChatNest) -> None:
        pairs = list(zip(model.stream(QUESTION), model.stream("And the with statement?"), strict=False))
        assert len(pairs) > 5

    def test_engine_of_its_own_key_layer(self, documents: list[Document]) -> None:
        engine = tiny_engine(config=NestConfig(max_new_tokens=8, key_layer=1))
        assert ChatNest(engine=engine, documents=documents, nest_config=NestConfig(max_new_tokens=8)).invoke(QUESTION)
