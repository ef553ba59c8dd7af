"""Every supported vector store, for real: 20 questions on the Python language reference.

Run by `make test-stores`, as their packages are many and large.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from langchain_core.documents import Document
from langchain_core.vectorstores import InMemoryVectorStore, VectorStore
from langchain_text_splitters import RecursiveCharacterTextSplitter

from langchain_nest import ChatNest, NestRetriever, cited_documents
from langchain_nest.scores import score_reader
from langchain_nest.sources import Sources
from nest_engine import NestConfig, NestEngine
from nest_engine.errors import SourceError
from nest_engine.python_reference import python_documents
from tests.langchain.helpers import WordEmbeddings, check_citations, text_and_citations
from tests.tiny import tiny_engine

QUESTIONS = [
    "What does the with statement do?", "How does the raise statement re-raise an exception?", "What is a generator?",
    "When is the finally clause executed?", "What is a decorator?", "What does the nonlocal statement do?",
    "How are default parameter values evaluated?", "What is a closure?", "How does the import statement find a module?",
    "What does the match statement compare?", "What is an asynchronous generator?", "What does yield from do?",
    "How are f-strings evaluated?", "What is the difference between is and ==?", "What does del do to a name?",
    "How are comparisons chained?", "What is a lambda expression?", "What does the assert statement do?",
    "How is the metaclass of a class determined?", "What does await suspend?",
]  # fmt: skip
CHUNKS = 150


@pytest.fixture(scope="session")
def texts() -> dict[str, str]:
    return {document.id: document.text for document in python_documents()}


@pytest.fixture(scope="session")
def chunks(texts: dict[str, str]) -> list[Document]:
    pages = [Document(text, metadata={"source": name, "title": name}) for name, text in texts.items()]
    splitter = RecursiveCharacterTextSplitter(chunk_size=400, chunk_overlap=0, add_start_index=True)
    split = splitter.split_documents(pages)
    return split[:: max(1, len(split) // CHUNKS)]


@pytest.fixture(scope="session")
def engine() -> NestEngine:
    return tiny_engine(config=NestConfig(max_new_tokens=48, top_passages=3, min_citation_words=2))


def in_memory(chunks: list[Document], folder: Path) -> VectorStore:
    return InMemoryVectorStore.from_documents(chunks, WordEmbeddings())


def faiss(chunks: list[Document], folder: Path) -> VectorStore:
    from langchain_community.vectorstores import FAISS

    return FAISS.from_documents(chunks, WordEmbeddings())


def chroma(chunks: list[Document], folder: Path) -> VectorStore:
    from langchain_chroma import Chroma

    return Chroma.from_documents(
        chunks, WordEmbeddings(), persist_directory=str(folder), collection_metadata={"hnsw:space": "cosine"}
    )


def qdrant(chunks: list[Document], folder: Path) -> VectorStore:
    from langchain_qdrant import QdrantVectorStore

    return QdrantVectorStore.from_documents(chunks, WordEmbeddings(), path=str(folder), collection_name="chunks")


def lancedb(chunks: list[Document], folder: Path) -> VectorStore:
    from langchain_community.vectorstores import LanceDB

    return LanceDB.from_documents(chunks, WordEmbeddings(), uri=str(folder))


def pgvector(chunks: list[Document], folder: Path) -> VectorStore:
    import pgserver
    from langchain_postgres import PGVector

    server = pgserver.get_server(folder)
    uri = server.get_uri().replace("postgresql://", "postgresql+psycopg://", 1)
    return PGVector.from_documents(chunks, WordEmbeddings(), connection=uri, collection_name="chunks", use_jsonb=True)


MAKERS: list[Callable[[list[Document], Path], VectorStore]] = [in_memory, faiss, chroma, qdrant, lancedb, pgvector]
# A filter that keeps one source file, in each store's own words.
FILTERS: dict[str, Callable[[str], dict[str, Any]]] = {
    "in_memory": lambda name: {"filter": lambda document: document.metadata["source"] == name},
    "faiss": lambda name: {"filter": {"source": name}, "fetch_k": 1000},
    "chroma": lambda name: {"filter": {"source": name}},
    "qdrant": lambda name: {"filter": qdrant_filter(name)},
    "lancedb": lambda name: {"filter": f"metadata.source = '{name}'", "prefilter": True},
    "pgvector": lambda name: {"filter": {"source": name}},
}
KNOWN_RELEVANCE = ("in_memory", "chroma", "qdrant", "pgvector")


def qdrant_filter(name: str) -> Any:
    from qdrant_client import models

    return models.Filter(must=[models.FieldCondition(key="metadata.source", match=models.MatchValue(value=name))])


@pytest.fixture(scope="session", params=MAKERS, ids=lambda maker: maker.__name__)
def named_store(request: Any, chunks: list[Document], tmp_path_factory: Any) -> tuple[str, VectorStore]:
    name = request.param.__name__
    return name, request.param(chunks, tmp_path_factory.mktemp(name))


@pytest.fixture
def store(named_store: tuple[str, VectorStore]) -> VectorStore:
    return named_store[1]


class Watched:
    """What a store returned to the searches of one answer."""

    def __init__(self, store: VectorStore, monkeypatch: pytest.MonkeyPatch) -> None:
        self.returned: list[Document] = []
        for name in ("similarity_search", "similarity_search_with_score"):
            monkeypatch.setattr(type(store), name, self.watch(getattr(type(store), name)))

    def watch(self, search: Any) -> Any:
        def watched(*args: Any, **kwargs: Any) -> Any:
            found = search(*args, **kwargs)
            self.returned += [item[0] if isinstance(item, tuple) else item for item in found]
            return found

        return watched


def test_twenty_answers(
    engine: NestEngine, store: VectorStore, texts: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = Watched(store, monkeypatch)
    model = ChatNest(engine=engine, vectorstore=store)
    cited = 0
    for question in QUESTIONS:
        watched.returned.clear()
        message = model.invoke(question)
        text, citations = text_and_citations(message)
        check_citations(text, citations, cited_documents(message), watched.returned)
        for citation in citations:
            document = cited_documents(message)[citation["extras"]["source_index"]]
            start = citation["extras"]["document_start"]
            original = texts[document.metadata["source"]]
            assert original[start : start + len(citation["cited_text"])] == citation["cited_text"]
        cited += bool(citations)
    assert cited == len(QUESTIONS)


async def test_async_and_retriever(engine: NestEngine, store: VectorStore) -> None:
    model = ChatNest(engine=engine, vectorstore=store)
    message = model.invoke(QUESTIONS[0])
    if type(store).__name__ == "PGVector":  # made for sync calls, it refuses async ones
        with pytest.raises(SourceError, match="async"):
            await model.ainvoke(QUESTIONS[0])
    else:
        assert (await model.ainvoke(QUESTIONS[0])).text == message.text
    through = ChatNest(engine=engine, retriever=store.as_retriever(search_kwargs={"k": 3}))
    assert through.invoke(QUESTIONS[0]).text == message.text


def test_filters_pass_through(named_store: tuple[str, VectorStore], chunks: list[Document]) -> None:
    name, store = named_store
    source = chunks[-1].metadata["source"]
    arguments = FILTERS[name](source)
    found = NestRetriever(vectorstore=store, search_kwargs=arguments, k=3).invoke(QUESTIONS[0])
    assert found
    assert {document.metadata["source"] for document in found} == {source}


def test_scores_are_read_in_their_direction(named_store: tuple[str, VectorStore], chunks: list[Document]) -> None:
    name, store = named_store
    assert score_reader(store) is not None
    asked = chunks[7].page_content
    found = Sources(vectorstore=store).find(asked, NestConfig(top_passages=5))
    scores = [hit.score for hit in found.hits]
    assert found.hits[0].passage.text == asked
    assert scores == sorted(scores, reverse=True)
    if name in KNOWN_RELEVANCE:
        assert found.hits[0].relevance == pytest.approx(1.0, abs=1e-3)
        assert all(-1.001 <= hit.relevance <= 1.001 for hit in found.hits)


def test_hybrid(
    store: VectorStore, chunks: list[Document], engine: NestEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    from langchain_community.retrievers import BM25Retriever

    watched = Watched(store, monkeypatch)
    sparse = BM25Retriever.from_documents(chunks, k=20)
    model = ChatNest(engine=engine, vectorstore=store, sparse_retriever=sparse)
    message = model.invoke(QUESTIONS[1])
    check_citations(*text_and_citations(message), cited_documents(message), [*watched.returned, *chunks])
    assert cited_documents(message)
