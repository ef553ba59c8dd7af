"""Tool calls in an answer, found while it is streamed."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from nest_engine.constrained.grammar import CALL_END, CALL_START


@dataclass(frozen=True)
class ToolCall:
    """A call that the model made.

    Attributes:
        name: Name of the tool; None where the call cannot be read.
        arguments: Its arguments; None where the call cannot be read.
        text: The JSON as the model wrote it.
    """

    name: str | None
    arguments: dict[str, Any] | None
    text: str

    @property
    def is_valid(self) -> bool:
        """Whether name and arguments could be read."""
        return self.name is not None and self.arguments is not None


class CallScanner:
    """Splits an answer that grows into text and calls.

    Attributes:
        calls: The calls found so far.
        in_call: Whether the answer is in the middle of a call.
    """

    def __init__(self) -> None:
        """Begin an answer."""
        self.calls: list[ToolCall] = []
        self.in_call = False
        self._rest = ""
        self._behind_call = False  # line breaks there are no text

    def add(self, piece: str) -> tuple[str, list[ToolCall]]:
        """Take a piece of the answer.

        Returns:
            Text that certainly is no part of a call, and calls that are complete now.
        """
        self._rest += piece
        text, found = "", []
        while True:
            mark = CALL_END if self.in_call else CALL_START
            before, met, after = self._rest.partition(mark)
            if not met:
                break
            if self.in_call:
                found.append(_parse(before))
                self._behind_call = True
            else:
                text += self._shown(before)
            self._rest, self.in_call = after, not self.in_call
        if not self.in_call:
            keep = _overlap(self._rest, CALL_START)
            text += self._shown(self._rest[: len(self._rest) - keep])
            self._rest = self._rest[len(self._rest) - keep :]
        self.calls += found
        return text, found

    def finish(self) -> tuple[str, list[ToolCall]]:
        """End the answer.

        Returns:
            Text that was held back, and a call that was cut off, if there is one.
        """
        rest, self._rest = self._rest, ""
        if not self.in_call:
            return self._shown(rest), []
        cut = [_parse(rest)]
        self.calls += cut
        return "", cut

    def _shown(self, text: str) -> str:
        if self._behind_call:
            text = text.lstrip()
            self._behind_call = not text
        return text


def _parse(text: str) -> ToolCall:
    text = text.strip()
    try:
        call = json.loads(text)
        name, arguments = call["name"], call["arguments"]
    except (ValueError, KeyError, TypeError):
        return ToolCall(None, None, text)
    if not isinstance(name, str) or not isinstance(arguments, dict):
        return ToolCall(None, None, text)
    return ToolCall(name, arguments, text)


def _overlap(text: str, mark: str) -> int:
    """Characters at the end of a text that could be the beginning of a mark."""
    for length in range(min(len(mark) - 1, len(text)), 0, -1):
        if text.endswith(mark[:length]):
            return length
    return 0
