"""Grammars: a text or tool calls, a call, a JSON value that follows a schema."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nest_engine.constrained.tools import Tool, ToolChoice, choose
from nest_engine.errors import ConfigError

CALL_START = "<tool_call>"
CALL_END = "</tool_call>"

# One way to write white space: a weak model that may repeat it does not stop. What the grammar
# cannot express of a schema is left to whoever validates the result.
_JSON_OPTIONS = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": ", "lenient": True}


@dataclass(frozen=True)
class Grammar:
    """What an answer may be.

    Attributes:
        lark: The grammar in llguidance's dialect of Lark.
        allows_text: Whether an answer may be free text.
    """

    lark: str
    allows_text: bool = False


def json_grammar(schema: Mapping[str, Any]) -> Grammar:
    """A grammar of the JSON values that follow a schema.

    Args:
        schema: A JSON schema. Objects that name their properties have no others, unless the schema
            says so itself.
    """
    return Grammar(f"start: {_json_rule(schema)}\n")


def call_grammar(
    tools: Sequence[Tool],
    choice: ToolChoice = "auto",
    *,
    several: bool = False,
    answer: Mapping[str, Any] | None = None,
) -> Grammar:
    """A grammar of tool calls, or of either text or calls.

    Args:
        tools: The tools.
        choice: `"auto"`: free text or calls, also calls after a text; `"any"`: a call; else the
            name of the tool that must be called.
        several: Allow more than one call.
        answer: JSON schema that the answer follows where it is no call; by default it is free text.

    Raises:
        ConfigError: If the choice fits no tool, or two tools have the same name.
    """
    chosen, is_free = choose(tools, choice), choice == "auto"
    names = [tool.name for tool in chosen]
    if len(set(names)) < len(names):
        raise ConfigError(f"two tools have the same name: rename one of {', '.join(sorted(names))}")
    first = f'"{CALL_START}" body'
    if is_free:
        first = "TEXT | lead body" if answer is None else f"answer | {first}"
    rules = [f"start: {first}" + (" (MORE body)*" if several else "")]
    if is_free and answer is not None:
        rules.append(f"answer: {_json_rule(answer)}")
    elif is_free:
        rules += [f"TEXT: /(?s:.*)/ & ~/(?s:.*){CALL_START}(?s:.*)/", f"lead[lazy]: /(?s:.*){CALL_START}/"]
    if several:
        rules.append(f"MORE: /\\n*{CALL_START}/")
    rules.append(f'body: "\\n" call "\\n{CALL_END}"')
    rules.append("call: " + " | ".join(f"tool_{i}" for i in range(len(chosen))))
    for i, tool in enumerate(chosen):
        head = json.dumps(f'{{"name": {json.dumps(tool.name)}, "arguments": ')
        rules += [f'tool_{i}: {head} args_{i} "}}"', f"args_{i}: {_json_rule(_as_object(tool.parameters))}"]
    return Grammar("\n".join(rules) + "\n", allows_text=is_free and answer is None)


def _json_rule(schema: Mapping[str, Any]) -> str:
    return "%json " + json.dumps({**close_objects(dict(schema)), "x-guidance": _JSON_OPTIONS})


def _as_object(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments are an object, also where a tool without any says nothing about them."""
    return {"type": "object", "properties": {}, **parameters}


def close_objects(schema: Any) -> Any:
    """A copy of a schema whose objects have only the properties that they name.

    JSON schema allows any others; a small model takes that as an invitation to go on.
    """
    if isinstance(schema, list):
        return [close_objects(item) for item in schema]
    if not isinstance(schema, Mapping):
        return schema
    # Names of properties and definitions are not keywords: look at their values only.
    closed = {
        key: {name: close_objects(value) for name, value in part.items()}
        if key in ("properties", "$defs", "definitions") and isinstance(part, Mapping)
        else (part if key in ("enum", "const", "default", "examples") else close_objects(part))
        for key, part in schema.items()
    }
    if "properties" in closed:
        closed.setdefault("additionalProperties", False)
    return closed
