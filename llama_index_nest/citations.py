"""Citations as LlamaIndex shows them: content blocks, cited nodes, and marks in the text."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from typing import Any

from llama_index.core.base.llms.types import CitationBlock, TextBlock
from llama_index.core.bridge.pydantic import Field
from llama_index.core.schema import BaseNode, MetadataMode, NodeWithScore

Citation = Mapping[str, Any]
"""A citation as plain values: `nest_engine.Citation.to_dict()`."""

_LOCATIONS = ("number", "start", "end", "source_start", "source_end", "document_start")


class CitedNode(NodeWithScore):
    """A node that an answer copies from.

    Attributes:
        citations: What was copied, in reading order. `start` and `end` count characters of the
            answer, `source_start` and `source_end` those of `node.get_content(MetadataMode.NONE)`.
    """

    citations: list[dict[str, Any]] = Field(default_factory=list)

    @property
    def ranges(self) -> list[tuple[int, int]]:
        """The copied ranges of the node's text, in characters."""
        return [(c["source_start"], c["source_end"]) for c in self.citations]


def to_citation_block(citation: Citation) -> CitationBlock:
    """The content block of a citation. The only place that knows the fields of `CitationBlock`.

    It has room for whole numbers only, so the id of the document is not among them: the node
    with the id `source` knows it.
    """
    locations = {name: citation[name] for name in _LOCATIONS if citation[name] is not None}
    return CitationBlock(
        cited_content=TextBlock(text=citation["text"]),
        source=citation["passage_id"],
        title=citation["title"],
        additional_location_info=locations,
    )


def find_cited_nodes(nodes: Sequence[NodeWithScore], citations: Iterable[Citation]) -> list[CitedNode]:
    """The nodes that were copied from, in the order in which the answer first copies from them.

    Args:
        nodes: The nodes that the answer was made from.
        citations: Its citations.
    """
    cited: dict[int, CitedNode] = {}
    for citation in citations:
        found = next((n for n in nodes if _holds(n.node, citation)), None)
        if found is None:
            continue
        entry = cited.setdefault(id(found), CitedNode(node=found.node, score=found.score))
        entry.citations.append(dict(citation))
    return list(cited.values())


def _holds(node: BaseNode, citation: Citation) -> bool:
    """Whether a citation is of this node: ids alone can repeat where a text was replaced after the search."""
    if node.node_id != citation["passage_id"]:
        return False
    text = node.get_content(metadata_mode=MetadataMode.NONE)
    return bool(text[citation["source_start"] : citation["source_end"]] == citation["text"])


def add_markers(text: str, citations: Iterable[Citation]) -> str:
    """Write `[n]` behind each cited range of an answer."""
    return "".join(stream_with_markers([(text, list(citations)), ("", [])]))


def stream_with_markers(pieces: Iterable[tuple[str, Sequence[Citation]]]) -> Generator[str, None, None]:
    """Write `[n]` behind each cited range of an answer that comes piece by piece.

    The end of a copied range is known when the piece behind it comes. So a piece waits for the
    next one, and white space waits with it, since it never ends a range.

    Args:
        pieces: Text, and the citations that became final with it.
    """
    writer = MarkerWriter()
    for text, citations in pieces:
        yield writer.add(text, citations)
    yield writer.finish()


class MarkerWriter:
    """Writes marks into an answer as it grows: see `stream_with_markers`."""

    def __init__(self) -> None:
        """Begin an empty answer."""
        self._text = ""
        self._written = 0
        self._marks: list[tuple[int, int]] = []

    def add(self, text: str, citations: Iterable[Citation]) -> str:
        """Take a piece; return what is certain by now."""
        certain = len(self._text.rstrip())
        self._text += text
        self._marks += [(citation["end"], citation["number"]) for citation in citations]
        return self._write(certain)

    def finish(self) -> str:
        """Return the rest."""
        return self._write(len(self._text))

    def _write(self, until: int) -> str:
        """The answer up to a character, with the marks that belong there."""
        parts = []
        due = sorted(mark for mark in self._marks if mark[0] <= until)
        self._marks = [mark for mark in self._marks if mark[0] > until]
        for end, number in due:
            parts.append(self._text[self._written : end] + f"[{number}]")
            self._written = max(self._written, end)
        parts.append(self._text[self._written : until])
        self._written = max(self._written, until)
        return "".join(parts)
