"""Tool calls between LlamaIndex and the engine's constrained decoding."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import chain
from typing import Any

from llama_index.core.base.llms.types import ChatMessage, ChatResponse, ToolCallBlock
from llama_index.core.llms.llm import ToolSelection
from llama_index.core.tools.types import BaseTool

from nest_engine.constrained import CallScanner, Grammar, Tool, call_grammar, tool_prompt
from nest_engine.errors import ConfigError
from nest_engine.generation import GenerationPiece
from nest_engine.lm.prompts import Message

_NAMES = ("tools", "tool_choice", "parallel_tool_calls")


@dataclass(frozen=True)
class ToolRequest:
    """The tools of one call.

    Attributes:
        tools: The tools that may be called.
        choice: `"auto"`, `"any"`, `"none"` or a tool's name.
        several: Whether several calls may be made at once.
    """

    tools: tuple[Tool, ...]
    choice: str
    several: bool

    @property
    def grammar(self) -> Grammar | None:
        """What the answer must follow; None: nothing."""
        if not self.tools or self.choice == "none":
            return None
        return call_grammar(self.tools, self.choice, several=self.several)

    def word(self, messages: list[Message], *, native: bool) -> tuple[list[Message], dict[str, Any]]:
        """Introduce the tools to the model.

        Args:
            messages: The conversation.
            native: Whether the model's chat template does it.

        Returns:
            The messages, and variables for the template.
        """
        if not self.tools:
            return messages, {}
        if native:
            return messages, {"tools": [tool.to_dict() for tool in self.tools]}
        text = tool_prompt(self.tools)
        if messages and messages[0]["role"] == "system":
            return [{**messages[0], "content": f"{messages[0]['content']}\n\n{text}"}, *messages[1:]], {}
        return [{"role": "system", "content": text}, *messages], {}


def can_call_tools() -> bool:
    """Whether what constrained decoding needs is installed."""
    return find_spec("llguidance") is not None


def take_request(arguments: dict[str, Any]) -> ToolRequest:
    """Take the arguments about tools out of the arguments of a call.

    Raises:
        ConfigError: If they are malformed.
    """
    tools, choice, several = (arguments.pop(name, None) for name in _NAMES)
    return ToolRequest(tuple(to_tool(tool) for tool in tools or ()), _read_choice(choice), bool(several))


def to_tool(tool: Any) -> Tool:
    """A tool of LlamaIndex, or one written as OpenAI's, as a tool of the engine.

    Raises:
        ConfigError: If it is neither.
    """
    if isinstance(tool, Tool):
        return tool
    if isinstance(tool, BaseTool):
        tool = tool.metadata.to_openai_tool(skip_length_check=True)
    function = tool.get("function", tool) if isinstance(tool, dict) else {}
    if not isinstance(function.get("name"), str):
        raise ConfigError(f"a tool must be a LlamaIndex tool or {{'function': {{'name': ...}}}}, not {tool!r}")
    return Tool(function["name"], function.get("description") or "", dict(function.get("parameters") or {}))


def find_calls(pieces: Generator[GenerationPiece, None, None]) -> Generator[GenerationPiece, None, None] | None:
    """The pieces of an answer that begins with a call; None, and the work ended, where it begins with text."""
    scanner, seen = CallScanner(), []
    for piece in pieces:
        seen.append(piece)
        text, _ = scanner.add(piece.text)
        if scanner.in_call or scanner.calls:
            break
        if text.strip() or piece.generation is not None:
            pieces.close()
            return None
    return _go_on(seen, pieces)


def to_selections(message: ChatMessage) -> list[ToolSelection]:
    """The calls of a message as LlamaIndex's agents want them."""
    return [
        ToolSelection(
            tool_id=block.tool_call_id or block.tool_name,
            tool_name=block.tool_name,
            tool_kwargs=block.tool_kwargs if isinstance(block.tool_kwargs, dict) else {},
        )
        for block in message.blocks
        if isinstance(block, ToolCallBlock)
    ]


def select_calls(response: ChatResponse, *, error_on_no_tool_call: bool) -> list[ToolSelection]:
    """The calls of a response.

    Raises:
        ConfigError: If there is none, and there must be one.
    """
    selections = to_selections(response.message)
    if error_on_no_tool_call and not selections:
        raise ConfigError("the model called no tool: ask with tool_required=True, or raise max_new_tokens")
    return selections


def _read_choice(choice: Any) -> str:
    """A tool choice in the words of LlamaIndex or OpenAI."""
    if isinstance(choice, dict):
        choice = (choice.get("function") or choice).get("name")
    if choice in (None, False):
        return "auto"
    if choice in (True, "required"):
        return "any"
    if not isinstance(choice, str):
        raise ConfigError(f"tool_choice must be 'auto', 'any', 'none' or the name of a tool, not {choice!r}")
    return choice


def _go_on(
    seen: Sequence[GenerationPiece], pieces: Generator[GenerationPiece, None, None]
) -> Generator[GenerationPiece, None, None]:
    with closing(pieces):
        yield from chain(seen, pieces)
