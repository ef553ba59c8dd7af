"""A chat engine with memory whose source nodes are the ones that were copied from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.base.llms.types import (
    ChatMessage,
    ChatResponse,
    ChatResponseAsyncGen,
    ChatResponseGen,
    MessageRole,
)
from llama_index.core.callbacks import CallbackManager, trace_method
from llama_index.core.chat_engine.types import AgentChatResponse, BaseChatEngine, StreamingAgentChatResponse
from llama_index.core.llms.llm import LLM
from llama_index.core.memory import BaseMemory, ChatMemoryBuffer
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.schema import NodeWithScore, QueryBundle
from llama_index.core.settings import Settings
from llama_index.core.tools import ToolOutput

from llama_index_nest.citations import add_markers, find_cited_nodes
from llama_index_nest.llms import NestLLM
from llama_index_nest.query_engine import find_llm
from llama_index_nest.sources import explain_errors, to_retriever


@dataclass
class NestStreamingChatResponse(StreamingAgentChatResponse):
    """A streaming chat response. `source_nodes` and `metadata` fill up as it is read.

    Attributes:
        metadata: `"citations"` and more, as in the query engine's responses.
    """

    metadata: dict[str, Any] = field(default_factory=dict)


class NestChatEngine(BaseChatEngine):
    """A conversation about nodes: each message is searched for, and answered with citations.

    Answers are remembered with their citation blocks; only their text goes into the next prompt.

    Examples:
        ```python
        chat = NestChatEngine.from_defaults(index, llm=NestLLM())
        response = chat.chat("How long must the dough rest?")
        response.response, response.source_nodes, response.metadata["citations"]
        ```
    """

    def __init__(
        self,
        retriever: BaseRetriever,
        llm: NestLLM,
        memory: BaseMemory,
        prefix_messages: Sequence[ChatMessage] = (),
        node_postprocessors: list[BaseNodePostprocessor] | None = None,
        markers: bool = False,
        callback_manager: CallbackManager | None = None,
        **settings: Any,
    ) -> None:
        """Chat; `from_defaults` is the usual way to make one.

        Args:
            retriever: Finds the nodes.
            llm: Answers.
            memory: Keeps the conversation.
            prefix_messages: Stand before it in every prompt, such as a system message.
            node_postprocessors: Rerankers, cut-offs and the like, in order.
            markers: Write `[n]` behind what was copied into the response. The memory has no marks.
            callback_manager: Where callbacks go.
            **settings: Settings of `NestConfig` that differ from the LLM's.
        """
        self._retriever, self._llm, self._memory = retriever, llm, memory
        self._prefix_messages = list(prefix_messages)
        self._node_postprocessors = node_postprocessors or []
        self._markers, self._settings = markers, settings
        self.callback_manager = callback_manager or CallbackManager([])
        for postprocessor in self._node_postprocessors:
            postprocessor.callback_manager = self.callback_manager

    @classmethod
    def from_defaults(
        cls,
        retriever: Any,
        llm: LLM | None = None,
        *,
        chat_history: list[ChatMessage] | None = None,
        memory: BaseMemory | None = None,
        system_prompt: str | None = None,
        node_postprocessors: list[BaseNodePostprocessor] | None = None,
        markers: bool = False,
        similarity_top_k: int | None = None,
        settings: dict[str, Any] | None = None,
        **retriever_arguments: Any,
    ) -> Self:
        """Make a chat engine over anything that can be searched.

        Args:
            retriever: An index, a retriever, a vector store (with `embed_model=`), nodes, or a source of `nest_engine`.
            llm: A `NestLLM`; by default that of LlamaIndex's `Settings`.
            chat_history: What was said before.
            memory: Keeps the conversation; by default as much of it as fits the model, in this process.
            system_prompt: Stands before it in every prompt.
            node_postprocessors: Rerankers, cut-offs and the like, in order.
            markers: Write `[n]` behind what was copied into the response.
            similarity_top_k: Nodes to retrieve; by default the LLM's `top_passages`. A retriever has its own number.
            settings: Settings of `NestConfig` that differ from the LLM's.
            **retriever_arguments: For `index.as_retriever`, such as `filters`.

        Raises:
            ConfigError: If the LLM is no `NestLLM`, or there is nothing to search.
        """
        nest = find_llm(llm)
        if memory is None:
            # The engine drops the oldest turns where they do not fit, so the buffer need not be exact.
            memory = ChatMemoryBuffer.from_defaults(
                chat_history=chat_history, token_limit=nest.metadata.context_window, tokenizer_fn=str.split
            )
        prefix = [ChatMessage(role=MessageRole.SYSTEM, content=system_prompt)] if system_prompt else []
        top_k = similarity_top_k or (settings or {}).get("top_passages") or nest.config.top_passages
        found = to_retriever(retriever, similarity_top_k=top_k, **retriever_arguments)
        manager = Settings.callback_manager
        return cls(found, nest, memory, prefix, node_postprocessors, markers, manager, **(settings or {}))

    @trace_method("chat")
    def chat(self, message: str, chat_history: list[ChatMessage] | None = None) -> AgentChatResponse:
        """Answer a message.

        Args:
            message: What the user says.
            chat_history: What was said before, instead of what the memory has.

        Raises:
            NestError: If the retriever or the call is at fault.
        """
        if chat_history is not None:
            self._memory.set(chat_history)
        nodes = self._find(message)
        response = self._llm.chat(self._with_history(message, self._memory.get(input=message)), **self._use(nodes))
        self._memory.put(_said(message))
        self._memory.put(response.message)
        return self._respond(message, nodes, response)

    @trace_method("chat")
    async def achat(self, message: str, chat_history: list[ChatMessage] | None = None) -> AgentChatResponse:
        """Answer a message without blocking the event loop: see `chat`."""
        if chat_history is not None:
            await self._memory.aset(chat_history)
        nodes = await self._afind(message)
        history = await self._memory.aget(input=message)
        response = await self._llm.achat(self._with_history(message, history), **self._use(nodes))
        await self._memory.aput(_said(message))
        await self._memory.aput(response.message)
        return self._respond(message, nodes, response)

    @trace_method("chat")
    def stream_chat(self, message: str, chat_history: list[ChatMessage] | None = None) -> NestStreamingChatResponse:
        """Answer a message piece by piece, without marks: see `chat`. The memory has it once it is read to the end."""
        if chat_history is not None:
            self._memory.set(chat_history)
        nodes = self._find(message)
        items = self._llm.stream_chat(self._with_history(message, self._memory.get(input=message)), **self._use(nodes))
        response = self._open_stream(message, nodes)

        def generate() -> ChatResponseGen:
            last = None
            for last in items:
                _fill(response, nodes, last)
                yield last
            if last is not None:
                self._memory.put(_said(message))
                self._memory.put(last.message)

        response.chat_stream = generate()
        return response

    @trace_method("chat")
    async def astream_chat(
        self, message: str, chat_history: list[ChatMessage] | None = None
    ) -> NestStreamingChatResponse:
        """Answer a message piece by piece without blocking the event loop: see `stream_chat`."""
        if chat_history is not None:
            await self._memory.aset(chat_history)
        nodes = await self._afind(message)
        history = await self._memory.aget(input=message)
        items = await self._llm.astream_chat(self._with_history(message, history), **self._use(nodes))
        response = self._open_stream(message, nodes)

        async def generate() -> ChatResponseAsyncGen:
            last = None
            async for last in items:
                _fill(response, nodes, last)
                yield last
            if last is not None:
                await self._memory.aput(_said(message))
                await self._memory.aput(last.message)

        response.achat_stream = generate()
        return response

    def reset(self) -> None:
        """Forget the conversation."""
        self._memory.reset()

    @property
    def chat_history(self) -> list[ChatMessage]:
        """The conversation so far."""
        return self._memory.get_all()

    def _find(self, message: str) -> list[NodeWithScore]:
        with explain_errors(self._retriever):
            nodes = self._retriever.retrieve(message)
        for postprocessor in self._node_postprocessors:
            nodes = postprocessor.postprocess_nodes(nodes, query_bundle=QueryBundle(message))
        return nodes

    async def _afind(self, message: str) -> list[NodeWithScore]:
        with explain_errors(self._retriever):
            nodes = await self._retriever.aretrieve(message)
        for postprocessor in self._node_postprocessors:
            nodes = await postprocessor.apostprocess_nodes(nodes, query_bundle=QueryBundle(message))
        return nodes

    def _with_history(self, message: str, history: Sequence[ChatMessage]) -> list[ChatMessage]:
        return [*self._prefix_messages, *history, _said(message)]

    def _use(self, nodes: list[NodeWithScore]) -> dict[str, Any]:
        return {**self._settings, "nodes": nodes}

    def _respond(self, message: str, nodes: list[NodeWithScore], response: ChatResponse) -> AgentChatResponse:
        text, citations = response.raw["text"], response.additional_kwargs["citations"]  # type: ignore[index]
        return AgentChatResponse(
            response=add_markers(text, citations) if self._markers else text,
            sources=_sources(message, nodes),
            source_nodes=list(find_cited_nodes(nodes, citations)),
            metadata=_to_metadata(response),
        )

    def _open_stream(self, message: str, nodes: list[NodeWithScore]) -> NestStreamingChatResponse:
        """A response whose stream its reader drives: no thread, and closing it ends the work."""
        return NestStreamingChatResponse(
            sources=_sources(message, nodes), is_writing_to_memory=False, metadata={"citations": []}
        )


def _said(message: str) -> ChatMessage:
    return ChatMessage(role=MessageRole.USER, content=message)


def _sources(message: str, nodes: list[NodeWithScore]) -> list[ToolOutput]:
    """All that was retrieved, as LlamaIndex's own chat engines report it."""
    return [
        ToolOutput(
            tool_name="retriever",
            content="\n\n".join(node.get_content() for node in nodes),
            raw_input={"message": message},
            raw_output=nodes,
        )
    ]


def _fill(response: NestStreamingChatResponse, nodes: list[NodeWithScore], item: ChatResponse) -> None:
    citations = item.additional_kwargs["citations"]
    if len(citations) > len(response.metadata["citations"]):
        response.source_nodes[:] = find_cited_nodes(nodes, citations)
    response.metadata.update(_to_metadata(item))


def _to_metadata(response: ChatResponse) -> dict[str, Any]:
    raw = response.raw or {}
    return {name: raw[name] for name in ("citations", "text", "finish_reason", "stats") if name in raw}
