"""How tools, calls and results are worded where a chat template does not do it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from nest_engine.constrained.grammar import CALL_END, CALL_START
from nest_engine.constrained.tools import Tool


def tool_prompt(tools: Sequence[Tool]) -> str:
    """Text for the system message that introduces the tools.

    The marks are those that most openly available models were trained on.
    """
    listed = "\n".join(json.dumps(tool.to_dict(), ensure_ascii=False) for tool in tools)
    return (
        "You can call functions to help with the user's request. These are the functions, in JSON, "
        f"inside <tools></tools>:\n<tools>\n{listed}\n</tools>\n\n"
        "To call a function, answer with its name and arguments as JSON inside "
        f"{CALL_START}{CALL_END}, like this:\n"
        f'{CALL_START}\n{{"name": "function name", "arguments": {{"argument name": "value"}}}}\n{CALL_END}\n'
        "You will then get its result, and answer the user with it."
    )


def schema_prompt(schema: Mapping[str, Any]) -> str:
    """Text for the system message that asks for JSON of a schema."""
    return "Answer with JSON only, that follows this JSON schema:\n" + json.dumps(schema, ensure_ascii=False)


def render_call(name: str, arguments: Mapping[str, Any]) -> str:
    """An earlier call, in the words in which the model would have written it."""
    call = json.dumps({"name": name, "arguments": dict(arguments)}, ensure_ascii=False)
    return f"{CALL_START}\n{call}\n{CALL_END}"


def render_result(content: str) -> str:
    """The result of a call, for a user turn."""
    return f"<tool_response>\n{content}\n</tool_response>"
