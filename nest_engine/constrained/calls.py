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
        self._rest = ""
        self.in_call = False

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
            else:
                text += before
            self._rest, self.in_call = after, not self.in_call
        if not self.in_call:
            keep = _overlap(self._rest, CALL_START)
            text += self._rest[: len(self._rest) - keep]
            self._rest = self._rest[len(self._rest) - keep :]
        self.calls += found
        return self._without_gap(text), found

    def finish(self) -> tuple[str, list[ToolCall]]:
        """End the answer.

        Returns:
            Text that was held back, and a call that was cut off, if there is one.
        """
        rest, self._rest = self._rest, ""
        if not self.in_call:
            return self._without_gap(rest), []
        cut = [_parse(rest)]
        self.calls += cut
        return "", cut

    def _without_gap(self, text: str) -> str:
        """Line breaks between calls, and behind the last one, are no text."""
        return "" if self.calls and not text.strip() else text


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
