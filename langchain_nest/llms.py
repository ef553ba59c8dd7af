"""`NestLLM`: a text completion model that copies from your documents and tells what it copied."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import aclosing, closing
from typing import Any, Self

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import LangSmithParams
from langchain_core.language_models.llms import BaseLLM
from langchain_core.outputs import Generation, GenerationChunk, LLMResult
from langchain_core.runnables import run_in_executor
from pydantic import Field, model_validator

from langchain_nest.callbacks import achild_callbacks, child_callbacks
from langchain_nest.citations import CitationWriter, answer_info
from langchain_nest.identity import describe
from langchain_nest.models import Call, NestModel, refuse_unknown
from langchain_nest.running import arun
from langchain_nest.sources import FoundPassages
from langchain_nest.version import VERSION
from nest_engine import GenerationPiece
from nest_engine.lm.prompts import Task


class NestLLM(NestModel, BaseLLM):
    """Text completion with nearest neighbor speculative decoding (NEST).

    `generation_info` of an answer has the citations in LangChain's standard form, the documents
    that were copied from, and statistics; `invoke` returns the text alone, so use `generate` for
    them, or `ChatNest`.

    Prompts of one `generate` call are answered one after the other.

    Example:
        ```python
        from langchain_nest import NestLLM, cited_documents

        llm = NestLLM(model="smollm2-135m-instruct", task="question", vectorstore=store)
        answer = llm.generate(["What does the with statement do?"]).generations[0][0]
        print(answer.text, answer.generation_info["citations"], cited_documents(answer.generation_info))
        ```
    """

    task: Task = "raw"
    """How the prompt is worded: `"raw"`: as it is; `"question"`, `"article"`: the paper's wording, in the chat
    template; `"chat"`: as it is, in the chat template."""
    call_arguments: dict[str, Any] = Field(default_factory=dict, exclude=True, repr=False)
    """Arguments that every call gets: see `with_call_arguments`."""

    @model_validator(mode="after")
    def _set_nest_version(self) -> Self:
        self._add_version("nest-rag", VERSION)
        return self

    # --- answers

    def _generate(
        self,
        prompts: list[str],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> LLMResult:
        return _result([_merge(list(self._chunks(p, stop, run_manager, kwargs))) for p in prompts])

    async def _agenerate(
        self,
        prompts: list[str],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> LLMResult:
        return _result([_merge([c async for c in self._achunks(p, stop, run_manager, kwargs)]) for p in prompts])

    def _stream(
        self,
        prompt: str,
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[GenerationChunk]:
        for chunk in self._chunks(prompt, stop, run_manager, kwargs):
            if run_manager:
                run_manager.on_llm_new_token(chunk.text, chunk=chunk)
            yield chunk

    async def _astream(
        self,
        prompt: str,
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[GenerationChunk]:
        async for chunk in self._achunks(prompt, stop, run_manager, kwargs):
            if run_manager:
                await run_manager.on_llm_new_token(chunk.text, chunk=chunk)
            yield chunk

    def _chunks(
        self, prompt: str, stop: list[str] | None, run_manager: CallbackManagerForLLMRun | None, given: dict[str, Any]
    ) -> Iterator[GenerationChunk]:
        call = self._call(prompt, stop, given)
        found = call.find(child_callbacks(run_manager))
        with closing(call.stream(prompt, found)) as pieces:
            for piece in pieces:
                yield _chunk(call, piece, found)

    async def _achunks(
        self,
        prompt: str,
        stop: list[str] | None,
        run_manager: AsyncCallbackManagerForLLMRun | None,
        given: dict[str, Any],
    ) -> AsyncIterator[GenerationChunk]:
        # Loading the model takes seconds, so it is no work for the event loop either.
        call = await run_in_executor(None, self._call, prompt, stop, given)
        found = await call.afind(achild_callbacks(run_manager))
        async with aclosing(arun(call.stream(prompt, found))) as pieces:
            async for piece in pieces:
                yield _chunk(call, piece, found)

    def _call(self, prompt: str, stop: list[str] | None, given: dict[str, Any]) -> Call:
        call = self._prepare(prompt, lambda: prompt, stop, {**self.call_arguments, **given})
        refuse_unknown(call.rest)
        return call

    # --- the cache

    def with_call_arguments(self, **arguments: Any) -> Self:
        """A copy that gives these arguments to every call.

        Unlike those of `bind`, they are part of the copy's identity.
        """
        return self.model_copy(update={"call_arguments": {**self.call_arguments, **arguments}})

    def generate(self, prompts: list[str], stop: list[str] | None = None, *args: Any, **kwargs: Any) -> LLMResult:
        """Answer prompts: see LangChain's `BaseLLM.generate`."""
        own, arguments = _split(kwargs)
        # LangChain's cache does not look at a call's arguments, and would mix up documents: they become the model's.
        model = self.with_call_arguments(**arguments) if arguments else self
        return BaseLLM.generate(model, prompts, stop, *args, **own)

    async def agenerate(
        self, prompts: list[str], stop: list[str] | None = None, *args: Any, **kwargs: Any
    ) -> LLMResult:
        """Answer prompts without blocking the event loop: see LangChain's `BaseLLM.agenerate`."""
        own, arguments = _split(kwargs)
        model = self.with_call_arguments(**arguments) if arguments else self
        return await BaseLLM.agenerate(model, prompts, stop, *args, **own)

    # --- what LangChain wants to know

    @property
    def _llm_type(self) -> str:
        return "nest"

    @property
    def _identifying_params(self) -> dict[str, Any]:
        return {**self._identity(), "call_arguments": describe(self.call_arguments)}

    def _get_ls_params(self, stop: list[str] | None = None, **kwargs: Any) -> LangSmithParams:
        params: LangSmithParams = {
            **self._trace_params(stop, {**self.call_arguments, **kwargs}),
            "ls_model_type": "llm",
        }
        return params

    def get_token_ids(self, text: str) -> list[int]:
        """Token ids of a text, by the model's own tokenizer; loads the model."""
        if self.custom_get_token_ids is not None:
            return self.custom_get_token_ids(text)
        return self.load().model.tokenizer.encode(text).ids


_LANGCHAIN_ARGUMENTS = ("callbacks", "tags", "metadata", "run_name", "run_id")


def _split(kwargs: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """LangChain's own arguments of `generate`, and the model's."""
    own = {name: value for name, value in kwargs.items() if name in _LANGCHAIN_ARGUMENTS}
    return own, {name: value for name, value in kwargs.items() if name not in _LANGCHAIN_ARGUMENTS}


def _chunk(call: Call, piece: GenerationPiece, found: FoundPassages | None) -> GenerationChunk:
    """A piece in LangChain's form; all that is told once comes with the last one."""
    if piece.generation is None:
        return GenerationChunk(text=piece.text)
    writer = CitationWriter(call.citable(piece.generation, found))
    writer.add(piece.generation.citations)
    stats = piece.generation.stats
    info = {
        "model_name": call.model_name,
        "citations": writer.written,
        **answer_info(piece.generation, writer.documents),
        "token_usage": {
            "prompt_tokens": stats.prompt_tokens,
            "completion_tokens": stats.tokens,
            "total_tokens": stats.prompt_tokens + stats.tokens,
        },
    }
    return GenerationChunk(text=piece.text, generation_info=info)


def _merge(chunks: Sequence[GenerationChunk]) -> Generation:
    text = "".join(chunk.text for chunk in chunks)
    return Generation(text=text, generation_info=chunks[-1].generation_info)


def _result(answers: Sequence[Generation]) -> LLMResult:
    usage: dict[str, int] = {}
    for answer in answers:
        for name, count in (answer.generation_info or {})["token_usage"].items():
            usage[name] = usage.get(name, 0) + count
    names = {(answer.generation_info or {})["model_name"] for answer in answers}
    output = {"token_usage": usage, "model_name": ", ".join(sorted(names))}
    return LLMResult(generations=[[answer] for answer in answers], llm_output=output)
