"""Where passages come from: LangChain stores, retrievers and documents, or a source of the engine."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from langchain_core.callbacks import (
    AsyncCallbackManagerForRetrieverRun,
    CallbackManagerForRetrieverRun,
    Callbacks,
)
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import Runnable, run_in_executor
from langchain_core.vectorstores import VectorStore

from langchain_nest.documents import to_document, to_passage, to_passages
from langchain_nest.scores import Score, score_reader
from nest_engine import NestConfig, Passage, PassageSource, ScoredPassage
from nest_engine.errors import ConfigError, NestError, SourceError

logger = logging.getLogger(__name__)

T = TypeVar("T")

SOURCE_KINDS = ("vectorstore", "retriever", "documents", "source")
"""What can be searched: one of them at a time."""


class FoundPassages:
    """Passages that have been searched already, as a source of the engine.

    Attributes:
        hits: What was found, best first.
        min_relevance: Relevance below which passages are off topic; None: not known.
        use_all: Whether the caller chose the passages, however many the settings would search.
        seen: All passages that any search returned: what citations can refer to.
    """

    def __init__(
        self,
        passages: Sequence[ScoredPassage],
        min_relevance: float | None = None,
        *,
        use_all: bool = False,
        again: Callable[[str], list[ScoredPassage]] | None = None,
    ) -> None:
        """Keep what was found.

        Args:
            passages: What was found, best first.
            min_relevance: See the attribute.
            use_all: See the attribute.
            again: Searches once more, for engines that refresh their passages while they answer.
        """
        self.hits = list(passages)
        self.min_relevance = min_relevance
        self.use_all = use_all
        self.seen = [hit.passage for hit in passages]
        self._again = again
        self._is_first = True

    def search(self, query: str, k: int) -> list[ScoredPassage]:
        """Return the first `k` passages; from the second call on, search for them."""
        is_first, self._is_first = self._is_first, False
        if is_first or self._again is None:
            return self.hits[:k]
        found = self._again(query)[:k]
        self.seen += [hit.passage for hit in found]
        return found


class StoreSource:
    """A LangChain store or retriever as a source of the engine, and so for anything that is built on the engine."""

    def __init__(
        self,
        store: VectorStore | Runnable[str, list[Document]],
        *,
        sparse_retriever: Runnable[str, list[Document]] | None = None,
        search_kwargs: dict[str, Any] | None = None,
        timeout: float | None = None,
    ) -> None:
        """Search a store.

        Args:
            store: A vector store or a retriever.
            sparse_retriever: A retriever by words, fused with it.
            search_kwargs: More arguments of the store's search, such as a filter.
            timeout: Seconds that a search may take; None: no limit.

        Raises:
            ConfigError: If `store` is neither, or the arguments do not fit together.
        """
        kind = "vectorstore" if isinstance(store, VectorStore) else "retriever"
        given: dict[str, Any] = {kind: store, "search_kwargs": dict(search_kwargs or {})}
        self._sources = Sources(**given, sparse_retriever=sparse_retriever, timeout=timeout)

    def search(self, query: str, k: int) -> list[ScoredPassage]:
        """Return the best `k` passages for a query.

        Raises:
            SourceError: If the search fails, takes too long, or returns something else than documents.
        """
        found = self._sources.find(query, NestConfig(top_passages=k))
        return found.hits[:k] if found is not None else []


@dataclass(frozen=True)
class Sources:
    """Where to search: at most one of the first four, with a sparse retriever beside it or not.

    Attributes:
        vectorstore: A vector store.
        retriever: A retriever, or anything that turns a query into documents.
        documents: Documents that were retrieved already; all of them are used.
        source: A source of the engine.
        sparse_retriever: A retriever by words, fused with `vectorstore` or `retriever`.
        search_kwargs: More arguments of the store's search, such as a filter.
        timeout: Seconds that a search may take; None: no limit.
    """

    vectorstore: VectorStore | None = None
    retriever: Runnable[str, list[Document]] | None = None
    documents: Sequence[Document] | None = None
    source: PassageSource | None = None
    sparse_retriever: Runnable[str, list[Document]] | None = None
    search_kwargs: dict[str, Any] = field(default_factory=dict)
    timeout: float | None = None

    def __post_init__(self) -> None:
        """Check that it is clear where to search."""
        given = [name for name in SOURCE_KINDS if getattr(self, name) is not None]
        if len(given) > 1:
            raise ConfigError(f"give one of {', '.join(SOURCE_KINDS)}, not {' and '.join(given)}")
        if self.sparse_retriever is not None and self.vectorstore is None and self.retriever is None:
            raise ConfigError("sparse_retriever needs a vectorstore or retriever beside it; alone it is a retriever=")
        for name in ("retriever", "sparse_retriever"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, Runnable):
                hint = "; give it as vectorstore=" if isinstance(value, VectorStore) else ""
                raise ConfigError(f"{name} must be a LangChain retriever, not {type(value).__name__}{hint}")
        if self.vectorstore is not None and not isinstance(self.vectorstore, VectorStore):
            raise ConfigError(f"vectorstore must be a LangChain VectorStore, not {type(self.vectorstore).__name__}")

    @property
    def any(self) -> bool:
        """Whether there is anything to search."""
        return any(getattr(self, name) is not None for name in SOURCE_KINDS)

    def find(self, query: str, config: NestConfig, callbacks: Callbacks = None) -> FoundPassages | None:
        """Search for the passages of a prompt.

        Args:
            query: What to search for; with a blank query nothing is found.
            config: Says how many passages are wanted.
            callbacks: The run that the search belongs to.

        Returns:
            The passages; None where there is nothing to search, or no passage is wanted.

        Raises:
            SourceError: If the search fails, takes too long, or returns something else than documents.
        """
        if self.documents is not None and config.uses_passages:
            return _all(self.documents)
        if not self._is_asked(query, config):
            return None
        k = config.passages_wanted
        dense = self._dense()
        if self.sparse_retriever is None:
            return FoundPassages(
                self._limited(dense, query, k, callbacks), dense.min_relevance, again=self._searcher(config, callbacks)
            )
        many = candidates(k)
        sparse = _RetrieverSearch(self.sparse_retriever, by_content=True)
        sides = [self._limited(side, query, many, callbacks) for side in (dense, sparse)]
        return FoundPassages(_fuse(sides[0], sides[1], query, k), again=self._searcher(config, callbacks))

    async def afind(self, query: str, config: NestConfig, callbacks: Callbacks = None) -> FoundPassages | None:
        """Search without blocking the event loop: see `find`."""
        if self.documents is not None and config.uses_passages:
            return _all(self.documents)
        if not self._is_asked(query, config):
            return None
        k = config.passages_wanted
        dense = self._dense()
        if self.sparse_retriever is None:
            passages = await self._alimited(dense, query, k, callbacks)
            return FoundPassages(passages, dense.min_relevance, again=self._searcher(config))
        many = candidates(k)
        sparse = _RetrieverSearch(self.sparse_retriever, by_content=True)
        both = await asyncio.gather(
            self._alimited(dense, query, many, callbacks), self._alimited(sparse, query, many, callbacks)
        )
        return FoundPassages(_fuse(both[0], both[1], query, k), again=self._searcher(config))

    def _searcher(self, config: NestConfig, callbacks: Callbacks = None) -> Callable[[str], list[ScoredPassage]] | None:
        """How to search again while an answer is written, on whichever thread writes it."""
        if config.refresh_every is None:
            return None

        def search(query: str) -> list[ScoredPassage]:
            found = self.find(query, config, callbacks)
            return found.hits if found is not None else []

        return search

    def _is_asked(self, query: str, config: NestConfig) -> bool:
        return self.any and config.uses_passages and bool(query.strip())

    def _dense(self) -> _Search:
        by_content = self.sparse_retriever is not None
        if self.vectorstore is not None:
            return _StoreSearch(self.vectorstore, self.search_kwargs, by_content=by_content)
        if self.retriever is not None:
            return _RetrieverSearch(self.retriever, by_content=by_content)
        return _EngineSearch(_given(self.source))

    def _limited(self, search: _Search, query: str, k: int, callbacks: Callbacks) -> list[ScoredPassage]:
        if self.timeout is None:
            return search.run(query, k, callbacks)
        pool = ThreadPoolExecutor(1, thread_name_prefix="nest-search")
        try:
            return pool.submit(search.run, query, k, callbacks).result(self.timeout)
        except FutureTimeoutError as error:
            raise _too_slow(search, self.timeout) from error
        finally:
            # A search that hangs cannot be ended from outside; nobody waits for it any longer.
            pool.shutdown(wait=False, cancel_futures=True)

    async def _alimited(self, search: _Search, query: str, k: int, callbacks: Callbacks) -> list[ScoredPassage]:
        try:
            return await asyncio.wait_for(search.arun(query, k, callbacks), self.timeout)
        except TimeoutError as error:
            raise _too_slow(search, self.timeout) from error


def candidates(k: int) -> int:
    """How many candidates each side of a hybrid search is asked for, for `k` passages."""
    from nest_engine.retrieval.hybrid import MAX_CANDIDATES

    return max(k, min(100 * k, MAX_CANDIDATES))


@dataclass
class _Search:
    """One search, in both flavors."""

    min_relevance: float | None = field(default=None, init=False)

    @property
    def name(self) -> str:
        raise NotImplementedError

    def run(self, query: str, k: int, callbacks: Callbacks) -> list[ScoredPassage]:
        raise NotImplementedError

    async def arun(self, query: str, k: int, callbacks: Callbacks) -> list[ScoredPassage]:
        raise NotImplementedError

    def _failure(self, error: Exception) -> SourceError:
        return SourceError(f"the search in {self.name} failed: {str(error) or type(error).__name__}{self._advice()}")

    def _advice(self) -> str:
        return "; see the error that caused this one"


@dataclass
class _RetrieverSearch(_Search):
    retriever: Runnable[str, list[Document]]
    by_content: bool = False

    @property
    def name(self) -> str:
        return type(self.retriever).__name__

    def run(self, query: str, k: int, callbacks: Callbacks) -> list[ScoredPassage]:
        try:
            found = self.retriever.invoke(query, {"callbacks": callbacks})
        except NestError:
            raise
        except Exception as error:
            raise self._failure(error) from error
        return self._read(found)

    async def arun(self, query: str, k: int, callbacks: Callbacks) -> list[ScoredPassage]:
        try:
            found = await self.retriever.ainvoke(query, {"callbacks": callbacks})
        except NestError:
            raise
        except Exception as error:
            raise self._failure(error) from error
        return self._read(found)

    def _read(self, found: Any) -> list[ScoredPassage]:
        return _scored([(document, None) for document in _listed(found, self.name)], self.by_content)


@dataclass
class _StoreSearch(_Search):
    store: VectorStore
    search_kwargs: dict[str, Any]
    by_content: bool = False

    @property
    def name(self) -> str:
        return type(self.store).__name__

    def run(self, query: str, k: int, callbacks: Callbacks) -> list[ScoredPassage]:
        traced = _TracedSearch(search=lambda text: self._hits(text, k), name=self.name)
        try:
            traced.invoke(query, {"callbacks": callbacks})
        except NestError:
            raise
        except Exception as error:
            raise self._failure(error) from error
        return _scored(traced.hits, self.by_content)

    async def arun(self, query: str, k: int, callbacks: Callbacks) -> list[ScoredPassage]:
        traced = _TracedSearch(asearch=lambda text: self._ahits(text, k), name=self.name)
        try:
            await traced.ainvoke(query, {"callbacks": callbacks})
        except NestError:
            raise
        except Exception as error:
            raise self._failure(error) from error
        return _scored(traced.hits, self.by_content)

    def _hits(self, query: str, k: int) -> list[_Hit]:
        arguments = {"k": k, **self.search_kwargs}
        reader = score_reader(self.store)
        if reader is not None:
            try:
                pairs = self.store.similarity_search_with_score(query, **arguments)
            except NotImplementedError:
                logger.debug("%s gives no scores", self.name)
            else:
                return [(document, reader(float(score))) for document, score in pairs]
        return [(d, None) for d in _listed(self.store.similarity_search(query, **arguments), self.name)]

    async def _ahits(self, query: str, k: int) -> list[_Hit]:
        arguments = {"k": k, **self.search_kwargs}
        reader = score_reader(self.store)
        if reader is not None:
            try:
                pairs = await self.store.asimilarity_search_with_score(query, **arguments)
            except NotImplementedError:
                logger.debug("%s gives no scores", self.name)
            else:
                return [(document, reader(float(score))) for document, score in pairs]
        return [(d, None) for d in _listed(await self.store.asimilarity_search(query, **arguments), self.name)]

    def _advice(self) -> str:
        try:
            embeddings = self.store.embeddings
        except Exception:  # noqa: BLE001 - this is about another error, which must not be hidden by a new one
            embeddings = None
        if embeddings is None:
            return "; the store has no embedding model: give it one when you open it"
        return super()._advice()


@dataclass
class _EngineSearch(_Search):
    source: PassageSource

    def __post_init__(self) -> None:
        self.min_relevance = getattr(self.source, "min_relevance", None)

    @property
    def name(self) -> str:
        return type(self.source).__name__

    def run(self, query: str, k: int, callbacks: Callbacks) -> list[ScoredPassage]:
        found: list[ScoredPassage] = []

        def search(text: str) -> list[_Hit]:
            found.extend(self._search(text, k))
            return [(to_document(hit.passage), None) for hit in found]

        _TracedSearch(search=search, name=self.name).invoke(query, {"callbacks": callbacks})
        return found

    async def arun(self, query: str, k: int, callbacks: Callbacks) -> list[ScoredPassage]:
        return await run_in_executor(None, self.run, query, k, callbacks)

    def _search(self, query: str, k: int) -> list[ScoredPassage]:
        from nest_engine.engine import search

        return search(self.source, query, k)


_Hit = tuple[Document, Score | None]


class _TracedSearch(BaseRetriever):
    """Lets a search appear in traces, as a retriever's would, and keeps the scores that a retriever drops."""

    search: Callable[[str], list[_Hit]] | None = None
    asearch: Callable[[str], Awaitable[list[_Hit]]] | None = None
    hits: list[_Hit] = []  # noqa: RUF012 - pydantic copies it for each object

    def _get_relevant_documents(self, query: str, *, run_manager: CallbackManagerForRetrieverRun) -> list[Document]:
        self.hits = _given(self.search)(query)
        return [document for document, _ in self.hits]

    async def _aget_relevant_documents(
        self, query: str, *, run_manager: AsyncCallbackManagerForRetrieverRun
    ) -> list[Document]:
        self.hits = await _given(self.asearch)(query)
        return [document for document, _ in self.hits]


def _scored(hits: Sequence[_Hit], by_content: bool) -> list[ScoredPassage]:
    found = []
    for document, score in hits:
        passage = to_passage(document, by_content=by_content)
        if passage is not None:
            found.append(ScoredPassage(passage, *(score or (None, None))))
    return found


def _all(documents: Sequence[Document]) -> FoundPassages:
    """All documents that the caller gave, however many the settings would search."""
    return FoundPassages([ScoredPassage(passage) for passage in to_passages(documents)], use_all=True)


def _fuse(dense: list[ScoredPassage], sparse: list[ScoredPassage], query: str, k: int) -> list[ScoredPassage]:
    """Fuse two searches by the engine's rule; their passages are known by content until then."""
    from nest_engine.retrieval.hybrid import HybridSource

    fused = HybridSource(FoundPassages(dense), FoundPassages(sparse)).search(query, k)
    return [replace(hit, passage=_with_own_id(hit.passage)) for hit in fused]


def _with_own_id(passage: Passage) -> Passage:
    """The passage with the id that its store knows it by."""
    own = to_passage(to_document(passage))
    return passage if own is None else own


def _listed(found: Any, name: str) -> list[Any]:
    if not isinstance(found, list | tuple):
        raise SourceError(f"{name} returned a {type(found).__name__}; a list of Documents is needed")
    return list(found)


def _given(value: T | None) -> T:
    if value is None:
        raise RuntimeError("nothing to search")
    return value


def _too_slow(search: _Search, timeout: float | None) -> SourceError:
    return SourceError(
        f"the search in {search.name} took longer than {timeout} seconds: raise timeout=, or ask for fewer passages "
        "(top_passages=)"
    )
