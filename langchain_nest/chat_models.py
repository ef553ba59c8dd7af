"""`ChatNest`: a chat model that copies from your documents and cites what it copied."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Generator, Iterator, Sequence
from contextlib import aclosing, closing
from dataclasses import dataclass
from itertools import chain
from operator import itemgetter
from typing import Any, Literal, Self

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import LangSmithParams, LanguageModelInput, ModelProfile
from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, message_chunk_to_message
from langchain_core.messages.ai import UsageMetadata
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.outputs.chat_generation import merge_chat_generation_chunks
from langchain_core.runnables import Runnable, RunnableMap, RunnablePassthrough, run_in_executor
from langchain_core.tools import BaseTool
from langchain_core.utils.function_calling import convert_to_json_schema
from langchain_core.utils.pydantic import is_basemodel_subclass
from pydantic import BaseModel, model_validator

from langchain_nest.callbacks import achild_callbacks, child_callbacks
from langchain_nest.citations import CitationWriter, answer_info
from langchain_nest.identity import describe
from langchain_nest.messages import add_to_system, attached_documents, last_question, to_messages
from langchain_nest.models import Call, NestModel, refuse_unknown
from langchain_nest.parsers import JsonParser, ObjectParser
from langchain_nest.running import arun
from langchain_nest.sources import FoundPassages
from langchain_nest.tools import Request, read_request, to_chunk, to_tool
from langchain_nest.version import VERSION
from nest_engine import Generation, GenerationPiece
from nest_engine.constrained import CallScanner, Grammar, GrammarProcessor, ToolCall, constrain
from nest_engine.constrained.tools import choose
from nest_engine.errors import ConfigError
from nest_engine.lm.prompts import PromptBuilder, Task

Method = Literal["json_schema", "function_calling", "json_mode"]

_TOOL_ARGUMENTS = ("tools", "tool_choice", "parallel_tool_calls", "response_format", "strict")


class ChatNest(NestModel, BaseChatModel):
    """Chat model with nearest neighbor speculative decoding (NEST).

    What it copies from documents is cited in the standard form: the answer's text block has
    `annotations`, each a `Citation` with the range in the answer; `extras` hold the document's id
    and the range in its `page_content`. `cited_documents(message)` gives the documents back.

    One model answers one token at a time: `batch` and concurrent calls share it, each call with
    the same result as alone, and are not faster than one call after the other.

    Example:
        ```python
        from langchain_nest import ChatNest, cited_documents

        model = ChatNest(model="smollm2-135m-instruct", vectorstore=store)
        message = model.invoke("What does the with statement do?")
        for block in message.content_blocks:
            print(block["text"], block.get("annotations"))
        print(cited_documents(message))
        ```
    """

    task: Task = "chat"
    """How the prompt is worded: `"chat"`: the messages as they are; `"question"`: the paper's wording."""

    @model_validator(mode="after")
    def _set_nest_version(self) -> Self:
        self._add_version("nest-rag", VERSION)
        return self

    # --- one answer

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        return _merge(list(self._stream(messages, stop, run_manager, **kwargs)))

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        return _merge([chunk async for chunk in self._astream(messages, stop, run_manager, **kwargs)])

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:
        call, request = self._call(messages, stop, kwargs)
        found = call.find(child_callbacks(run_manager))
        with closing(_answer(call, request, messages, found)) as chunks:
            yield from chunks

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        # Loading the model takes seconds, so it is no work for the event loop either.
        call, request = await run_in_executor(None, self._call, messages, stop, kwargs)
        found = await call.afind(achild_callbacks(run_manager))
        async with aclosing(arun(_answer(call, request, messages, found))) as chunks:
            async for chunk in chunks:
                yield chunk

    def _call(self, messages: list[BaseMessage], stop: list[str] | None, given: dict[str, Any]) -> tuple[Call, Request]:
        given = dict(given)
        brought = attached_documents(messages)
        if brought and not any(
            given.get(name) is not None for name in ("documents", "retriever", "vectorstore", "source")
        ):
            given["documents"] = brought
        call = self._prepare(messages, lambda: last_question(messages), stop, given)
        rest = dict(call.rest)
        request = read_request(rest)
        refuse_unknown(rest, _TOOL_ARGUMENTS)
        return call, request

    # --- tools and structured output

    def bind_tools(
        self,
        tools: Sequence[dict[str, Any] | type | Callable[..., Any] | BaseTool],
        *,
        tool_choice: dict[str, Any] | str | bool | None = None,
        parallel_tool_calls: bool = False,
        **kwargs: Any,
    ) -> Runnable[LanguageModelInput, AIMessage]:
        """Let the model call tools. Calls are decoded under a grammar: they always fit the tools' schemas.

        Args:
            tools: Tools, functions, pydantic classes, typed dicts or schemas.
            tool_choice: `"auto"` (the default): text or a call; `"any"`: a call; a tool's name: a call of
                it; `"none"`: text.
            parallel_tool_calls: Allow several calls in one answer.
            **kwargs: More arguments of the call.

        Raises:
            ConfigError: If something is no tool, or the choice fits none.
        """
        listed = [to_tool(tool).to_dict() for tool in tools]
        if tool_choice is not None:
            kwargs["tool_choice"] = tool_choice
        if parallel_tool_calls:
            kwargs["parallel_tool_calls"] = True
        request = read_request({"tools": listed, **{n: v for n, v in kwargs.items() if n in _TOOL_ARGUMENTS}})
        if request.tools and request.choice != "none":
            choose(request.tools, request.choice)  # refused here and not at the first call
        return self.bind(tools=listed, **kwargs)

    def with_structured_output(
        self,
        schema: dict[str, Any] | type,
        *,
        include_raw: bool = False,
        method: Method = "json_schema",
        strict: bool | None = None,
        **kwargs: Any,
    ) -> Runnable[LanguageModelInput, dict[str, Any] | BaseModel]:
        """Make the model answer with an object that follows a schema: see LangChain's guide.

        Args:
            schema: A pydantic class, a typed dict, a JSON schema or an OpenAI function.
            include_raw: Return the message and errors too, as a dict of `raw`, `parsed` and `parsing_error`.
            method: `"json_schema"`: the answer is JSON; `"function_calling"`: it is a call; `"json_mode"`: as
                the first, without telling the model the schema.
            strict: Accepted for the sake of other models: the schema is always followed strictly.
            **kwargs: More arguments of the call.

        Raises:
            ConfigError: If the method is unknown.
        """
        if method == "function_calling":
            return super().with_structured_output(schema, include_raw=include_raw, **kwargs)
        if method not in ("json_schema", "json_mode"):
            raise ConfigError(f"no method {method!r}; there are json_schema, function_calling and json_mode")
        described = convert_to_json_schema(schema)
        model = self.bind(
            response_format={
                "type": "json_schema",
                "json_schema": {"name": described.get("title", "answer"), "schema": described},
                "silent": method == "json_mode",
            },
            ls_structured_output_format={"kwargs": {"method": method, "strict": strict}, "schema": schema},
            **kwargs,
        )
        return _parsed(model, schema, include_raw=include_raw)

    # --- what LangChain wants to know

    @property
    def _llm_type(self) -> str:
        return "nest-chat"

    @property
    def _identifying_params(self) -> dict[str, Any]:
        return self._identity()

    def _get_invocation_params(self, stop: list[str] | None = None, **kwargs: Any) -> dict[str, Any]:
        return super()._get_invocation_params(stop=stop, **{n: describe(v) for n, v in kwargs.items()})

    def _get_llm_string(self, stop: list[str] | None = None, **kwargs: Any) -> str:
        # The key of LangChain's cache: objects are named, as their addresses are used again.
        return super()._get_llm_string(stop=stop, **{n: describe(v) for n, v in kwargs.items()})

    def _get_ls_params(self, stop: list[str] | None = None, **kwargs: Any) -> LangSmithParams:
        params: LangSmithParams = {**self._trace_params(stop, kwargs), "ls_model_type": "chat"}
        return params

    def _resolve_model_profile(self) -> ModelProfile:
        return ModelProfile(
            image_inputs=False,
            audio_inputs=False,
            video_inputs=False,
            pdf_inputs=False,
            text_inputs=True,
            text_outputs=True,
            tool_calling=True,
            tool_choice=True,
            structured_output=True,
        )

    def get_token_ids(self, text: str) -> list[int]:
        """Token ids of a text, by the model's own tokenizer; loads the model."""
        if self.custom_get_token_ids is not None:
            return self.custom_get_token_ids(text)
        return self.load().model.tokenizer.encode(text).ids

    def get_num_tokens_from_messages(self, messages: list[BaseMessage], tools: Sequence[Any] | None = None) -> int:
        """Tokens of the prompt that the messages make in the model's chat template, without passages."""
        tokenizer = self.load().model.tokenizer
        request = Request(tuple(to_tool(tool) for tool in tools or ()), "auto")
        turns, arguments = _wording(messages, request, native_tools=tokenizer.template_calls_tools)
        builder = PromptBuilder(tokenizer, 1 << 30)
        return len(builder.build(turns, task="chat", template_arguments=arguments).ids)


def _wording(
    messages: Sequence[BaseMessage], request: Request, *, native_tools: bool
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The engine's messages and the variables of the chat template."""
    turns = to_messages(messages, native_tools=native_tools)
    instructions = request.instructions(native_tools=native_tools)
    if instructions:
        turns = add_to_system(turns, instructions)
    arguments = {"tools": [t.to_dict() for t in request.tools]} if request.tools and native_tools else {}
    return turns, arguments


def _answer(
    call: Call, request: Request, messages: Sequence[BaseMessage], found: FoundPassages | None
) -> Generator[ChatGenerationChunk, None, None]:
    """Answer in chunks."""
    turns, arguments = _wording(messages, request, native_tools=call.engine.model.tokenizer.template_calls_tools)
    grammar = request.grammar

    def constrained(grammar: Grammar) -> Generator[GenerationPiece, None, None]:
        config = constrain(call.config)
        processor = GrammarProcessor(grammar, call.engine.model, config.max_new_tokens)
        return call.stream(turns, found, config=config, processors=[processor], template_arguments=arguments)

    def free() -> Generator[GenerationPiece, None, None]:
        return call.stream(turns, found, template_arguments=arguments)

    if grammar is None:
        yield from _Writer(call, found).write(free())
    elif not (grammar.allows_text and found is not None):
        yield from _Writer(call, scanner=CallScanner() if request.tools else None).write(constrained(grammar))
    else:
        # The plain LM decides between a call and a text; if it is to be a text, it is NEST's.
        calls = _calls_only(constrained(grammar))
        if calls is None:
            yield from _Writer(call, found).write(free())
        else:
            yield from _Writer(call, scanner=CallScanner()).write(calls)


def _calls_only(pieces: Generator[GenerationPiece, None, None]) -> Generator[GenerationPiece, None, None] | None:
    """The pieces of an answer that begins with a call; None where it begins with text."""
    scanner, seen = CallScanner(), []
    for piece in pieces:
        seen.append(piece)
        text, _ = scanner.add(piece.text)
        if text.strip() or (piece.generation is not None and not scanner.in_call and not scanner.calls):
            pieces.close()
            return None
        if scanner.in_call or scanner.calls:
            break
    return _again(seen, pieces)


def _again(
    seen: Sequence[GenerationPiece], pieces: Generator[GenerationPiece, None, None]
) -> Generator[GenerationPiece, None, None]:
    with closing(pieces):
        yield from chain(seen, pieces)


@dataclass
class _Writer:
    """Writes the pieces of one answer as chunks of a message.

    A text that may be cited is one block with annotations; any other is a plain string.

    Attributes:
        call: The call.
        found: What was searched; None: no citations can come.
        scanner: Finds tool calls in the text; None: there are none.
    """

    call: Call
    found: FoundPassages | None = None
    scanner: CallScanner | None = None

    def write(self, pieces: Generator[GenerationPiece, None, None]) -> Generator[ChatGenerationChunk, None, None]:
        with closing(pieces):
            for piece in pieces:
                yield from self._write_piece(piece)

    def _write_piece(self, piece: GenerationPiece) -> Iterator[ChatGenerationChunk]:
        text = piece.text
        calls: list[ToolCall] = []
        before = len(self.scanner.calls) if self.scanner is not None else 0
        if self.scanner is not None:
            text, calls = self.scanner.add(piece.text)
            if piece.generation is not None:
                rest, cut = self.scanner.finish()
                text, calls = text + rest, calls + cut
        chunks = [to_chunk(found, before + i) for i, found in enumerate(calls)]
        if text or chunks:
            yield ChatGenerationChunk(message=AIMessageChunk(content=self._content(text), tool_call_chunks=chunks))
        if piece.generation is not None:
            yield self._last(piece.generation)

    def _content(self, text: str, annotations: Sequence[Any] = ()) -> Any:
        if self.found is None:
            return text
        block: dict[str, Any] = {"type": "text", "text": text, "index": 0}
        if annotations:
            block["annotations"] = list(annotations)
        return [block]

    def _last(self, generation: Generation) -> ChatGenerationChunk:
        """The chunk that ends a stream: what is told once, as LangChain adds up what comes twice."""
        writer = CitationWriter(self.call.citable(generation, self.found))
        writer.add(generation.citations)
        info = answer_info(generation, writer.documents)
        if self.scanner is not None and self.scanner.calls:
            info["finish_reason"] = "tool_calls"
        stats = generation.stats
        message = AIMessageChunk(
            content=self._content("", writer.written),
            chunk_position="last",
            response_metadata={"model_name": self.call.model_name, "model_provider": "nest", **info},
            usage_metadata=UsageMetadata(
                input_tokens=stats.prompt_tokens,
                output_tokens=stats.tokens,
                total_tokens=stats.prompt_tokens + stats.tokens,
            ),
        )
        return ChatGenerationChunk(message=message)


def _merge(chunks: list[ChatGenerationChunk]) -> ChatResult:
    """One answer from its chunks: so that it is what a stream adds up to."""
    merged = merge_chat_generation_chunks(chunks)
    if merged is None:
        raise RuntimeError("an answer without chunks")
    message = message_chunk_to_message(merged.message)
    return ChatResult(generations=[ChatGeneration(message=message, generation_info=merged.generation_info)])


def _parsed(model: Runnable[Any, AIMessage], schema: Any, *, include_raw: bool) -> Runnable[Any, Any]:
    """A model whose answers are parsed, and with `include_raw` kept beside what was parsed."""
    is_class = isinstance(schema, type) and is_basemodel_subclass(schema)
    parser: Runnable[Any, Any] = ObjectParser(pydantic_object=schema) if is_class else JsonParser()
    if not include_raw:
        return model | parser
    parsed = RunnablePassthrough.assign(parsed=itemgetter("raw") | parser, parsing_error=lambda _: None)
    failed = RunnablePassthrough.assign(parsed=lambda _: None)
    return RunnableMap(raw=model) | parsed.with_fallbacks([failed], exception_key="parsing_error")
