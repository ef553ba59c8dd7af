"""From the engine's pieces to LlamaIndex's responses."""

from __future__ import annotations

import uuid
from typing import Any

from llama_index.core.base.llms.types import (
    ChatMessage,
    ChatResponse,
    CitationBlock,
    CompletionResponse,
    MessageRole,
    TextBlock,
    ToolCallBlock,
)

from llama_index_nest.citations import to_citation_block
from nest_engine.constrained import CallScanner, ToolCall
from nest_engine.generation import Generation, GenerationPiece


class AnswerSoFar:
    """An answer as it grows. LlamaIndex's stream items hold all of it, and what is new.

    Attributes:
        text: The answer so far.
        delta: What it has just grown by.
        citations: Its final citations so far, as plain values.
        calls: The tool calls so far.
        generation: The whole, once it is complete.
        scanner: Finds the tool calls in the text; None: there are none to find.
    """

    def __init__(self, model_name: str) -> None:
        """Begin an answer of the model of this name."""
        self.text = self.delta = ""
        self.citations: list[dict[str, Any]] = []
        self.calls: list[ToolCallBlock] = []
        self.generation: Generation | None = None
        self.scanner: CallScanner | None = None
        self._model_name = model_name

    def add(self, piece: GenerationPiece) -> AnswerSoFar:
        """Take a piece."""
        self.delta = piece.text if self.scanner is None else self._scan(self.scanner, piece)
        self.text += self.delta
        self.citations = [*self.citations, *(citation.to_dict() for citation in piece.citations)]
        self.generation = piece.generation
        return self

    def to_completion(self, *, streamed: bool = False) -> CompletionResponse:
        """The answer as a completion; as an item of a stream, it says what is new."""
        return CompletionResponse(
            text=self.text,
            delta=self.delta if streamed else None,
            additional_kwargs=self._additional_kwargs(),
            raw=self._raw(),
        )

    def to_chat(self, *, streamed: bool = False) -> ChatResponse:
        """The answer as a chat response: one text block, then a block for each citation and each tool call.

        The message carries no `additional_kwargs` but tool calls, since LlamaIndex's own formatters
        would write them into the next prompt; the response does.
        """
        blocks: list[TextBlock | CitationBlock | ToolCallBlock] = [TextBlock(text=self.text)]
        blocks += [to_citation_block(citation) for citation in self.citations]
        message = ChatMessage(role=MessageRole.ASSISTANT, content=[*blocks, *self.calls])
        if self.calls:  # LlamaIndex's programs look for them here
            message.additional_kwargs["tool_calls"] = [
                {"id": call.tool_call_id, "name": call.tool_name, "arguments": call.tool_kwargs} for call in self.calls
            ]
        return ChatResponse(
            message=message,
            delta=self.delta if streamed else None,
            additional_kwargs=self._additional_kwargs(),
            raw=self._raw(),
        )

    def _scan(self, scanner: CallScanner, piece: GenerationPiece) -> str:
        """The text of a piece without tool calls, which are kept."""
        text, calls = scanner.add(piece.text)
        if piece.generation is not None:
            rest, cut = scanner.finish()
            text, calls = text + rest, calls + cut
        self.calls = [*self.calls, *(_to_block(call) for call in calls if call.is_valid)]
        return text

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


def _to_block(call: ToolCall) -> ToolCallBlock:
    return ToolCallBlock(
        tool_call_id=f"call_{uuid.uuid4().hex[:12]}", tool_name=str(call.name), tool_kwargs=call.arguments or {}
    )
