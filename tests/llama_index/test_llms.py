import asyncio
import copy
import json
import pickle
import threading
import time

import pytest
import torch
from llama_index.core.base.llms.generic_utils import messages_to_history_str
from llama_index.core.base.llms.types import (
    ChatMessage,
    CitationBlock,
    ImageBlock,
    MessageRole,
    TextBlock,
)
from llama_index.core.callbacks import CallbackManager, TokenCountingHandler
from llama_index.core.instrumentation import get_dispatcher
from llama_index.core.instrumentation.event_handlers import BaseEventHandler
from llama_index.core.instrumentation.events.llm import LLMChatEndEvent, LLMCompletionEndEvent
from llama_index.core.schema import NodeWithScore, TextNode

from llama_index_nest import NestLLM
from nest_engine import NestConfig, Passage
from nest_engine.errors import ConfigError, ModelNotFoundError, NestError, PromptError
from nest_engine.retrieval.source import ListSource
from tests.llama_index.world import COPYING, QUESTIONS, assert_verbatim, memory_index, split_nodes, tiny_llm
from tests.tiny import greedy, save_tiny, tiny_engine, tiny_model, tiny_tokenizer

QUESTION = QUESTIONS[0]


@pytest.fixture(scope="module")
def index():
    return memory_index()


@pytest.fixture(scope="module")
def llm(index):
    return tiny_llm(index=index)


def user(text):
    return ChatMessage(role="user", content=text)


def prompt_of(llm, call):
    """The text of the prompt that the engine reads."""
    seen = []
    builder = llm.engine._prompts
    build = builder.build

    def spy(*args, **kwargs):
        seen.append(build(*args, **kwargs))
        return seen[-1]

    builder.build = spy
    try:
        call()
    finally:
        del builder.build
    return llm.engine.model.tokenizer._tokenizer.decode(seen[0].ids)


class TestAnswers:
    def test_completion_cites_verbatim(self, llm, index):
        for question in QUESTIONS:
            response = llm.complete(question)
            citations = response.additional_kwargs["citations"]
            assert citations, "the settings make the model copy"
            assert_verbatim(response.text, citations, index.docstore.docs)
            assert response.raw["citations"] == citations
            assert response.raw["stats"]["tokens"] == response.raw["usage"]["completion_tokens"]

    def test_chat_is_one_text_block_and_then_citation_blocks(self, llm, index):
        response = llm.chat([user(QUESTION)])
        text, *blocks = response.message.blocks
        assert isinstance(text, TextBlock)
        assert blocks
        assert all(isinstance(block, CitationBlock) for block in blocks)
        assert response.message.content == text.text == response.raw["text"]
        assert response.message.role == MessageRole.ASSISTANT
        for block, citation in zip(blocks, response.additional_kwargs["citations"], strict=True):
            where = block.additional_location_info
            assert block.cited_content.text == text.text[where["start"] : where["end"]] == citation["text"]
            assert block.source in index.docstore.docs
            assert block.title == citation["title"]
            assert where["number"] == citation["number"]

    def test_complete_and_chat_say_the_same(self, llm):
        assert llm.complete(QUESTION).text == llm.chat([user(QUESTION)]).message.content

    def test_without_a_source_it_is_the_plain_model(self, index, caplog):
        plain = tiny_llm()
        response = plain.complete(QUESTION)
        assert response.additional_kwargs["citations"] == []
        assert response.raw["stats"]["mode"] == "lm"
        assert "no passages" not in caplog.text
        assert response.text == tiny_llm(index=index, mode="lm").complete(QUESTION).text

    @pytest.mark.parametrize("architecture", ["llama", "gpt2"])
    def test_lossless_equals_transformers_greedy(self, architecture):
        llm = tiny_llm(COPYING.replace(mode="lossless", max_new_tokens=50), architecture)
        tokenizer = llm.engine.model.tokenizer
        accepted = 0
        for prompt in ("The lighthouse at Cape Morwen", "To bake a simple loaf, mix", "El río"):
            expected = greedy(llm.engine.model.lm, tokenizer._tokenizer(prompt)["input_ids"], 50)
            # What the model would say anyway, with other things around it: drafts come true, and go wrong.
            said = tokenizer.decode(expected)
            nodes = [TextNode(text=f"{said[:40]} {said[10:70]} {said[30:]}"), *split_nodes()]
            response = llm.complete(prompt, formatted=True, nodes=nodes)
            assert response.text == said
            accepted += response.raw["stats"]["accepted"]
        assert accepted

    def test_lossless_chat_equals_transformers_greedy_behind_the_template(self, index):
        llm = tiny_llm(COPYING.replace(mode="lossless"), index=index)
        tokenizer = llm.engine.model.tokenizer
        messages = [ChatMessage(role="system", content="Be brief."), user("Where does the river Ansel rise?")]
        rendered = tokenizer.render_chat([{"role": m.role.value, "content": m.content} for m in messages])
        expected = greedy(
            llm.engine.model.lm, tokenizer._tokenizer(rendered, add_special_tokens=False)["input_ids"], 60
        )
        assert llm.chat(messages).message.content == tokenizer.decode(expected)


class TestStreams:
    def test_completion_items_are_cumulative(self, llm):
        whole = llm.complete(QUESTION)
        items = list(llm.stream_complete(QUESTION))
        assert len(items) > 5
        text, known = "", []
        for item in items:
            text += item.delta
            assert item.text == text
            assert item.additional_kwargs["citations"][: len(known)] == known
            known = item.additional_kwargs["citations"]
        assert items[-1].text == whole.text
        assert items[-1].additional_kwargs == whole.additional_kwargs
        assert "usage" not in items[0].raw
        assert len(items[0].additional_kwargs["citations"]) < len(known), "earlier items keep their own list"

    def test_chat_items_are_cumulative(self, llm):
        items = list(llm.stream_chat([user(QUESTION)]))
        assert "".join(item.delta for item in items) == items[-1].message.content
        assert items[-1].message == llm.chat([user(QUESTION)]).message
        assert all(isinstance(item.message.blocks[0], TextBlock) for item in items)

    def test_bad_calls_fail_before_the_first_item(self, llm):
        with pytest.raises(ConfigError, match="no such setting: gama"):
            llm.stream_complete(QUESTION, gama=1)
        with pytest.raises(PromptError, match="empty"):
            llm.stream_chat([user("  ")])

    def test_consumer_is_not_in_inference_mode(self, llm):
        for _ in llm.stream_complete(QUESTION, max_new_tokens=3):
            assert not torch.is_inference_mode_enabled()


class TestAsync:
    def test_all_four_equal_their_twins(self, llm):
        async def run():
            texts = [(await llm.acomplete(QUESTION)).text, (await llm.achat([user(QUESTION)])).message.content]
            last = [item async for item in await llm.astream_complete(QUESTION)][-1]
            texts.append(last.text)
            assert last.additional_kwargs == llm.complete(QUESTION).additional_kwargs
            last = [item async for item in await llm.astream_chat([user(QUESTION)])][-1]
            assert last.message == llm.chat([user(QUESTION)]).message
            return [*texts, last.message.content]

        assert set(asyncio.run(run())) == {llm.complete(QUESTION).text}

    def test_event_loop_keeps_ticking(self, llm):
        async def run():
            gaps, done = [], asyncio.Event()

            async def tick():
                last = time.perf_counter()
                while not done.is_set():
                    await asyncio.sleep(0.005)
                    gaps.append(time.perf_counter() - last)
                    last = time.perf_counter()

            ticker = asyncio.create_task(tick())
            await asyncio.sleep(0.02)
            start = time.perf_counter()
            answers = await asyncio.gather(*(llm.acomplete(q, max_new_tokens=100) for q in QUESTIONS))
            total = time.perf_counter() - start
            done.set()
            await ticker
            return answers, max(gaps), total

        answers, gap, total = asyncio.run(run())
        assert [a.text for a in answers] == [llm.complete(q, max_new_tokens=100).text for q in QUESTIONS]
        assert gap < max(0.25, total / 4)

    @pytest.mark.parametrize("kind", ["task", "stream"])
    def test_cancelling_ends_the_work(self, llm, kind):
        calls = []
        before = set(threading.enumerate())  # the LangChain adapter keeps threads of its own

        def slow(tokens, logits):
            calls.append(tokens)
            time.sleep(0.01)
            return logits

        arguments = {"logits_processors": [slow], "max_new_tokens": 600, "mode": "lm"}

        async def cancel_task():
            task = asyncio.create_task(llm.acomplete(QUESTION, **arguments))
            while len(calls) < 5:
                await asyncio.sleep(0.005)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        async def close_stream():
            stream = await llm.astream_complete(QUESTION, **arguments)
            async for _ in stream:
                if len(calls) >= 5:
                    break
            await stream.aclose()
            del stream
            await asyncio.sleep(0)

        asyncio.run(cancel_task() if kind == "task" else close_stream())
        time.sleep(0.1)
        settled = len(calls)
        time.sleep(0.2)
        assert len(calls) == settled < 100
        started = set(threading.enumerate()) - before
        assert not [t for t in started if t.name.startswith("nest") and t.is_alive()]

    def test_errors_come_from_the_await(self, llm):
        async def run():
            await llm.astream_complete(QUESTION, gama=1)

        with pytest.raises(ConfigError):
            asyncio.run(run())


class TestPrompts:
    def test_history_carries_texts_only(self, llm, index):
        first = llm.chat([user(QUESTION)])
        first.message.additional_kwargs["session_id"] = "secret-session"
        history = [user(QUESTION), first.message, user("And how long does the dough rest?")]
        prompt = prompt_of(llm, lambda: llm.chat(history, mode="nest"))
        assert first.message.content in prompt
        for leak in ("citations", "source_start", "secret-session", "block_type", first.message.blocks[1].source):
            assert leak not in prompt

    def test_own_formatters_of_llama_index_show_no_citations(self, llm):
        message = llm.chat([user(QUESTION)]).message
        assert messages_to_history_str([message]) == f"assistant: {message.content}"

    def test_system_prompt_comes_once(self, index):
        llm = tiny_llm(index=index, system_prompt="Answer like a sailor.")
        assert prompt_of(llm, lambda: llm.complete(QUESTION)).count("Answer like a sailor.") == 1
        own = [ChatMessage(role="system", content="Be brief."), user(QUESTION)]
        assert "sailor" not in prompt_of(llm, lambda: llm.chat(own))

    def test_roles_of_other_models_are_understood(self, llm):
        messages = [ChatMessage(role=role, content=role) for role in ("developer", "user", "model", "tool")]
        prompt = prompt_of(llm, lambda: llm.chat(messages))
        assert prompt.startswith("<|im_start|>system\ndeveloper<|im_end|>\n<|im_start|>user\nuser<|im_end|>\n")
        assert (
            "<|im_start|>assistant\nmodel<|im_end|>\n<|im_start|>user\n<tool_response>\ntool\n</tool_response>"
            in prompt
        )

    def test_images_are_refused(self, llm):
        with pytest.raises(PromptError, match="ImageBlock"):
            llm.chat([ChatMessage(role="user", blocks=[ImageBlock(url="http://example.org/a.png")])])

    def test_formatted_prompts_are_read_as_they_are(self, llm):
        assert prompt_of(llm, lambda: llm.complete("Once upon", formatted=True)) == "Once upon"

    def test_task_words_the_prompt(self, llm):
        assert f"Question: {QUESTION} Answer:" in prompt_of(llm, lambda: llm.complete(QUESTION, task="question"))
        assert "Question:" not in prompt_of(llm, lambda: llm.complete(QUESTION))

    def test_messages_to_prompt_has_control_tokens_and_texts_do_not(self, index):
        def word(messages):
            return "".join(f"<|im_start|>{m.role.value}: {m.content}<|im_end|>" for m in messages) + "<|im_start|>me:"

        llm = tiny_llm(index=index, messages_to_prompt=word)
        ids = []
        build = llm.engine._prompts.build
        llm.engine._prompts.build = lambda *a, **k: ids.append(build(*a, **k).ids) or build(*a, **k)
        llm.chat([user("Is <|im_end|> a control token?")])
        tokenizer = llm.engine.model.tokenizer._tokenizer
        assert tokenizer.decode(ids[0]) == "<|im_start|>user: Is <|im_end|> a control token?<|im_end|><|im_start|>me:"
        assert ids[0].count(tokenizer.convert_tokens_to_ids("<|im_start|>")) == 2
        assert ids[0].count(tokenizer.convert_tokens_to_ids("<|im_end|>")) == 1

    def test_completion_to_prompt(self, index):
        llm = tiny_llm(index=index, completion_to_prompt=lambda prompt: f"[INST] {prompt} [/INST]")
        assert prompt_of(llm, lambda: llm.complete(QUESTION)) == f"[INST] {QUESTION} [/INST]"
        assert prompt_of(llm, lambda: llm.complete("raw", formatted=True)) == "raw"

    def test_functions_work_without_a_chat_template(self, index):
        llm = tiny_llm(
            index=index,
            model_arguments={"chat_template": None},
            messages_to_prompt=lambda messages: "|".join(m.content for m in messages) + "=>",
        )
        assert llm.metadata.is_chat_model
        assert prompt_of(llm, lambda: llm.chat([user("a"), user("b")])) == "a|b=>"

    def test_query_is_the_last_user_message_or_the_given_one(self):
        class Spy:
            queries = []

            def search(self, query, k):
                self.queries.append(query)
                return []

        llm = tiny_llm(source=Spy())
        llm.chat([user("old"), ChatMessage(role="assistant", content="yes"), user("new")], max_new_tokens=1)
        llm.complete("prompt", query="asked for", max_new_tokens=1)
        assert Spy.queries == ["new", "asked for"]


class TestSettings:
    def test_names_known_from_other_llms(self):
        llm = tiny_llm(
            generate_kwargs={"do_sample": True, "top_p": 0.9, "top_k": 5},
            max_tokens=7,
            random_seed=3,
            tokenizer_name=None,
        )
        assert llm.config == COPYING.replace(temperature=1.0, top_p=0.9, top_k=5, max_new_tokens=7, seed=3)
        assert tiny_llm(temperature=0.7, do_sample=False).config.temperature == 0

    def test_overrides_of_one_call_count(self, llm):
        assert llm.complete(QUESTION, max_tokens=4).raw["stats"]["tokens"] == 4
        assert llm.complete(QUESTION, mode="lm").additional_kwargs["citations"] == []
        assert llm.complete(QUESTION, max_new_tokens=None).raw["stats"]["tokens"] > 4
        sampled = {llm.complete(QUESTION, mode="lm", temperature=1.5, seed=seed).text for seed in (1, 2)}
        assert len(sampled) == 2

    def test_stop_strings_cut_text_and_citations(self, llm):
        whole = llm.complete(QUESTION).text
        stop = whole[20:24]
        response = llm.complete(QUESTION, stop=[stop])
        assert response.text == whole[: whole.index(stop)]
        assert response.additional_kwargs["finish_reason"] == "stop"
        assert all(c["end"] <= len(response.text) for c in response.additional_kwargs["citations"])

    def test_unknown_settings_are_refused(self, llm):
        with pytest.raises(ConfigError, match=r"no such setting: repetition_penalty.*logits_processors"):
            llm.complete(QUESTION, repetition_penalty=1.2)
        with pytest.raises(ConfigError, match="no such setting"):
            tiny_llm(modell="x")
        with pytest.raises(ConfigError, match="gamma must be"):
            tiny_llm(gamma=3)
        with pytest.raises(ConfigError, match="key_layer is fixed"):
            tiny_llm(key_layer="penultimate")

    def test_arguments_that_contradict_are_refused(self):
        with pytest.raises(ConfigError, match="another tokenizer"):
            NestLLM("one", tokenizer_name="two")
        with pytest.raises(ConfigError, match="belong together"):
            NestLLM(model=tiny_model())

    def test_logits_processors(self, llm):
        def ban_all_but_seven(tokens, logits):
            mask = torch.full_like(logits, float("-inf"))
            mask[:, 70] = logits[:, 70]
            return mask

        response = llm.complete(QUESTION, logits_processors=[ban_all_but_seven], max_new_tokens=5)
        assert len(set(response.text)) == 1

    def test_metadata_is_the_models(self, llm):
        assert llm.metadata.context_window == 1024
        assert llm.metadata.num_output == 60
        assert llm.metadata.is_chat_model
        assert llm.metadata.model_name == "tiny-llama"
        assert not tiny_llm(model_arguments={"chat_template": None}).metadata.is_chat_model
        assert tiny_llm(context_window=500).metadata.context_window == 500
        assert tiny_llm(context_window=5000).metadata.context_window == 1024


class TestLoading:
    def test_is_lazy_and_loads_a_folder(self, tmp_path):
        save_tiny(tmp_path)
        llm = NestLLM(str(tmp_path), settings={"max_new_tokens": 3}, dtype="float64")
        assert llm._engine is None
        assert llm.complete("The old mill", formatted=True).raw["stats"]["tokens"] <= 3
        assert llm.engine is llm.engine

    def test_missing_models_are_named(self, tmp_path):
        with pytest.raises(ModelNotFoundError, match="nowhere"):
            NestLLM(str(tmp_path / "nowhere")).complete("x")

    def test_presets_by_name_without_loading(self):
        assert NestLLM().config == NestConfig.preset("smollm2-135m-instruct")
        assert NestLLM(mode="ra").config.mode == "ra"
        assert NestLLM(config=NestConfig(gamma=0.25), seed=4).config == NestConfig(gamma=0.25, seed=4)

    def test_a_loaded_model_of_transformers(self):
        llm = NestLLM(model=tiny_model(), tokenizer=tiny_tokenizer(), max_new_tokens=5)
        assert llm.complete("The old mill").raw["stats"]["tokens"] <= 5

    def test_one_engine_for_several(self):
        engine = tiny_engine(config=COPYING)
        one, two = NestLLM(engine=engine, nodes=split_nodes()), NestLLM(engine=engine, mode="lm")
        assert one.engine is two.engine
        assert two.complete(QUESTION).additional_kwargs["citations"] == []
        assert one.complete(QUESTION).additional_kwargs["citations"]


class TestSerialization:
    def test_round_trip_keeps_the_configuration(self):
        llm = NestLLM(
            "some/model", system_prompt="Be kind.", stop=["END"], gamma=0.25, task="question", dtype="bfloat16"
        )
        data = json.loads(json.dumps(llm.to_dict()))
        assert data["class_name"] == "NestLLM" == NestLLM.class_name()
        again = NestLLM.from_dict(data)
        assert again.config == llm.config
        assert (again.model_name, again.system_prompt, again.task, again.dtype) == (
            "some/model",
            "Be kind.",
            "question",
            "bfloat16",
        )
        assert NestLLM.from_json(llm.to_json()).to_dict() == llm.to_dict()

    def test_source_can_be_given_again(self, index):
        data = tiny_llm().to_dict()
        again = NestLLM.from_dict(data, engine=tiny_engine(config=COPYING), index=index)
        assert again.complete(QUESTION).additional_kwargs["citations"]

    def test_pickle_and_copies(self, llm):
        again = pickle.loads(pickle.dumps(llm))
        assert again.to_dict() == llm.to_dict()
        assert again._engine is None
        assert copy.deepcopy(llm).engine is llm.engine
        assert copy.deepcopy(llm).complete(QUESTION).text == llm.complete(QUESTION).text


class Recorder(BaseEventHandler):
    events: list = []

    def handle(self, event, **kwargs):
        self.events.append(event)


@pytest.fixture
def recorder():
    recorder = Recorder(events=[])
    root = get_dispatcher()
    root.add_event_handler(recorder)
    yield recorder
    root.event_handlers.remove(recorder)


class TestTraces:
    def test_end_events_carry_citations(self, llm, recorder):
        llm.complete(QUESTION)
        list(llm.stream_complete(QUESTION))
        llm.chat([user(QUESTION)])
        list(llm.stream_chat([user(QUESTION)]))
        completions = [e.response for e in recorder.events if isinstance(e, LLMCompletionEndEvent)]
        chats = [e.response for e in recorder.events if isinstance(e, LLMChatEndEvent)]
        assert len(completions) == len(chats) == 2
        assert all(r.additional_kwargs["citations"] and r.raw["citations"] for r in completions + chats)
        assert all(len(r.message.blocks) > 1 for r in chats)

    def test_payload_needs_no_model(self):
        payload = NestLLM("none/such", gamma=0.5).to_payload()
        assert payload["model_name"] == "none/such"
        assert payload["gamma"] == 0.5

    def test_token_counter_counts_the_models_own_tokens(self, index):
        counter = TokenCountingHandler(tokenizer=str.split)
        llm = tiny_llm(index=index, callback_manager=CallbackManager([counter]))
        stats = llm.complete(QUESTION).raw["stats"]
        assert counter.prompt_llm_token_count == stats["prompt_tokens"]
        assert counter.completion_llm_token_count == stats["tokens"]


class TestSources:
    def test_every_kind_of_source(self, index):
        nodes = split_nodes()
        passages = [Passage("The mill was built by monks, who ground rye there.", id="p1")]
        for arguments in (
            {"index": index},
            {"retriever": index.as_retriever(similarity_top_k=3)},
            {"nodes": nodes},
            {"nodes": [NodeWithScore(node=node, score=0.5) for node in nodes]},
            {"vector_store": index.vector_store, "embed_model": index._embed_model, "docstore": index.docstore},
            {"source": ListSource(passages)},
            {"source": passages},
            {"source": index},
        ):
            llm = tiny_llm(**arguments)
            assert llm.complete(QUESTION).additional_kwargs["citations"], sorted(arguments)
            # ... and the same for one call, instead of the LLM's own.
            other = tiny_llm(nodes=[TextNode(text="Nothing to see here.")])
            response = other.complete(QUESTION, **arguments)
            assert response.text == llm.complete(QUESTION).text

    def test_all_nodes_of_a_list_are_used(self):
        nodes = [TextNode(text=f"Number {i} is called {i}.") for i in range(30)]
        llm = tiny_llm(COPYING.replace(top_passages=2), nodes=nodes)
        assert llm.complete(QUESTION).raw["stats"]["passages"] == 30

    def test_two_sources_are_refused(self, index):
        with pytest.raises(ConfigError, match="one source of passages, not index and nodes"):
            tiny_llm(index=index, nodes=[])
        with pytest.raises(ConfigError, match="embed_model"):
            tiny_llm(vector_store=index.vector_store)
        with pytest.raises(ConfigError, match="nothing to search"):
            tiny_llm(index=3)

    def test_deliberate_errors_are_ours(self, llm):
        for bad in ({"gama": 1}, {"index": 3}, {"nodes": ["text"]}):
            with pytest.raises(NestError):
                llm.complete(QUESTION, **bad)
