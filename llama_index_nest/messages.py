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
)

from nest_engine.errors import PromptError
from nest_engine.lm.prompts import Message, Task

_ROLES = {
    MessageRole.DEVELOPER: "system",
    MessageRole.CHATBOT: "assistant",
    MessageRole.MODEL: "assistant",
    # What a tool said is something to read, and few templates of small models know another role for it.
    MessageRole.TOOL: "user",
    MessageRole.FUNCTION: "user",
}
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


def to_engine_messages(messages: Sequence[ChatMessage]) -> list[Message]:
    """Turn chat messages into the engine's: role and text, and nothing else.

    Neither `additional_kwargs` nor citation blocks become part of the next prompt.

    Raises:
        PromptError: If a message holds something other than text.
    """
    return [{"role": _ROLES.get(m.role, m.role.value), "content": read_text(m)} for m in messages]


def read_text(message: ChatMessage) -> str:
    """The text of a message.

    Raises:
        PromptError: If it holds an image, audio or another thing that a language model cannot read.
    """
    texts = []
    for block in message.blocks:
        if isinstance(block, TextBlock):
            texts.append(block.text)
        elif isinstance(block, CitableBlock):
            texts += [part.text for part in block.content if isinstance(part, TextBlock)]
        elif not isinstance(block, CitationBlock | ThinkingBlock | CachePoint):
            raise PromptError(f"NestLLM reads text only: leave the {type(block).__name__} out of the messages")
    return "\n".join(texts)


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
