"""From the engine's pieces to LlamaIndex's responses."""

from __future__ import annotations

from typing import Any

from llama_index.core.base.llms.types import (
    ChatMessage,
    ChatResponse,
    CitationBlock,
    CompletionResponse,
    MessageRole,
    TextBlock,
)

from llama_index_nest.citations import to_citation_block
from nest_engine.generation import Generation, GenerationPiece


class AnswerSoFar:
    """An answer as it grows. LlamaIndex's stream items hold all of it, and what is new.

    Attributes:
        text: The answer so far.
        citations: Its final citations so far, as plain values.
        generation: The whole, once it is complete.
    """

    def __init__(self, model_name: str) -> None:
        """Begin an answer of the model of this name."""
        self.text = ""
        self.citations: list[dict[str, Any]] = []
        self.generation: Generation | None = None
        self._model_name = model_name

    def add(self, piece: GenerationPiece) -> AnswerSoFar:
        """Take a piece."""
        self.text += piece.text
        self.citations = [*self.citations, *(citation.to_dict() for citation in piece.citations)]
        self.generation = piece.generation
        return self

    def to_completion(self, delta: str | None = None) -> CompletionResponse:
        """The answer as a completion; `delta` is what it has just grown by, in a stream."""
        return CompletionResponse(
            text=self.text, delta=delta, additional_kwargs=self._additional_kwargs(), raw=self._raw()
        )

    def to_chat(self, delta: str | None = None) -> ChatResponse:
        """The answer as a chat response: one text block, then a block for each citation.

        The message carries no `additional_kwargs`, since LlamaIndex's own formatters would write
        them into the next prompt; the response does.
        """
        blocks: list[TextBlock | CitationBlock] = [TextBlock(text=self.text)]
        blocks += [to_citation_block(citation) for citation in self.citations]
        return ChatResponse(
            message=ChatMessage(role=MessageRole.ASSISTANT, content=blocks),
            delta=delta,
            additional_kwargs=self._additional_kwargs(),
            raw=self._raw(),
        )

    def _additional_kwargs(self) -> dict[str, Any]:
        kwargs: dict[str, Any] = {"citations": list(self.citations)}
        if self.generation is not None:
            kwargs |= {"finish_reason": self.generation.finish_reason, **self._usage(self.generation)}
        return kwargs

    def _raw(self) -> dict[str, Any]:
        """What LlamaIndex calls the raw response; the token counter looks for `usage` in it."""
        raw: dict[str, Any] = {"model": self._model_name, "text": self.text, "citations": list(self.citations)}
        if self.generation is not None:
            raw["stats"] = self.generation.stats.to_dict()
            raw["finish_reason"] = self.generation.finish_reason
            raw["usage"] = self._usage(self.generation)
        return raw

    @staticmethod
    def _usage(generation: Generation) -> dict[str, int]:
        prompt, answer = generation.stats.prompt_tokens, generation.stats.tokens
        return {"prompt_tokens": prompt, "completion_tokens": answer, "total_tokens": prompt + answer}
