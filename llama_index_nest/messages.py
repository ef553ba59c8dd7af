"""From LlamaIndex's prompts and messages to what the engine reads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from llama_index.core.base.llms.types import (
    CachePoint,
    ChatMessage,
    CitableBlock,
    CitationBlock,
    MessageRole,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
)

from nest_engine.constrained import render_call, render_result
from nest_engine.errors import PromptError
from nest_engine.lm.prompts import Message, Task

_ROLES = {
    MessageRole.DEVELOPER: "system",
    MessageRole.CHATBOT: "assistant",
    MessageRole.MODEL: "assistant",
}
_RESULTS = (MessageRole.TOOL, MessageRole.FUNCTION)
_MARK = "\ue000{}\ue001"
"""Stands for the text of message {} while a caller's function words the prompt."""


@dataclass(frozen=True)
class EnginePrompt:
    """What to hand to the engine.

    Attributes:
        messages: The messages.
        task: How they are worded.
        template_arguments: Variables of the chat template.
        query: What to search passages for, where the last user message is not it.
    """

    messages: list[Message]
    task: Task
    template_arguments: dict[str, Any] = field(default_factory=dict)
    query: str | None = None


def to_engine_messages(messages: Sequence[ChatMessage], *, native_tools: bool = False) -> list[Message]:
    """Turn chat messages into the engine's: role and text, and nothing else.

    Neither `additional_kwargs` nor citation blocks become part of the next prompt.

    Args:
        messages: The conversation.
        native_tools: Whether the chat template knows the role `tool`; else what tools said is a user turn.

    Raises:
        PromptError: If a message holds something other than text.
    """
    turns: list[dict[str, Any]] = []
    results = False
    for message in messages:
        is_result = message.role in _RESULTS and not native_tools
        content = render_result(read_text(message)) if is_result else read_text(message)
        if is_result and results:  # results that belong together are one turn, as templates want turns to alternate
            turns[-1]["content"] += "\n" + content
        else:
            turns.append({"role": _read_role(message.role, native_tools=native_tools), "content": content})
        results = is_result
    return list(turns)


def find_question(messages: Sequence[ChatMessage]) -> str | None:
    """What to search passages for: the last thing that the user said, if anything."""
    asked = (read_text(m).strip() for m in reversed(messages) if m.role == MessageRole.USER)
    return next((text for text in asked if text), None)


def read_text(message: ChatMessage) -> str:
    """The text of a message, with tool calls as the model writes them.

    Raises:
        PromptError: If it holds an image, audio or another thing that a language model cannot read.
    """
    texts = []
    for block in message.blocks:
        if isinstance(block, TextBlock):
            texts.append(block.text)
        elif isinstance(block, CitableBlock):
            texts += [part.text for part in block.content if isinstance(part, TextBlock)]
        elif isinstance(block, ToolCallBlock):
            arguments = block.tool_kwargs
            texts.append(render_call(block.tool_name, arguments if isinstance(arguments, dict) else {}))
        elif not isinstance(block, CitationBlock | ThinkingBlock | CachePoint):
            raise PromptError(f"NestLLM reads text only: leave the {type(block).__name__} out of the messages")
    return "\n".join(text for text in texts if text)


def _read_role(role: MessageRole, *, native_tools: bool) -> str:
    if role in _RESULTS:
        return "tool" if native_tools else "user"
    return _ROLES.get(role, role.value)


def word_by(function: Callable[[list[ChatMessage]], str], messages: Sequence[Message]) -> EnginePrompt:
    """Word a prompt with a caller's function, such as `messages_to_prompt`.

    The function sees marks instead of the texts. What it writes around them becomes a chat
    template: there, and only there, control tokens count as such.

    Args:
        function: Turns messages into a prompt.
        messages: The engine's messages.
    """
    marked = [ChatMessage(role=m["role"], content=_MARK.format(i)) for i, m in enumerate(messages)]
    rest, template = function(marked), ""
    literals: list[str] = []
    for i in range(len(messages)):
        before, mark, after = rest.partition(_MARK.format(i))
        if not mark:  # the function leaves this message out
            continue
        template += f"{{{{ literals[{len(literals)}] }}}}{{{{ messages[{i}]['content'] }}}}"
        literals.append(before)
        rest = after
    template += f"{{{{ literals[{len(literals)}] }}}}"
    arguments = {"chat_template": template, "literals": [*literals, rest]}
    return EnginePrompt(list(messages), "chat", arguments)
