import asyncio

import pytest
from llama_index.core.base.llms.types import ChatMessage, CitationBlock
from llama_index.core.memory import ChatMemoryBuffer, Memory
from llama_index.core.postprocessor import SimilarityPostprocessor

from llama_index_nest import CitedNode, NestChatEngine, add_markers
from tests.llama_index.test_llms import prompt_of
from tests.llama_index.world import QUESTIONS, assert_verbatim, memory_index, tiny_llm


@pytest.fixture(scope="module")
def index():
    return memory_index()


@pytest.fixture(scope="module")
def llm():
    return tiny_llm()


def outcome(engine, *responses):
    """What of several turns must be the same, however they were asked for."""
    return [
        ([(n.node.node_id, n.citations) for n in r.source_nodes], r.metadata["citations"], r.response)
        for r in responses
    ], engine.chat_history


def test_turns_are_remembered_and_cited(index, llm):
    chat = NestChatEngine.from_defaults(index, llm=llm, system_prompt="You tell of places.")
    first = chat.chat(QUESTIONS[0])
    assert_verbatim(first.response, first.metadata["citations"], index.docstore.docs)
    assert all(isinstance(n, CitedNode) for n in first.source_nodes)
    assert len(first.source_nodes) < len(first.sources[0].raw_output) == 6
    prompt = prompt_of(llm, lambda: chat.chat(QUESTIONS[1]))
    parts = ["You tell of places.", QUESTIONS[0], first.response, QUESTIONS[1]]
    assert [prompt.index(part) for part in parts] == sorted(prompt.index(part) for part in parts)
    assert "source_start" not in prompt
    history = chat.chat_history
    assert [m.role.value for m in history] == ["user", "assistant", "user", "assistant"]
    assert any(isinstance(block, CitationBlock) for block in history[1].blocks)
    chat.reset()
    assert chat.chat_history == []


def test_streaming_and_async_are_the_same(index, llm):
    def engine():
        return NestChatEngine.from_defaults(index, llm=llm)

    plain = engine()
    expected = outcome(plain, *(plain.chat(q) for q in QUESTIONS[:2]))

    streaming, streamed = engine(), []
    for question in QUESTIONS[:2]:
        response = streaming.stream_chat(question)
        pieces = list(response.response_gen)
        assert len(pieces) > 5
        assert response.response == "".join(pieces).strip()
        response.response = "".join(pieces)
        streamed.append(response)
    assert outcome(streaming, *streamed) == expected

    async def run():
        chat = engine()
        assert outcome(chat, *[await chat.achat(q) for q in QUESTIONS[:2]]) == expected
        chat, responses = engine(), []
        for question in QUESTIONS[:2]:
            response = await chat.astream_chat(question)
            response.response = "".join([piece async for piece in response.async_response_gen()])
            responses.append(response)
        for response, (_, _, text) in zip(responses, expected[0], strict=True):
            assert response.response == text.strip()
            response.response = text
        assert outcome(chat, *responses) == expected

    asyncio.run(run())


def test_history_can_be_given(index, llm):
    chat = NestChatEngine.from_defaults(index, llm=llm)
    history = [ChatMessage(role="user", content="I am Ada."), ChatMessage(role="assistant", content="Hello Ada.")]
    assert "I am Ada." in prompt_of(llm, lambda: chat.chat("Who am I?", chat_history=history))
    assert len(chat.chat_history) == 4


def test_markers_postprocessors_and_settings(index, llm):
    chat = NestChatEngine.from_defaults(
        index,
        llm=llm,
        markers=True,
        node_postprocessors=[SimilarityPostprocessor(similarity_cutoff=0.4)],
        settings={"max_new_tokens": 30},
    )
    response = chat.chat(QUESTIONS[0])
    assert response.metadata["stats"]["tokens"] == 30
    assert 0 < response.metadata["stats"]["passages"] < 6
    assert response.response == add_markers(response.metadata["text"], response.metadata["citations"])
    assert chat.chat_history[1].content == response.metadata["text"]


@pytest.mark.parametrize("make", [ChatMemoryBuffer.from_defaults, Memory.from_defaults])
def test_memories_of_llama_index_keep_citation_blocks(index, llm, make):
    chat = NestChatEngine.from_defaults(index, llm=llm, memory=make(token_limit=4000))
    first = chat.chat(QUESTIONS[0])
    assert chat.chat(QUESTIONS[1]).response
    kept = chat.chat_history[1]
    assert kept.content == first.response
    assert [b.cited_content.text for b in kept.blocks[1:]] == [c["text"] for c in first.metadata["citations"]]
