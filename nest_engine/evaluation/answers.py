"""What systems answered: rows of a JSON Lines file, so that a run that was broken off goes on."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from nest_engine.errors import TaskError

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Cited:
    """A citation, as far as it is judged.

    Attributes:
        passage_id: The passage.
        kind: `"copied"` or `"matched"`.
    """

    passage_id: str
    kind: str


@dataclass(frozen=True)
class Answer:
    """One system's answer to one question, as far as it is measured.

    Attributes:
        text: The answer.
        head: Its first 20 tokens.
        tokens: Its length in tokens.
        attributed: Copied tokens.
        runs: Lengths of the stretches copied from one document, in tokens.
        citations: Its citations, in reading order.
        found: Ids of the passages found for it, best first.
        finish: `"end"`: ended by itself; `"length"`: cut at the limit; `"stop"`: at a stop string.
        seconds: From the question to the end, keys being stored.
        decode_seconds: Of these, after the first token.
    """

    text: str
    head: str
    tokens: int
    attributed: int = 0
    runs: tuple[int, ...] = ()
    citations: tuple[Cited, ...] = ()
    found: tuple[str, ...] = ()
    finish: str = "end"
    seconds: float = 0.0
    decode_seconds: float = 0.0

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Answer:
        """Make an answer of what `row` returned."""
        citations = tuple(Cited(**citation) for citation in row["citations"])
        return cls(**{**row, "citations": citations, "runs": tuple(row["runs"]), "found": tuple(row["found"])})

    def row(self) -> dict[str, Any]:
        """The answer as plain values."""
        return asdict(self)


@dataclass(frozen=True)
class Key:
    """What an answer answers. Systems with equal settings share their answers, whatever their names.

    Attributes:
        system: Name of the system, for readers of the file.
        settings: Digest of all that can change its answers: settings, model, passages.
        id: Id of the question.
    """

    system: str = field(compare=False)
    settings: str
    id: str


@dataclass
class AnswerFile:
    """Results by key, in memory and, line by line as they come, in a file.

    Attributes:
        path: The file; None keeps results in memory only.
        results: What is known, by key.
    """

    path: Path | None = None
    results: dict[Key, dict[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Read what an earlier run has left.

        Raises:
            TaskError: If the file is something else.
        """
        if self.path is None or not self.path.exists():
            return
        text = self.path.read_text(encoding="utf-8")
        for key, result in self._read(text.split("\n")):
            self.results[key] = result
        if text and not text.endswith("\n"):
            # A line that was cut off in the middle must not swallow the next one.
            self.path.write_text(text[: text.rfind("\n") + 1], encoding="utf-8")

    def _read(self, lines: list[str]) -> Iterator[tuple[Key, dict[str, Any]]]:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
                yield Key(row["system"], row["settings"], row["id"]), row["result"]
            except (ValueError, KeyError, TypeError) as error:
                if number == len(lines):
                    logger.warning("%s:%d: the last line was cut off; its question is asked again", self.path, number)
                    continue
                raise TaskError(
                    f"{self.path}:{number}: no answer of nest-engine eval; remove the file or give another --out"
                ) from error

    def add(self, key: Key, result: dict[str, Any]) -> None:
        """Keep a result."""
        self.results[key] = result
        if self.path is None:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        row = {"system": key.system, "settings": key.settings, "id": key.id, "result": result}
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
