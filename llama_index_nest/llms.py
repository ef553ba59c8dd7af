"""`NestLLM`: a local language model for LlamaIndex that copies from your nodes and cites what it copied."""

from __future__ import annotations

import logging
import threading
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from dataclasses import asdict
from typing import Any, Self

from llama_index.core.base.llms.generic_utils import messages_to_prompt as generic_messages_to_prompt
from llama_index.core.base.llms.types import (
    ChatMessage,
    ChatResponse,
    ChatResponseAsyncGen,
    ChatResponseGen,
    CompletionResponse,
    CompletionResponseAsyncGen,
    CompletionResponseGen,
    LLMMetadata,
)
from llama_index.core.bridge.pydantic import Field, PrivateAttr
from llama_index.core.llms.callbacks import llm_chat_callback, llm_completion_callback
from llama_index.core.llms.custom import CustomLLM
from llama_index.core.llms.function_calling import FunctionCallingLLM
from llama_index.core.llms.llm import ToolSelection, default_completion_to_prompt
from llama_index.core.program.utils import get_program_for_llm
from llama_index.core.prompts import PromptTemplate
from llama_index.core.tools.types import BaseTool
from llama_index.core.types import BasePydanticProgram

from llama_index_nest.concurrency import start_in_thread
from llama_index_nest.messages import EnginePrompt, find_question, to_engine_messages, word_by
from llama_index_nest.responses import AnswerSoFar
from llama_index_nest.settings import read_call_settings, read_settings
from llama_index_nest.sources import NodeSource, take_source
from llama_index_nest.tools import ToolRequest, can_call_tools, find_calls, select_calls, take_request
from nest_engine.config import PRESETS, NestConfig
from nest_engine.constrained import CallScanner, Grammar, GrammarProcessor, constrain
from nest_engine.engine import NestEngine
from nest_engine.errors import ConfigError
from nest_engine.generation import GenerationPiece
from nest_engine.lm.loading import wrap_model
from nest_engine.lm.prompts import Message, Task, find_query, to_messages
from nest_engine.retrieval.source import ListSource, PassageSource

logger = logging.getLogger(__name__)

DEFAULT_MODEL = "smollm2-135m-instruct"

_ENGINE_ARGUMENTS = ("query", "logits_processors", "template_arguments")


class NestLLM(CustomLLM, FunctionCallingLLM):
    """A local language model that answers from your nodes and says, to the character, what it copied.

    Give it passages to copy from with one of `index=`, `retriever=`, `nodes=`,
    `vector_store=` (with `embed_model=`) and `source=` (a source of `nest_engine`), here or in
    a single call. Without one it is the plain model.

    Every setting of `NestConfig` is a keyword here and in each call: `mode="ra-nest"`,
    `gamma=0.05`, `stop=["END"]`. The model is loaded when it is first needed.

    Examples:
        ```python
        llm = NestLLM(model_name="smollm2-135m-instruct", index=index)
        response = llm.complete("How long must the dough rest?")
        response.text, response.additional_kwargs["citations"]
        ```
    """

    model_name: str = Field(
        default=DEFAULT_MODEL, description="A demo model's name, a folder, a .gguf file, or a hub id."
    )
    context_window: int | None = Field(default=None, gt=0, description="Tokens to plan with; by default the model's.")
    device: str | None = Field(default=None, description="Where the model goes; by default the CPU.")
    device_map: Any = Field(default=None, description="Spread the model over devices, instead of `device`.")
    dtype: str | None = Field(default=None, description="Number format of the weights, such as 'bfloat16'.")
    model_kwargs: dict[str, Any] = Field(
        default_factory=dict, description="More arguments of transformers' from_pretrained."
    )
    is_chat_model: bool | None = Field(
        default=None, description="Whether prompts go through chat(); by default, whether there is a chat template."
    )
    task: Task = Field(default="chat", description="How complete() words a prompt that is not formatted yet.")
    settings: dict[str, Any] = Field(
        default_factory=dict, description="Settings of NestConfig that differ from the model's preset."
    )

    _engine: NestEngine | None = PrivateAttr(default=None)
    _source: PassageSource | None = PrivateAttr(default=None)
    _model: tuple[Any, Any] | None = PrivateAttr(default=None)
    _lock: Any = PrivateAttr(default_factory=threading.Lock)

    def __init__(
        self,
        model_name: str = DEFAULT_MODEL,
        *,
        engine: NestEngine | None = None,
        config: NestConfig | None = None,
        settings: dict[str, Any] | None = None,
        model: Any = None,
        tokenizer: Any = None,
        tokenizer_name: str | None = None,
        generate_kwargs: dict[str, Any] | None = None,
        **arguments: Any,
    ) -> None:
        """Describe the model; it is loaded when it is first needed.

        Args:
            model_name: A demo model's name, a folder, a `.gguf` file, or a hub id.
            engine: An engine to use instead of loading one; several LLMs, also of LangChain, can share it.
            config: All settings at once; single ones go on top.
            settings: Single settings as a dictionary, as `to_dict` writes them.
            model: A loaded model of transformers, instead of a name; with `tokenizer`.
            tokenizer: Its tokenizer.
            tokenizer_name: Accepted as in `HuggingFaceLLM`, if it is the same as `model_name`.
            generate_kwargs: Accepted as in `HuggingFaceLLM`: `do_sample`, `temperature`, `top_k`, `top_p`,
                `max_new_tokens`.
            **arguments: Fields of this class, a source of passages, and settings of `NestConfig`.

        Raises:
            ConfigError: If an argument is unknown, out of range, or contradicts another one.
        """
        if tokenizer_name not in (None, model_name):
            raise ConfigError("another tokenizer than the model's: load both and give them as model= and tokenizer=")
        if (model is None) != (tokenizer is None):
            raise ConfigError("model= and tokenizer= belong together: give both, or only model_name=")
        source = take_source(arguments)
        fields = {name: arguments.pop(name) for name in list(arguments) if name in type(self).model_fields}
        chosen = {**(asdict(config) if config else {}), **(settings or {})}
        chosen |= read_settings({**(generate_kwargs or {}), **arguments})
        super().__init__(model_name=engine.model.name if engine is not None else model_name, settings=chosen, **fields)
        self._engine, self._source = engine, source
        self._model = None if model is None else (model, tokenizer)
        self._check_settings()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the configuration: the copy loads the model again, and has no source of passages."""
        return type(self).from_dict, (self.to_dict(),)

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        """A copy that shares the engine: copying a model's weights is never what is meant."""
        return self.model_copy()

    @classmethod
    def class_name(cls) -> str:
        """The name under which this class is serialized."""
        return "NestLLM"

    @property
    def engine(self) -> NestEngine:
        """The engine, loaded when first asked for.

        Raises:
            ModelNotFoundError: If there is no such model.
            UnsupportedModelError: If NEST cannot run on it.
        """
        with self._lock:
            if self._engine is None:
                self._engine = self._load()
            return self._engine

    @property
    def config(self) -> NestConfig:
        """The settings that calls start from."""
        if self._engine is not None:
            return self._engine.config.replace(**self.settings)
        if self.model_name in PRESETS:
            return NestConfig.preset(self.model_name, **self.settings)
        return NestConfig().replace(**self.settings)

    @property
    def metadata(self) -> LLMMetadata:
        """What LlamaIndex wants to know of the model; loads it."""
        window = self.engine.model.lm.context_window
        if self.context_window is not None and self.context_window > window:
            logger.warning("context_window=%d is more than the model's %d tokens", self.context_window, window)
        return LLMMetadata(
            context_window=min(self.context_window or window, window),
            num_output=self.config.max_new_tokens,
            is_chat_model=self._is_chat_model(),
            is_function_calling_model=can_call_tools() and self._is_chat_model(),
            model_name=self.model_name,
        )

    def to_payload(self) -> dict[str, Any]:
        """What traces say of this model. It never loads the model: that would block an event loop."""
        return {"class_name": self.class_name(), "model_name": self.model_name, **self.settings}

    @llm_completion_callback()
    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        """Complete a prompt.

        Args:
            prompt: The prompt.
            formatted: Whether it is to be read exactly as it is, without the chat template.
            **kwargs: For this call: a source of passages, settings of `NestConfig`, `task`,
                `query`, `logits_processors`, `template_arguments`.

        Returns:
            The text, with the citations in `additional_kwargs["citations"]` and everything else in `raw`.

        Raises:
            NestError: If the call or the source is at fault; the message says how to put it right.
        """
        answer = AnswerSoFar(self.model_name)
        for piece in self._start_completion(prompt, formatted, kwargs):
            answer.add(piece)
        return answer.to_completion()

    @llm_completion_callback()
    def stream_complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponseGen:
        """Complete a prompt piece by piece: see `complete`. Each item holds the whole text so far."""
        pieces = self._start_completion(prompt, formatted, kwargs)

        def generate() -> CompletionResponseGen:
            answer = AnswerSoFar(self.model_name)
            for piece in pieces:
                yield answer.add(piece).to_completion(streamed=True)

        return generate()

    @llm_chat_callback()
    def chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        """Answer chat messages.

        Args:
            messages: The conversation; only roles and texts are read.
            **kwargs: As in `complete`; also `tools`, `tool_choice` and `parallel_tool_calls`.

        Returns:
            A message of one text block and a block for each citation and tool call; more in
            `additional_kwargs` and `raw`.

        Raises:
            NestError: If the call or the source is at fault; the message says how to put it right.
        """
        answer = AnswerSoFar(self.model_name)
        for piece in self._start_chat(answer, messages, kwargs):
            answer.add(piece)
        return answer.to_chat()

    @llm_chat_callback()
    def stream_chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponseGen:
        """Answer chat messages piece by piece: see `chat`. Each item holds the whole message so far."""
        answer = AnswerSoFar(self.model_name)
        pieces = self._start_chat(answer, messages, kwargs)

        def generate() -> ChatResponseGen:
            for piece in pieces:
                yield answer.add(piece).to_chat(streamed=True)

        return generate()

    @llm_completion_callback()
    async def acomplete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        """Complete a prompt without blocking the event loop: see `complete`."""
        answer = AnswerSoFar(self.model_name)
        async for piece in await start_in_thread(lambda: self._start_completion(prompt, formatted, kwargs)):
            answer.add(piece)
        return answer.to_completion()

    @llm_completion_callback()
    async def astream_complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponseAsyncGen:
        """Complete a prompt piece by piece without blocking the event loop. Closing it ends the work."""
        pieces = await start_in_thread(lambda: self._start_completion(prompt, formatted, kwargs))

        async def generate() -> CompletionResponseAsyncGen:
            answer = AnswerSoFar(self.model_name)
            async for piece in pieces:
                yield answer.add(piece).to_completion(streamed=True)

        return generate()

    @llm_chat_callback()
    async def achat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        """Answer chat messages without blocking the event loop: see `chat`."""
        answer = AnswerSoFar(self.model_name)
        async for piece in await start_in_thread(lambda: self._start_chat(answer, messages, kwargs)):
            answer.add(piece)
        return answer.to_chat()

    @llm_chat_callback()
    async def astream_chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponseAsyncGen:
        """Answer chat messages piece by piece without blocking the event loop. Closing it ends the work."""
        answer = AnswerSoFar(self.model_name)
        pieces = await start_in_thread(lambda: self._start_chat(answer, messages, kwargs))

        async def generate() -> ChatResponseAsyncGen:
            async for piece in pieces:
                yield answer.add(piece).to_chat(streamed=True)

        return generate()

    def get_tool_calls_from_response(
        self, response: ChatResponse, error_on_no_tool_call: bool = True, **kwargs: Any
    ) -> list[ToolSelection]:
        """The tool calls of a chat response.

        Raises:
            ConfigError: If there is none, and there must be one.
        """
        return select_calls(response, error_on_no_tool_call=error_on_no_tool_call)

    def _prepare_chat_with_tools(
        self,
        tools: Sequence[BaseTool],
        user_msg: str | ChatMessage | None = None,
        chat_history: list[ChatMessage] | None = None,
        verbose: bool = False,
        allow_parallel_tool_calls: bool = False,
        tool_required: bool = False,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """The arguments of `chat` for a conversation with tools, as LlamaIndex's agents ask for them."""
        last = ChatMessage(role="user", content=user_msg) if isinstance(user_msg, str) else user_msg
        choice = kwargs.pop("tool_choice", None)
        return {
            "messages": [*(chat_history or []), *([last] if last is not None else [])],
            "tools": list(tools),
            "tool_choice": "any" if tool_required and choice in (None, "auto") else choice,
            "parallel_tool_calls": allow_parallel_tool_calls,
            **kwargs,
        }

    def _structured_stream_call(
        self,
        output_cls: type[Any],
        prompt: PromptTemplate,
        llm_kwargs: dict[str, Any] | None = None,
        **prompt_args: Any,
    ) -> Generator[Any, None, None]:
        """Stream an object. LlamaIndex's own program leaves the model free to answer with text instead."""
        stream = self._program(output_cls, prompt).stream_call
        return stream(llm_kwargs=llm_kwargs, **prompt_args)

    async def _structured_astream_call(
        self,
        output_cls: type[Any],
        prompt: PromptTemplate,
        llm_kwargs: dict[str, Any] | None = None,
        **prompt_args: Any,
    ) -> AsyncGenerator[Any, None]:
        """Stream an object: see `_structured_stream_call`."""
        return await self._program(output_cls, prompt).astream_call(llm_kwargs=llm_kwargs, **prompt_args)

    def _program(self, output_cls: type[Any], prompt: PromptTemplate) -> BasePydanticProgram[Any]:
        return get_program_for_llm(
            output_cls, prompt, self, pydantic_program_mode=self.pydantic_program_mode, tool_choice="any"
        )

    def _start_completion(
        self, prompt: str, formatted: bool, kwargs: dict[str, Any]
    ) -> Generator[GenerationPiece, None, None]:
        message: Message = {"role": "user", "content": prompt}
        task: Task | None = kwargs.pop("task", None)
        if formatted:
            return self._start(EnginePrompt([message], "raw"), task, kwargs)
        word = self.completion_to_prompt
        if word is not None and word is not default_completion_to_prompt:
            return self._start(self._word_by(lambda m: word(m[0].content or ""), [message]), task, kwargs)
        return self._start(EnginePrompt(self._with_system_prompt([message]), self.task), task, kwargs)

    def _start_chat(
        self, answer: AnswerSoFar, messages: Sequence[ChatMessage], kwargs: dict[str, Any]
    ) -> Generator[GenerationPiece, None, None]:
        native = self.engine.model.tokenizer.template_calls_tools
        read = self._with_system_prompt(to_engine_messages(messages, native_tools=native))
        task: Task | None = kwargs.pop("task", None)
        request = take_request(kwargs)
        read, arguments = request.word(read, native=native)
        word = self.messages_to_prompt
        if word is not None and word is not generic_messages_to_prompt:
            prompt = self._word_by(word, read)
        else:
            prompt = EnginePrompt(read, "chat", arguments)
        kwargs.setdefault("query", find_question(messages))
        return self._start(prompt, task, kwargs, request, answer)

    def _start(
        self,
        prompt: EnginePrompt,
        task: Task | None,
        kwargs: dict[str, Any],
        request: ToolRequest | None = None,
        answer: AnswerSoFar | None = None,
    ) -> Generator[GenerationPiece, None, None]:
        """Check a call and start it; the work begins when the first piece is asked for."""
        arguments = {name: value for name in _ENGINE_ARGUMENTS if (value := kwargs.pop(name, None)) is not None}
        source = take_source(kwargs) or self._source
        settings = read_call_settings(kwargs)
        if isinstance(source, NodeSource | ListSource):
            settings.setdefault("top_passages", max(1, len(source.passages)))
        arguments.setdefault("query", prompt.query)
        arguments["template_arguments"] = {**prompt.template_arguments, **arguments.get("template_arguments", {})}
        config = self.engine.config.replace(**self.settings).replace(**settings)
        if source is None:
            config = config.replace(mode="lm", passages_in_prompt=None)

        def stream(config: NestConfig, **changes: Any) -> Generator[GenerationPiece, None, None]:
            pieces: Generator[GenerationPiece, None, None] = self.engine.stream(  # type: ignore[assignment]
                prompt.messages, source=source, task=task or prompt.task, config=config, **{**arguments, **changes}
            )
            return pieces

        grammar = request.grammar if request is not None else None
        if grammar is None or answer is None:
            return stream(config)
        tight = constrain(config)
        follow = GrammarProcessor(grammar, self.engine.model, tight.max_new_tokens)
        constrained = stream(tight, logits_processors=[*arguments.get("logits_processors", ()), follow])
        return _call_or_answer(answer, grammar, constrained, None if source is None else stream(config))

    def _word_by(self, function: Callable[[list[ChatMessage]], str], messages: list[Message]) -> EnginePrompt:
        """Word a prompt by the caller's function; its own control tokens count where the model knows chats."""
        if self.engine.model.tokenizer.has_chat_template:
            return word_by(function, messages)
        text = function([ChatMessage(role=m["role"], content=m["content"]) for m in messages])
        return EnginePrompt([{"role": "user", "content": text}], "raw", query=find_query(to_messages(messages)))

    def _with_system_prompt(self, messages: list[Message]) -> list[Message]:
        """The messages behind the LLM's own system prompt, where they bring none."""
        if not self.system_prompt or any(message["role"] == "system" for message in messages):
            return messages
        return [{"role": "system", "content": self.system_prompt}, *messages]

    def _is_chat_model(self) -> bool:
        if self.is_chat_model is not None:
            return self.is_chat_model
        own = self.messages_to_prompt is not generic_messages_to_prompt
        return own or self.engine.model.tokenizer.has_chat_template

    def _check_settings(self) -> None:
        """Refuse bad settings now, not in the first call."""
        layer = self.settings.get("key_layer")
        if self._engine is not None and layer not in (None, self._engine.config.key_layer):
            raise ConfigError("key_layer is fixed when the engine is made: make another engine for another layer")
        _ = self.config

    def _load(self) -> NestEngine:
        config = self.config
        if self._model is not None:
            return NestEngine(wrap_model(*self._model, key_layer=config.key_layer), config)
        return NestEngine.from_pretrained(
            self.model_name,
            config=config,
            device=self.device,
            device_map=self.device_map,
            dtype=self.dtype,
            model_arguments=self.model_kwargs,
        )


def _call_or_answer(
    answer: AnswerSoFar,
    grammar: Grammar,
    constrained: Generator[GenerationPiece, None, None],
    free: Generator[GenerationPiece, None, None] | None,
) -> Generator[GenerationPiece, None, None]:
    """Let the plain LM decide between a tool call and a text; if it is to be a text with citations, it is NEST's."""
    calls: Generator[GenerationPiece, None, None] | None = constrained
    if grammar.allows_text and free is not None:
        calls = find_calls(constrained)
    if calls is None and free is not None:
        yield from free
        return
    answer.scanner = CallScanner()
    yield from calls or constrained
