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
from llama_index.core.llms.llm import default_completion_to_prompt

from llama_index_nest.concurrency import start_in_thread
from llama_index_nest.messages import EnginePrompt, to_engine_messages, word_by
from llama_index_nest.responses import AnswerSoFar
from llama_index_nest.settings import read_call_settings, read_settings
from llama_index_nest.sources import NodeSource, take_source
from nest_engine.config import PRESETS, NestConfig
from nest_engine.engine import NestEngine
from nest_engine.errors import ConfigError
from nest_engine.generation import GenerationPiece
from nest_engine.lm.loading import wrap_model
from nest_engine.lm.prompts import Message, Task, find_query, to_messages
from nest_engine.retrieval.source import ListSource, PassageSource

logger = logging.getLogger(__name__)

DEFAULT_MODEL = "smollm2-135m-instruct"

_ENGINE_ARGUMENTS = ("query", "logits_processors", "template_arguments")


class NestLLM(CustomLLM):
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
            is_function_calling_model=False,
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
        return self._finish(self._start_completion(prompt, formatted, kwargs)).to_completion()

    @llm_completion_callback()
    def stream_complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponseGen:
        """Complete a prompt piece by piece: see `complete`. Each item holds the whole text so far."""
        pieces = self._start_completion(prompt, formatted, kwargs)

        def generate() -> CompletionResponseGen:
            answer = AnswerSoFar(self.model_name)
            for piece in pieces:
                yield answer.add(piece).to_completion(piece.text)

        return generate()

    @llm_chat_callback()
    def chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        """Answer chat messages.

        Args:
            messages: The conversation; only roles and texts are read.
            **kwargs: As in `complete`.

        Returns:
            A message of one text block and a block for each citation; more in `additional_kwargs` and `raw`.

        Raises:
            NestError: If the call or the source is at fault; the message says how to put it right.
        """
        return self._finish(self._start_chat(messages, kwargs)).to_chat()

    @llm_chat_callback()
    def stream_chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponseGen:
        """Answer chat messages piece by piece: see `chat`. Each item holds the whole message so far."""
        pieces = self._start_chat(messages, kwargs)

        def generate() -> ChatResponseGen:
            answer = AnswerSoFar(self.model_name)
            for piece in pieces:
                yield answer.add(piece).to_chat(piece.text)

        return generate()

    @llm_completion_callback()
    async def acomplete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        """Complete a prompt without blocking the event loop: see `complete`."""
        answer = await self._afinish(lambda: self._start_completion(prompt, formatted, kwargs))
        return answer.to_completion()

    @llm_completion_callback()
    async def astream_complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponseAsyncGen:
        """Complete a prompt piece by piece without blocking the event loop. Closing it ends the work."""
        pieces = await start_in_thread(lambda: self._start_completion(prompt, formatted, kwargs))

        async def generate() -> CompletionResponseAsyncGen:
            answer = AnswerSoFar(self.model_name)
            async for piece in pieces:
                yield answer.add(piece).to_completion(piece.text)

        return generate()

    @llm_chat_callback()
    async def achat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        """Answer chat messages without blocking the event loop: see `chat`."""
        answer = await self._afinish(lambda: self._start_chat(messages, kwargs))
        return answer.to_chat()

    @llm_chat_callback()
    async def astream_chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponseAsyncGen:
        """Answer chat messages piece by piece without blocking the event loop. Closing it ends the work."""
        pieces = await start_in_thread(lambda: self._start_chat(messages, kwargs))

        async def generate() -> ChatResponseAsyncGen:
            answer = AnswerSoFar(self.model_name)
            async for piece in pieces:
                yield answer.add(piece).to_chat(piece.text)

        return generate()

    def _finish(self, pieces: Generator[GenerationPiece, None, None]) -> AnswerSoFar:
        answer = AnswerSoFar(self.model_name)
        for piece in pieces:
            answer.add(piece)
        return answer

    async def _afinish(self, start: Callable[[], Generator[GenerationPiece, None, None]]) -> AnswerSoFar:
        answer = AnswerSoFar(self.model_name)
        pieces: AsyncGenerator[GenerationPiece, None] = await start_in_thread(start)
        async for piece in pieces:
            answer.add(piece)
        return answer

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
        self, messages: Sequence[ChatMessage], kwargs: dict[str, Any]
    ) -> Generator[GenerationPiece, None, None]:
        read = self._with_system_prompt(to_engine_messages(messages))
        task: Task | None = kwargs.pop("task", None)
        word = self.messages_to_prompt
        if word is not None and word is not generic_messages_to_prompt:
            return self._start(self._word_by(word, read), task, kwargs)
        return self._start(EnginePrompt(read, "chat"), task, kwargs)

    def _start(
        self, prompt: EnginePrompt, task: Task | None, kwargs: dict[str, Any]
    ) -> Generator[GenerationPiece, None, None]:
        """Check a call and start it; the work begins when the first piece is asked for."""
        arguments = {name: kwargs.pop(name) for name in _ENGINE_ARGUMENTS if kwargs.get(name) is not None}
        source = take_source(kwargs) or self._source
        settings = read_call_settings(kwargs)
        if isinstance(source, NodeSource | ListSource):
            settings.setdefault("top_passages", max(1, len(source.passages)))
        template = {**prompt.template_arguments, **arguments.pop("template_arguments", {})}
        arguments.setdefault("query", prompt.query)
        config = self.engine.config.replace(**self.settings).replace(**settings)
        if source is None:
            config = config.replace(mode="lm", passages_in_prompt=None)
        pieces: Generator[GenerationPiece, None, None] = self.engine.stream(  # type: ignore[assignment]
            prompt.messages,
            source=source,
            task=task or prompt.task,
            template_arguments=template,
            config=config,
            **arguments,
        )
        return pieces

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
