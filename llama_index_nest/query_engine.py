"""A response synthesizer and a query engine whose source nodes are the ones that were copied from."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Self

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.base.llms.types import CompletionResponse
from llama_index.core.base.response.schema import (
    RESPONSE_TYPE,
    AsyncStreamingResponse,
    Response,
    StreamingResponse,
)
from llama_index.core.callbacks import CallbackManager, CBEventType, EventPayload
from llama_index.core.indices.prompt_helper import ChatPromptHelper, PromptHelper
from llama_index.core.instrumentation.events.synthesis import SynthesizeEndEvent, SynthesizeStartEvent
from llama_index.core.llms.llm import LLM
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.response_synthesizers.base import BaseSynthesizer
from llama_index.core.schema import NodeWithScore, QueryBundle, QueryType, TextNode
from llama_index.core.settings import Settings
from llama_index.core.types import RESPONSE_TEXT_TYPE
from llama_index_instrumentation import get_dispatcher

from llama_index_nest.citations import MarkerWriter, add_markers, find_cited_nodes
from llama_index_nest.llms import NestLLM
from llama_index_nest.sources import explain_errors, to_retriever
from nest_engine.errors import ConfigError
from nest_engine.lm.prompts import Task

dispatcher = get_dispatcher(__name__)


def find_llm(llm: LLM | None) -> NestLLM:
    """The LLM to answer with: the given one, else that of LlamaIndex's `Settings`.

    Raises:
        ConfigError: If it is no `NestLLM`, which alone knows what was copied.
    """
    chosen = llm if llm is not None else Settings._llm
    if not isinstance(chosen, NestLLM):
        found = "no LLM is set" if chosen is None else f"the LLM is a {type(chosen).__name__}"
        raise ConfigError(f"answers with citations need a NestLLM, but {found}: give llm=NestLLM(...)")
    return chosen


class NestSynthesizer(BaseSynthesizer):
    """Answers from nodes in one call of the LLM, and returns the nodes that it copied from.

    Works wherever LlamaIndex takes a response synthesizer:
    `index.as_query_engine(response_synthesizer=NestSynthesizer(llm))`.
    """

    def __init__(
        self,
        llm: LLM | None = None,
        *,
        streaming: bool = False,
        markers: bool = False,
        empty_response: str | None = None,
        task: Task = "question",
        callback_manager: CallbackManager | None = None,
        **settings: Any,
    ) -> None:
        """Answer with an LLM.

        Args:
            llm: A `NestLLM`; by default that of LlamaIndex's `Settings`.
            streaming: Return streaming responses.
            markers: Write `[n]` behind what was copied. Citations count characters without the marks, and
                `metadata["text"]` is the answer without them.
            empty_response: What to answer where there are no nodes; by default the plain model answers,
                without citations.
            task: How the question is worded for the model.
            callback_manager: Where callbacks go.
            **settings: Settings of `NestConfig` that differ from the LLM's.

        Raises:
            ConfigError: If the LLM is no `NestLLM`.
        """
        nest = find_llm(llm)
        # Prompt helpers pack texts into prompts, which the engine does itself; the default ones load the model.
        super().__init__(
            llm=nest,
            callback_manager=callback_manager,
            prompt_helper=PromptHelper(),
            chat_prompt_helper=ChatPromptHelper(),
            streaming=streaming,
            empty_response=empty_response,
        )
        self.llm = nest
        self._markers = markers
        self._plain_when_empty = empty_response is None
        self._arguments = {**settings, "task": task}

    def synthesize(
        self,
        query: QueryType,
        nodes: list[NodeWithScore],
        additional_source_nodes: Sequence[NodeWithScore] | None = None,
        **response_kwargs: Any,
    ) -> RESPONSE_TYPE:
        """Answer a query from nodes.

        Args:
            query: The query.
            nodes: What to answer from; all of them are used.
            additional_source_nodes: Nodes to list behind those copied from.
            **response_kwargs: As in `NestLLM.complete`.

        Returns:
            A `Response`, or a `StreamingResponse` whose `source_nodes` and `metadata` fill up as it is read.
        """
        with self._traced(query) as (text, on_end):
            more = list(additional_source_nodes or [])
            arguments = {**self._arguments, **response_kwargs, "nodes": nodes}
            if not nodes and not self._plain_when_empty:
                response = self._empty()
            elif self._streaming:
                response = self._stream(self.llm.stream_complete(text, **arguments), nodes, more)
            else:
                response = self._respond(self.llm.complete(text, **arguments), nodes, more)
            on_end(response)
        return response

    async def asynthesize(
        self,
        query: QueryType,
        nodes: list[NodeWithScore],
        additional_source_nodes: Sequence[NodeWithScore] | None = None,
        **response_kwargs: Any,
    ) -> RESPONSE_TYPE:
        """Answer a query from nodes without blocking the event loop: see `synthesize`."""
        with self._traced(query) as (text, on_end):
            more = list(additional_source_nodes or [])
            arguments = {**self._arguments, **response_kwargs, "nodes": nodes}
            if not nodes and not self._plain_when_empty:
                response = self._aempty()
            elif self._streaming:
                response = self._astream(await self.llm.astream_complete(text, **arguments), nodes, more)
            else:
                response = self._respond(await self.llm.acomplete(text, **arguments), nodes, more)
            on_end(response)
        return response

    def get_response(self, query_str: str, text_chunks: Sequence[str], **response_kwargs: Any) -> RESPONSE_TEXT_TYPE:
        """Answer from texts. They are no nodes, so only the text comes back."""
        nodes = [TextNode(text=text) for text in text_chunks]
        arguments = {**self._arguments, **response_kwargs, "nodes": nodes}
        if not self._streaming:
            return str(self.llm.complete(query_str, **arguments).text)
        return (item.delta or "" for item in self.llm.stream_complete(query_str, **arguments))

    async def aget_response(
        self, query_str: str, text_chunks: Sequence[str], **response_kwargs: Any
    ) -> RESPONSE_TEXT_TYPE:
        """Answer from texts without blocking the event loop: see `get_response`."""
        nodes = [TextNode(text=text) for text in text_chunks]
        arguments = {**self._arguments, **response_kwargs, "nodes": nodes}
        if not self._streaming:
            return str((await self.llm.acomplete(query_str, **arguments)).text)
        items = await self.llm.astream_complete(query_str, **arguments)
        return (item.delta or "" async for item in items)

    def _get_prompts(self) -> dict[str, Any]:
        return {}

    def _update_prompts(self, prompts: dict[str, Any]) -> None:
        """There are none: the engine words the prompt."""

    @contextmanager
    def _traced(self, query: QueryType) -> Iterator[tuple[str, Callable[[RESPONSE_TYPE], None]]]:
        """Tell LlamaIndex's traces of the start and, through the function given out, of the end."""
        text = query.query_str if isinstance(query, QueryBundle) else query
        dispatcher.event(SynthesizeStartEvent(query=query))
        with self._callback_manager.event(CBEventType.SYNTHESIZE, payload={EventPayload.QUERY_STR: text}) as event:

            def on_end(response: RESPONSE_TYPE) -> None:
                event.on_end(payload={EventPayload.RESPONSE: response})
                dispatcher.event(SynthesizeEndEvent(query=query, response=response))

            yield text, on_end

    def _respond(
        self, completion: CompletionResponse, nodes: list[NodeWithScore], more: list[NodeWithScore]
    ) -> Response:
        citations = completion.additional_kwargs["citations"]
        text = add_markers(completion.text, citations) if self._markers else completion.text
        return Response(text, [*find_cited_nodes(nodes, citations), *more], _to_metadata(completion))

    def _stream(
        self, items: Generator[CompletionResponse, None, None], nodes: list[NodeWithScore], more: list[NodeWithScore]
    ) -> StreamingResponse:
        filling = _Filling(nodes, more, markers=self._markers)

        def generate() -> Generator[str, None, None]:
            for item in items:
                yield filling.add(item)
            if self._markers:
                yield filling.finish()

        return StreamingResponse(generate(), filling.source_nodes, filling.metadata)

    def _astream(
        self, items: AsyncGenerator[CompletionResponse, None], nodes: list[NodeWithScore], more: list[NodeWithScore]
    ) -> AsyncStreamingResponse:
        filling = _Filling(nodes, more, markers=self._markers)

        async def generate() -> AsyncGenerator[str, None]:
            async for item in items:
                yield filling.add(item)
            if self._markers:
                yield filling.finish()

        return AsyncStreamingResponse(generate(), filling.source_nodes, filling.metadata)

    def _empty(self) -> RESPONSE_TYPE:
        metadata: dict[str, Any] = {"citations": []}
        if self._streaming:
            return StreamingResponse(self._empty_response_generator(), metadata=metadata)
        return Response(self._empty_response, metadata=metadata)

    def _aempty(self) -> RESPONSE_TYPE:
        if self._streaming:
            return AsyncStreamingResponse(self._empty_response_agenerator(), metadata={"citations": []})
        return self._empty()


class _Filling:
    """The source nodes and metadata of a streaming response, which fill up while it is read."""

    def __init__(self, nodes: list[NodeWithScore], more: list[NodeWithScore], *, markers: bool) -> None:
        self.source_nodes: list[NodeWithScore] = list(more)
        self.metadata: dict[str, Any] = {"citations": []}
        self._nodes, self._more = nodes, more
        self._writer = MarkerWriter() if markers else None

    def add(self, item: CompletionResponse) -> str:
        """Take an item of the LLM's stream; return the text to show."""
        new = item.additional_kwargs["citations"][len(self.metadata["citations"]) :]
        self.metadata.update(_to_metadata(item))
        if new:
            self.source_nodes[:] = [*find_cited_nodes(self._nodes, self.metadata["citations"]), *self._more]
        delta = item.delta or ""
        return delta if self._writer is None else self._writer.add(delta, new)

    def finish(self) -> str:
        """The text that is left to show."""
        return "" if self._writer is None else self._writer.finish()


def _to_metadata(completion: CompletionResponse) -> dict[str, Any]:
    raw = completion.raw or {}
    return {name: raw[name] for name in ("citations", "text", "finish_reason", "stats") if name in raw}


class NestQueryEngine(RetrieverQueryEngine):
    """Retrieves nodes, answers from them in one call of the LLM, and lists the nodes copied from.

    A `Response` of it has

    - `response`: the answer, with `[n]` marks if `markers=True`;
    - `source_nodes`: `CitedNode`s, only nodes that the answer copies from, in the order of their
      first citation, each with `citations` and the `ranges` of its text that were copied;
    - `metadata["citations"]`: all citations in reading order, as plain values.

    Examples:
        ```python
        engine = NestQueryEngine.from_args(index, llm=NestLLM(), similarity_top_k=5)
        response = engine.query("How long must the dough rest?")
        ```
    """

    def __init__(
        self,
        retriever: BaseRetriever,
        response_synthesizer: NestSynthesizer | None = None,
        node_postprocessors: list[BaseNodePostprocessor] | None = None,
        callback_manager: CallbackManager | None = None,
    ) -> None:
        """Answer what `retriever` finds; `from_args` is the usual way to make one.

        Args:
            retriever: Finds the nodes.
            response_synthesizer: Answers from them; by default with the LLM of LlamaIndex's `Settings`.
            node_postprocessors: Rerankers, cut-offs and the like, in order.
            callback_manager: Where callbacks go.
        """
        super().__init__(
            retriever,
            response_synthesizer=response_synthesizer or NestSynthesizer(callback_manager=callback_manager),
            node_postprocessors=node_postprocessors,
            callback_manager=callback_manager,
        )

    @classmethod
    def from_args(  # type: ignore[override]
        cls,
        retriever: Any,
        llm: LLM | None = None,
        *,
        similarity_top_k: int | None = None,
        node_postprocessors: list[BaseNodePostprocessor] | None = None,
        streaming: bool = False,
        markers: bool = False,
        empty_response: str | None = None,
        task: Task = "question",
        callback_manager: CallbackManager | None = None,
        settings: dict[str, Any] | None = None,
        **retriever_arguments: Any,
    ) -> Self:
        """Make a query engine over anything that can be searched.

        Args:
            retriever: An index, a retriever, a vector store (with `embed_model=`), nodes, or a source of `nest_engine`.
            llm: A `NestLLM`; by default that of LlamaIndex's `Settings`.
            similarity_top_k: Nodes to retrieve; by default the LLM's `top_passages`. A retriever has its own number.
            node_postprocessors: Rerankers, cut-offs and the like, in order.
            streaming: Return streaming responses.
            markers: Write `[n]` behind what was copied.
            empty_response: What to answer where nothing is found; by default the plain model answers.
            task: How the question is worded for the model.
            callback_manager: Where callbacks go.
            settings: Settings of `NestConfig` that differ from the LLM's.
            **retriever_arguments: For `index.as_retriever`, such as `filters`.

        Raises:
            ConfigError: If the LLM is no `NestLLM`, or there is nothing to search.
        """
        nest = find_llm(llm)
        manager = callback_manager or Settings.callback_manager
        synthesizer = NestSynthesizer(
            nest,
            streaming=streaming,
            markers=markers,
            empty_response=empty_response,
            task=task,
            callback_manager=manager,
            **(settings or {}),
        )
        top_k = similarity_top_k or (settings or {}).get("top_passages") or nest.config.top_passages
        found = to_retriever(retriever, similarity_top_k=top_k, **retriever_arguments)
        return cls(found, synthesizer, node_postprocessors, manager)

    def retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        """Retrieve and postprocess nodes.

        Raises:
            SourceError: If the retriever fails.
        """
        with explain_errors(self._retriever):
            nodes = self._retriever.retrieve(query_bundle)
        return self._apply_node_postprocessors(nodes, query_bundle=query_bundle)

    async def aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        """Retrieve and postprocess nodes: see `retrieve`."""
        with explain_errors(self._retriever):
            nodes = await self._retriever.aretrieve(query_bundle)
        return await self._async_apply_node_postprocessors(nodes, query_bundle=query_bundle)

    def with_retriever(self, retriever: BaseRetriever) -> NestQueryEngine:
        """The same query engine over another retriever."""
        return type(self)(
            retriever,
            self._response_synthesizer,  # type: ignore[arg-type]
            self._node_postprocessors,
            self.callback_manager,
        )
