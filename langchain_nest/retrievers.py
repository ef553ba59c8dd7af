"""`NestRetriever`: what the models search, as a LangChain retriever."""

from __future__ import annotations

from typing import Any

from langchain_core.callbacks import AsyncCallbackManagerForRetrieverRun, CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from langchain_core.vectorstores import VectorStore
from pydantic import ConfigDict, Field

from langchain_nest.documents import to_document
from langchain_nest.sources import FoundPassages, Sources
from nest_engine import NestConfig


class NestRetriever(BaseRetriever):
    """Any source of passages as a retriever: a store with a sparse retriever beside it, or a source of the engine.

    Example:
        ```python
        retriever = NestRetriever(vectorstore=store, sparse_retriever=BM25Retriever.from_documents(chunks), k=4)
        retriever = NestRetriever(source=HybridSource.open("index"), k=4)
        ```
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    vectorstore: VectorStore | None = None
    """A vector store to search."""
    retriever: Any = None
    """A retriever to ask, instead of a store."""
    source: Any = None
    """A passage source of the engine."""
    sparse_retriever: Any = None
    """A retriever by words, fused with the store or retriever."""
    k: int = 4
    """The largest number of documents wanted."""
    min_relevance: float | None = None
    """Drop documents below this relevance (a cosine), where the source tells it."""
    search_kwargs: dict[str, Any] = Field(default_factory=dict)
    """More arguments of the store's search, such as `filter`."""
    timeout: float | None = None
    """Seconds that a search may take."""

    def model_post_init(self, context: Any, /) -> None:
        """Check that it is clear where to search."""
        super().model_post_init(context)
        self._sources()

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun, k: int | None = None
    ) -> list[Document]:
        limit = self.k if k is None else k
        found = self._sources().find(query, NestConfig(top_passages=limit), run_manager.get_child())
        return self._documents(found, limit)

    async def _aget_relevant_documents(
        self, query: str, *, run_manager: AsyncCallbackManagerForRetrieverRun, k: int | None = None
    ) -> list[Document]:
        limit = self.k if k is None else k
        found = await self._sources().afind(query, NestConfig(top_passages=limit), run_manager.get_child())
        return self._documents(found, limit)

    def _sources(self) -> Sources:
        return Sources(
            vectorstore=self.vectorstore,
            retriever=self.retriever,
            source=self.source,
            sparse_retriever=self.sparse_retriever,
            search_kwargs=self.search_kwargs,
            timeout=self.timeout,
        )

    def _documents(self, found: FoundPassages | None, limit: int) -> list[Document]:
        if found is None:
            return []
        threshold = self.min_relevance if self.min_relevance is not None else found.min_relevance
        kept = [hit for hit in found.hits if threshold is None or hit.relevance is None or hit.relevance >= threshold]
        return [to_document(hit.passage) for hit in kept[:limit]]
