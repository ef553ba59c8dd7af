"""Tools as the engine sees them: a name, a description and a JSON schema."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from nest_engine.errors import ConfigError

ToolChoice = str
"""`"auto"`: text or calls; `"any"`: a call; `"none"`: text; else the name of the tool to call."""


@dataclass(frozen=True)
class Tool:
    """Something that the model may ask the caller to run.

    Attributes:
        name: Its name.
        description: What it does, for the model.
        parameters: JSON schema of its arguments, an object.
    """

    name: str
    description: str = ""
    parameters: Mapping[str, Any] = field(default_factory=lambda: {"type": "object", "properties": {}})

    def to_dict(self) -> dict[str, Any]:
        """The tool in the form that chat templates take."""
        function = {"name": self.name, "description": self.description, "parameters": dict(self.parameters)}
        return {"type": "function", "function": function}


def choose(tools: Sequence[Tool], choice: ToolChoice) -> list[Tool]:
    """The tools that a choice leaves.

    Args:
        tools: All tools.
        choice: `"auto"`, `"any"`, or a tool's name.

    Raises:
        ConfigError: If there are no tools, or none has the wanted name.
    """
    names = [tool.name for tool in tools]
    if not tools:
        raise ConfigError("no tools are given: leave the tool choice out, or bind a tool")
    if choice in ("auto", "any"):
        return list(tools)
    chosen = [tool for tool in tools if tool.name == choice]
    if not chosen:
        raise ConfigError(f"no tool {choice!r} to choose; there are {', '.join(names)} (or 'auto', 'any', 'none')")
    return chosen
