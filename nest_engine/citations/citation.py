"""A citation: a range of the answer that was copied, and the range of a passage it came from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Kind = Literal["copied", "matched"]


@dataclass(frozen=True)
class Citation:
    """A verbatim piece of a passage in an answer.

    All ranges are half-open and count characters (Unicode code points).
    `answer[start:end] == passage.text[source_start:source_end] == text` holds, and is checked
    when the citation is made. Copied is not the same as true.

    Attributes:
        number: Number of the source document, in reading order, from 1; several citations of
            one document share it.
        kind: `"copied"`: emitted as part of a span. `"matched"`: the model's own words, found
            in the passage afterwards.
        start: Start of the copied range in the answer.
        end: End of the copied range in the answer.
        passage_id: `Passage.id`.
        document_id: `Passage.document_id`.
        title: `Passage.title`.
        source_start: Start of the range in `Passage.text`.
        source_end: End of the range in `Passage.text`.
        document_start: Start of the range in the document, where the passage knows its offset.
        text: The copied text.
    """

    number: int
    kind: Kind
    start: int
    end: int
    passage_id: str
    document_id: str
    title: str
    source_start: int
    source_end: int
    document_start: int | None
    text: str

    def to_dict(self) -> dict[str, Any]:
        """The citation as plain values, as the command line prints it."""
        return {
            "number": self.number,
            "kind": self.kind,
            "start": self.start,
            "end": self.end,
            "passage_id": self.passage_id,
            "document_id": self.document_id,
            "title": self.title,
            "source_start": self.source_start,
            "source_end": self.source_end,
            "document_start": self.document_start,
            "text": self.text,
        }
