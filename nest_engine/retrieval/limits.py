"""Limits for sources that are not one's own: how long a search may take, how much it may return."""

from __future__ import annotations

import logging
import math
import queue
import threading
from collections.abc import Sequence

from nest_engine.errors import ConfigError, SourceError
from nest_engine.passages import ScoredPassage
from nest_engine.retrieval.source import PassageSource

logger = logging.getLogger(__name__)

MAX_PASSAGE_CHARACTERS = 1_000_000
"""A retrieved passage longer than this is an error: a document of 50 MB that was never split, for example."""


def check_sizes(found: Sequence[ScoredPassage], source: object, limit: int = MAX_PASSAGE_CHARACTERS) -> None:
    """Refuse passages that are too large to be encoded in sensible time and memory.

    Raises:
        SourceError: If a passage's title and text have more than `limit` characters.
    """
    for scored in found:
        size = len(scored.passage.text) + len(scored.passage.title)
        if size > limit:
            raise SourceError(
                f"{type(source).__name__}.search returned a passage of {size:,} characters, more than {limit:,}: "
                "split documents into passages before they are stored"
            )


class LimitedSource:
    """Any source, with limits. A search that hangs ends in an error; one source hangs in few threads only."""

    def __init__(
        self,
        source: PassageSource,
        *,
        timeout: float | None = 30.0,
        max_characters: int = MAX_PASSAGE_CHARACTERS,
        max_hanging: int = 4,
    ) -> None:
        """Wrap a source.

        Args:
            source: Where to search.
            timeout: Seconds that a search may take; None: no limit.
            max_characters: Characters that one passage may have.
            max_hanging: Searches that may be past their time at once; further ones fail without being tried.

        Raises:
            ConfigError: If a limit is not above 0.
        """
        if timeout is not None and not (timeout > 0 and math.isfinite(timeout)):
            raise ConfigError(f"timeout must be a number of seconds above 0, or None, not {timeout!r}")
        if max_characters < 1 or max_hanging < 1:
            raise ConfigError("max_characters and max_hanging must be at least 1")
        self.source = source
        self.timeout = timeout
        self.max_characters = max_characters
        self._max_hanging = max_hanging
        self._hanging: list[threading.Thread] = []
        self._lock = threading.Lock()

    @property
    def min_relevance(self) -> float | None:
        """That of the source."""
        return getattr(self.source, "min_relevance", None)

    def search(self, query: str, k: int) -> list[ScoredPassage]:
        """Search within the limits.

        Raises:
            SourceError: If the search takes too long, or a passage is too large.
        """
        found = self._search(query, k)[:k]
        check_sizes([s for s in found if isinstance(s, ScoredPassage)], self.source, self.max_characters)
        return found

    def _search(self, query: str, k: int) -> list[ScoredPassage]:
        if self.timeout is None:
            return list(self.source.search(query, k))
        name = type(self.source).__name__
        with self._lock:
            self._hanging = [thread for thread in self._hanging if thread.is_alive()]
            if len(self._hanging) >= self._max_hanging:
                raise SourceError(
                    f"{name}: {self._max_hanging} searches are still hanging, so no other is tried: restart the store"
                )
        answers: queue.SimpleQueue[list[ScoredPassage] | BaseException] = queue.SimpleQueue()

        def run() -> None:
            try:
                answers.put(list(self.source.search(query, k)))
            except BaseException as error:  # noqa: BLE001 - raised again in the caller's thread
                answers.put(error)

        thread = threading.Thread(target=run, name="nest-search", daemon=True)
        thread.start()
        try:
            answer = answers.get(timeout=self.timeout)
        except queue.Empty:
            with self._lock:
                self._hanging.append(thread)
            raise SourceError(
                f"{name}.search took longer than {self.timeout:g} seconds: check the store, or raise the timeout"
            ) from None
        if isinstance(answer, BaseException):
            raise answer
        return answer
