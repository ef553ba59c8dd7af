"""Passages and questions from JSON Lines files: one JSON object per line, UTF-8."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nest_engine.errors import DocumentError, PassageError
from nest_engine.passages import Passage

_PASSAGE_KEYS = frozenset({"id", "title", "text", "document_id", "offset"})


@dataclass(frozen=True)
class Question:
    """A question with its id.

    Attributes:
        id: Id of the question, unique within a file.
        text: The question.
    """

    id: str
    text: str


def read_passages(path: str | Path) -> list[Passage]:
    """Read passages from a JSON Lines file.

    Each line is `{"id": ..., "title": ..., "text": ...}`; only `text` is required. `document_id`
    and `offset` are read too, and all other keys go into `Passage.metadata`.

    Args:
        path: The file.

    Raises:
        DocumentError: If the file cannot be read, or a line is no such object, or an id occurs
            twice; the message starts with `file:line`.
    """
    passages: dict[str, Passage] = {}
    for place, row in read_rows(path):
        passage = _passage(place, row)
        if passage.id in passages:
            raise DocumentError(f"{place}: the id {passage.id!r} was used before; give every passage its own id")
        passages[passage.id] = passage
    return list(passages.values())


def read_questions(path: str | Path) -> list[Question]:
    """Read questions from a JSON Lines file.

    Each line is `{"id": ..., "question": ...}`; without an id, the line's number is used.

    Args:
        path: The file.

    Raises:
        DocumentError: If the file cannot be read, or a line is no such object, or an id occurs
            twice; the message starts with `file:line`.
    """
    questions: dict[str, Question] = {}
    for place, row in read_rows(path):
        text = string_of(place, row, "question", required=True)
        if not text.strip():
            raise DocumentError(f'{place}: "question" is empty; remove the line or write a question')
        question = Question(string_of(place, row, "id") or place.rpartition(":")[2], text)
        if question.id in questions:
            raise DocumentError(f"{place}: the id {question.id!r} was used before; give every question its own id")
        questions[question.id] = question
    return list(questions.values())


def _passage(place: str, row: dict[str, Any]) -> Passage:
    offset = row.get("offset")
    if offset is not None and (not isinstance(offset, int) or isinstance(offset, bool) or offset < 0):
        raise DocumentError(f'{place}: "offset" must be a number of characters, 0 or more, not {offset!r}')
    try:
        return Passage(
            text=string_of(place, row, "text", required=True),
            title=string_of(place, row, "title"),
            id=string_of(place, row, "id"),
            document_id=string_of(place, row, "document_id"),
            offset=offset,
            metadata={key: value for key, value in row.items() if key not in _PASSAGE_KEYS},
        )
    except PassageError as error:
        raise DocumentError(f"{place}: {error}") from error


def string_of(place: str, row: dict[str, Any], key: str, *, required: bool = False) -> str:
    """Return row[key] as a string; numbers are taken as ids, null as missing."""
    value = row.get(key)
    if value is None:
        if required:
            raise DocumentError(f'{place}: the key "{key}" is missing; the line has {", ".join(row) or "no keys"}')
        return ""
    if key.endswith("id") and isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str):
        raise DocumentError(f'{place}: "{key}" must be a string, not {json.dumps(value)[:40]}')
    if any("\ud800" <= character <= "\udfff" for character in value):
        raise DocumentError(f'{place}: "{key}" holds half of a surrogate pair; write the whole character')
    return value


def read_rows(path: str | Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield ("file:line", object) for every line that is not blank."""
    # Only "\n" ends a line: U+2028 and its kin are ordinary characters inside JSON strings.
    for number, line in enumerate(read_text(Path(path)).split("\n"), start=1):
        if line.strip():
            place = f"{path}:{number}"
            yield place, _object(place, line)


def read_text(path: Path) -> str:
    """Read a text file.

    Raises:
        DocumentError: If it cannot be read, or is not UTF-8; the message starts with `file:line`.
    """
    try:
        return path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise DocumentError(f"{path}:{line}: not UTF-8; save the file as UTF-8") from error
    except OSError as error:
        raise DocumentError(f"{path}: cannot be read ({error.strerror or error}); check the path") from error


def _object(place: str, line: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DocumentError(f"{place}: not JSON ({error}); each line must be one JSON object") from error
    if not isinstance(row, dict):
        raise DocumentError(f"{place}: each line must be one JSON object, such as {{...}}, not {line.strip()[:40]}")
    return row
