"""LangChain messages to the engine's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from langchain_core.documents import Document
from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    ChatMessage,
    FunctionMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)

from nest_engine.constrained.prompts import render_call, render_result
from nest_engine.errors import PromptError

# Blocks that are no text and say nothing to a model that reads text: left out. Calls come from `tool_calls`.
_SILENT = ("tool_call", "tool_use", "tool_call_chunk", "invalid_tool_call", "reasoning", "thinking", "citation")


def to_messages(messages: Sequence[BaseMessage], *, native_tools: bool = False) -> list[dict[str, Any]]:
    """Turn messages into the engine's.

    Args:
        messages: System, human, AI and tool messages.
        native_tools: Whether the chat template knows the role `tool`.

    Raises:
        PromptError: If there are no messages, or one holds something else than text.
    """
    turns: list[dict[str, Any]] = []
    for message in messages:
        role, content = _turn(message, native_tools=native_tools)
        is_result = isinstance(message, ToolMessage | FunctionMessage)
        # Results that belong to one answer are one turn, as templates want roles to alternate.
        if is_result and not native_tools and turns and turns[-1].get("is_result"):
            turns[-1]["content"] += "\n" + content
        else:
            turns.append({"role": role, "content": content, "is_result": is_result})
    if not turns:
        raise PromptError("there are no messages: give at least one human message")
    return [{"role": turn["role"], "content": turn["content"]} for turn in turns]


def add_to_system(turns: list[dict[str, Any]], text: str) -> list[dict[str, Any]]:
    """Put a text at the end of the system message, which is made where there is none."""
    if turns and turns[0]["role"] == "system":
        content = f"{turns[0]['content']}\n\n{text}" if turns[0]["content"].strip() else text
        return [{**turns[0], "content": content}, *turns[1:]]
    return [{"role": "system", "content": text}, *turns]


def last_question(messages: Sequence[BaseMessage]) -> str:
    """What to search passages for: the last human message, else the last text there is."""
    spoken = [m for m in messages if text_of(m).strip()]
    asked = [m for m in spoken if _role(m) == "user"]
    return text_of((asked or spoken)[-1]).strip() if spoken else ""


def attached_documents(messages: Sequence[BaseMessage]) -> list[Document]:
    """Documents that tools brought since the last human message, as artifacts of their messages."""
    found: list[Document] = []
    for message in reversed(messages):
        if isinstance(message, HumanMessage):
            break
        artifact = message.artifact if isinstance(message, ToolMessage) else None
        if isinstance(artifact, list | tuple):
            found = [item for item in artifact if isinstance(item, Document)] + found
    return found


def text_of(message: BaseMessage) -> str:
    """The text of a message.

    Raises:
        PromptError: If it holds an image, a file or other things that are no text.
    """
    if isinstance(message.content, str):
        return message.content
    parts = []
    for block in message.content:
        if isinstance(block, str):
            parts.append(block)
        elif block.get("type") in ("text", "text-plain") and isinstance(block.get("text"), str):
            parts.append(block["text"])
        elif block.get("type") == "tool_result":
            parts.append(_result_text(block.get("content")))
        elif block.get("type") not in _SILENT:
            raise PromptError(
                f"the model reads text only, and a {message.type} message has a block of type {block.get('type')!r}: "
                "leave it out, or describe it in words"
            )
    return "".join(parts)


def _result_text(content: Any) -> str:
    """The text of a tool result inside a human message, as some providers put it."""
    if isinstance(content, list):
        return "".join(str(block.get("text", "")) if isinstance(block, dict) else str(block) for block in content)
    return str(content or "")


def _turn(message: BaseMessage, *, native_tools: bool) -> tuple[str, str]:
    text = text_of(message)
    if isinstance(message, ToolMessage | FunctionMessage):
        return ("tool", text) if native_tools else ("user", render_result(text))
    if isinstance(message, AIMessage) and message.tool_calls:
        calls = "\n".join(render_call(call["name"], call["args"]) for call in message.tool_calls)
        return "assistant", f"{text}\n{calls}" if text.strip() else calls
    return _role(message), text


def _role(message: BaseMessage) -> str:
    if isinstance(message, ChatMessage):
        return {"human": "user", "ai": "assistant", "developer": "system"}.get(message.role, message.role)
    if isinstance(message, SystemMessage):
        return "system"
    if isinstance(message, HumanMessage):
        return "user"
    if isinstance(message, AIMessage):
        return "assistant"
    return "tool"
