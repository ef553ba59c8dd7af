"""LangChain tools and schemas to the engine's grammars and prompts."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from langchain_core.messages.tool import ToolCallChunk, tool_call_chunk
from langchain_core.utils.function_calling import convert_to_openai_tool

from nest_engine.constrained import (
    Grammar,
    Tool,
    ToolCall,
    call_grammar,
    json_grammar,
    schema_prompt,
    tool_prompt,
)
from nest_engine.constrained.grammar import CALL_START
from nest_engine.errors import ConfigError

_ANY = ("any", "required", True)
_AUTO = ("auto", None, False)


@dataclass(frozen=True)
class Request:
    """What a call asks for besides text.

    Attributes:
        tools: The tools that may be called.
        choice: `"auto"`, `"any"`, `"none"` or a tool's name.
        several: Whether several calls may be made at once.
        schema: JSON schema of the answer; None: text.
        silent: Do not tell the model the schema: the prompt does.
    """

    tools: tuple[Tool, ...] = ()
    choice: str = "none"
    several: bool = False
    schema: Mapping[str, Any] | None = None
    silent: bool = False

    @property
    def grammar(self) -> Grammar | None:
        """What the answer must follow; None: nothing."""
        if self.tools and self.choice != "none":
            return call_grammar(self.tools, self.choice, several=self.several, answer=self.schema)
        return json_grammar(self.schema) if self.schema is not None else None

    def instructions(self, *, native_tools: bool) -> str:
        """What the system message must tell the model."""
        parts = []
        if self.tools and not native_tools:
            parts.append(tool_prompt(self.tools))
        if self.schema is not None and not self.silent:
            parts.append(schema_prompt(self.schema))
        return "\n\n".join(parts)


def read_request(given: dict[str, Any]) -> Request:
    """Take tools, tool choice and response format out of the arguments of a call.

    Raises:
        ConfigError: If they are malformed or fit nothing.
    """
    tools = [to_tool(tool) for tool in given.pop("tools", None) or ()]
    choice = read_choice(given.pop("tool_choice", None))
    several = bool(given.pop("parallel_tool_calls", False))
    given.pop("strict", None)  # every grammar is followed to the letter
    response_format = given.pop("response_format", None)
    schema = _read_format(response_format)
    if not tools and choice not in ("auto", "none"):
        raise ConfigError(f"tool_choice={choice!r} needs tools: bind_tools([...], tool_choice=...)")
    silent = schema is not None and bool(response_format.get("silent"))
    return Request(tuple(tools), choice, several, schema, silent)


def to_tool(tool: Any) -> Tool:
    """Make a tool of a LangChain tool, a function, a pydantic class, a typed dict or a schema.

    Raises:
        ConfigError: If it is none of them.
    """
    if isinstance(tool, Tool):
        return tool
    try:
        function = convert_to_openai_tool(tool)["function"]
    except (ValueError, TypeError, KeyError) as error:
        raise ConfigError(f"this is no tool that LangChain knows: {tool!r} ({error})") from error
    return Tool(function["name"], function.get("description", ""), function.get("parameters") or {})


def read_choice(choice: Any) -> str:
    """LangChain's and OpenAI's ways to choose, in the engine's words.

    Raises:
        ConfigError: If it is neither.
    """
    if isinstance(choice, Mapping):
        named = choice.get("function") if isinstance(choice.get("function"), Mapping) else choice
        choice = named.get("name") if isinstance(named, Mapping) and named.get("name") else choice.get("type")
    if choice in _AUTO:
        return "auto"
    if choice in _ANY:
        return "any"
    if isinstance(choice, str) and choice:
        return choice
    raise ConfigError(f"tool_choice must be 'auto', 'any', 'none' or a tool's name, not {choice!r}")


def _read_format(response_format: Any) -> dict[str, Any] | None:
    """The JSON schema of a response format in OpenAI's form."""
    if response_format is None:
        return None
    kind = response_format.get("type") if isinstance(response_format, Mapping) else None
    if kind == "text":
        return None
    if kind == "json_object":
        return {"type": "object"}
    schema = (response_format.get("json_schema") or {}).get("schema") if kind == "json_schema" else None
    if not isinstance(schema, Mapping):
        raise ConfigError(
            "response_format must be {'type': 'json_schema', 'json_schema': {'name': ..., 'schema': {...}}} or "
            "{'type': 'json_object'}; with_structured_output makes it from a class"
        )
    return dict(schema)


def new_call_id() -> str:
    """A fresh id, as two equal calls in one conversation must not share one."""
    return f"call_{uuid.uuid4().hex[:24]}"


def to_chunk(call: ToolCall, index: int) -> ToolCallChunk:
    """A call as a chunk of a streamed message.

    LangChain completes JSON that is cut off, and would make a call of it that nobody made:
    with the mark before it, it stays an invalid call.
    """
    if call.arguments is None or call.name is None:
        return tool_call_chunk(name=call.name, args=CALL_START + call.text, id=new_call_id(), index=index)
    arguments = json.dumps(call.arguments, ensure_ascii=False)
    return tool_call_chunk(name=call.name, args=arguments, id=new_call_id(), index=index)
