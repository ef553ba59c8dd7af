"""Passages: the units of text that are retrieved, copied from and cited."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from nest_engine.errors import PassageError


def content_id(title: str, text: str) -> str:
    """Stable id of a passage by its content: 16 hex digits of SHA-256 over title and text.

    Args:
        title: Title of the passage, possibly empty.
        text: Text of the passage.
    """
    digest = hashlib.sha256()
    for part in (title, text):
        data = part.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()[:16]


@dataclass(frozen=True)
class Passage:
    """A piece of a document.

    Citations refer to `text`, character for character; it is never changed or stripped.

    Attributes:
        text: The passage's text. Must hold something other than white space.
        title: Title of the document. Read by the model before the text, never copied from.
        id: Id of the passage; by default made from title and text (`content_id`).
        document_id: Id of the document it comes from; by default the passage's own id.
            Citations are numbered per document.
        offset: Characters (code points) from the document's start to the passage's start,
            or None where this is not known.
        metadata: Anything the caller wants to find again in a citation's passage.

    Raises:
        PassageError: If the text is not a string, or is empty or only white space.
    """

    text: str
    title: str = ""
    id: str = ""
    document_id: str = ""
    offset: int | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict, hash=False, compare=False)

    def __post_init__(self) -> None:
        """Check the text and fill in the ids."""
        if not isinstance(self.text, str):
            raise PassageError(
                f"passage text must be a string, not {type(self.text).__name__}; convert the document to text first"
            )
        if not self.text.strip():
            name = f" {self.id!r}" if self.id else ""
            raise PassageError(f"passage{name} has no text: drop empty and white-space-only passages")
        if not isinstance(self.title, str):
            raise PassageError(f"passage title must be a string, not {type(self.title).__name__}")
        if not self.id:
            object.__setattr__(self, "id", content_id(self.title, self.text))
        if not self.document_id:
            object.__setattr__(self, "document_id", self.id)


@dataclass(frozen=True)
class ScoredPassage:
    """A search result.

    Attributes:
        passage: The passage found.
        score: What the source ranks by, higher is better; None where the source gives no score.
        relevance: How relevant the passage is on an absolute scale, higher is better (for
            embeddings the cosine similarity), or None where the source's scores have no such
            meaning. `min_relevance` compares with this.
    """

    passage: Passage
    score: float | None = None
    relevance: float | None = None
