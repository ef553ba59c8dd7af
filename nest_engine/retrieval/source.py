"""Where passages come from: the `PassageSource` protocol and a fixed list."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol, runtime_checkable

from nest_engine.passages import Passage, ScoredPassage


@runtime_checkable
class PassageSource(Protocol):
    """Stage one of the method: the passages that a prompt may be answered from.

    The whole contract is one method. A source may also have an attribute
    `min_relevance: float`, the relevance below which its passages are taken to be
    off topic; it is used where the configuration does not set one.
    """

    def search(self, query: str, k: int) -> Sequence[ScoredPassage]:
        """Find the passages most relevant to a query.

        Args:
            query: The user's question or the latest text; not empty.
            k: The largest number of passages wanted, at least 1.

        Returns:
            At most `k` passages, the best first.
        """
        ...


class ListSource:
    """A fixed list of passages, in the caller's order, whatever the query."""

    def __init__(self, passages: Iterable[Passage]) -> None:
        """Keep `passages`."""
        self.passages = tuple(passages)

    def search(self, query: str, k: int) -> list[ScoredPassage]:
        """Return the first `k` passages of the list; they carry no scores."""
        return [ScoredPassage(passage) for passage in self.passages[:k]]
