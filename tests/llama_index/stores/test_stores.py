"""Every supported store and retriever, for real: 20 questions on the Python language reference.

Run by `make test-stores`, as their packages are many and large.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from llama_index.core import Document, StorageContext, VectorStoreIndex, load_index_from_storage
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.node_parser import SentenceSplitter
from llama_index.core.retrievers import QueryFusionRetriever
from llama_index.core.schema import MetadataMode, TextNode
from llama_index.core.vector_stores.types import BasePydanticVectorStore, ExactMatchFilter, MetadataFilters

from llama_index_nest import NestLLM, NestQueryEngine
from nest_engine import NestConfig
from nest_engine.errors import NestError, SourceError
from nest_engine.python_reference import python_documents
from tests.llama_index.world import BagEmbedding
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
CHUNKS = 120

Store = BasePydanticVectorStore


@pytest.fixture(scope="session")
def texts() -> dict[str, str]:
    return {str(document.id): document.text for document in python_documents()}


@pytest.fixture(scope="session")
def chunks(texts: dict[str, str]) -> list[TextNode]:
    pages = [Document(text=text, id_=name, metadata={"title": name}) for name, text in texts.items()]
    split = SentenceSplitter(chunk_size=120, chunk_overlap=0).get_nodes_from_documents(pages)
    chosen = split[:: max(1, len(split) // CHUNKS)]
    for number, node in enumerate(chosen):
        node.metadata["half"] = "even" if number % 2 == 0 else "odd"
    return chosen  # type: ignore[return-value]


@pytest.fixture(scope="session")
def llm() -> NestLLM:
    return NestLLM(engine=tiny_engine(config=NestConfig(max_new_tokens=40, top_passages=3, min_citation_words=2)))


def _fill(store: Store, chunks: list[TextNode]) -> VectorStoreIndex:
    storage = StorageContext.from_defaults(vector_store=store)
    copies = [node.model_copy(deep=True) for node in chunks]  # an index writes embeddings into them
    return VectorStoreIndex(copies, storage_context=storage, embed_model=BagEmbedding())


def in_memory(chunks: list[TextNode], folder: Path) -> VectorStoreIndex:
    return VectorStoreIndex([node.model_copy(deep=True) for node in chunks], embed_model=BagEmbedding())


def faiss(chunks: list[TextNode], folder: Path) -> VectorStoreIndex:
    """With its docstore, written to disk and read again."""
    from faiss import IndexFlatL2
    from llama_index.vector_stores.faiss import FaissVectorStore

    index = _fill(FaissVectorStore(faiss_index=IndexFlatL2(BagEmbedding().dim)), chunks)
    index.storage_context.persist(persist_dir=str(folder))
    storage = StorageContext.from_defaults(
        vector_store=FaissVectorStore.from_persist_dir(str(folder)), persist_dir=str(folder)
    )
    loaded = load_index_from_storage(storage, embed_model=BagEmbedding())
    assert isinstance(loaded, VectorStoreIndex)
    return loaded


def chroma(chunks: list[TextNode], folder: Path) -> VectorStoreIndex:
    import chromadb
    from llama_index.vector_stores.chroma import ChromaVectorStore

    collection = chromadb.PersistentClient(str(folder)).create_collection("chunks")
    return _fill(ChromaVectorStore(chroma_collection=collection), chunks)


def qdrant(chunks: list[TextNode], folder: Path) -> VectorStoreIndex:
    import qdrant_client
    from llama_index.vector_stores.qdrant import QdrantVectorStore

    client = qdrant_client.QdrantClient(path=str(folder))
    return _fill(QdrantVectorStore("chunks", client=client), chunks)


def lancedb(chunks: list[TextNode], folder: Path) -> VectorStoreIndex:
    from llama_index.vector_stores.lancedb import LanceDBVectorStore

    return _fill(LanceDBVectorStore(uri=str(folder)), chunks)


def pgvector(chunks: list[TextNode], folder: Path) -> VectorStoreIndex:
    """A real Postgres server, started for the test."""
    import pgserver
    from llama_index.vector_stores.postgres import PGVectorStore

    server = pgserver.get_server(folder / "data")
    server.psql("CREATE EXTENSION IF NOT EXISTS vector")
    uri = server.get_uri()
    store = PGVectorStore(
        connection_string=uri.replace("postgresql://", "postgresql+psycopg2://"),
        async_connection_string=uri.replace("postgresql://", "postgresql+asyncpg://"),
        table_name="chunks",
        schema_name="public",
        embed_dim=BagEmbedding().dim,
    )
    return _fill(store, chunks)


STORES: dict[str, Callable[[list[TextNode], Path], VectorStoreIndex]] = {
    "in_memory": in_memory,
    "faiss": faiss,
    "chroma": chroma,
    "qdrant": qdrant,
    "lancedb": lancedb,
    "pgvector": pgvector,
}
NO_FILTERS = {"faiss"}
"""FAISS knows no metadata."""


@pytest.fixture(scope="session", params=STORES)
def stored(
    request: pytest.FixtureRequest, chunks: list[TextNode], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, VectorStoreIndex]]:
    yield request.param, STORES[request.param](chunks, tmp_path_factory.mktemp(request.param))
    if request.param == "pgvector":
        import pgserver

        for server in list(pgserver.PostgresServer._instances.values()):
            server.cleanup()


def check(response: Any, texts: dict[str, str], chunks: list[TextNode]) -> int:
    """Every citation is verbatim in a known node and at the right place of its document."""
    known = {node.node_id: node for node in chunks}
    answer, citations = response.response, response.metadata["citations"]
    by_id = {n.node.node_id: n.node for n in response.source_nodes}
    assert set(by_id) == {c["passage_id"] for c in citations} <= set(known)
    for c in citations:
        node = by_id[c["passage_id"]]
        content = node.get_content(MetadataMode.NONE)
        assert content == known[c["passage_id"]].get_content(MetadataMode.NONE)
        assert content[c["source_start"] : c["source_end"]] == c["text"] == answer[c["start"] : c["end"]]
        assert c["document_id"] == known[c["passage_id"]].ref_doc_id
        assert c["document_start"] is not None
        assert texts[c["document_id"]][c["document_start"] :].startswith(c["text"])
    return len(citations)


def test_twenty_questions(
    stored: tuple[str, VectorStoreIndex], llm: NestLLM, texts: dict[str, str], chunks: list[TextNode]
) -> None:
    _, index = stored
    engine = NestQueryEngine.from_args(index, llm=llm)
    counts = [check(engine.query(question), texts, chunks) for question in QUESTIONS]
    assert sum(count > 0 for count in counts) >= 15


def test_llm_over_the_index_finds_the_same(stored: tuple[str, VectorStoreIndex], llm: NestLLM) -> None:
    _, index = stored
    response = NestQueryEngine.from_args(index, llm=llm).query(QUESTIONS[0])
    own = llm.complete(QUESTIONS[0], index=index, task="question")
    assert own.text == response.response
    assert own.additional_kwargs["citations"] == response.metadata["citations"]


def test_metadata_filters_pass_through(stored: tuple[str, VectorStoreIndex], llm: NestLLM) -> None:
    name, index = stored
    filters = MetadataFilters(filters=[ExactMatchFilter(key="half", value="odd")])
    if name in NO_FILTERS:
        with pytest.raises(NestError, match=r"[Ff]ilters"):
            NestQueryEngine.from_args(index, llm=llm, filters=filters).query(QUESTIONS[0])
        return
    for question in QUESTIONS[:5]:
        nodes = NestQueryEngine.from_args(index, llm=llm, filters=filters).query(question).source_nodes
        assert all(n.node.metadata["half"] == "odd" for n in nodes)


def test_async(
    stored: tuple[str, VectorStoreIndex], llm: NestLLM, texts: dict[str, str], chunks: list[TextNode]
) -> None:
    name, index = stored
    engine = NestQueryEngine.from_args(index, llm=llm)
    if name == "qdrant":  # a folder of Qdrant is open for one client at a time, and this one is not asynchronous
        with pytest.raises(SourceError, match="failed"):
            asyncio.run(engine.aquery(QUESTIONS[1]))
        answer = asyncio.run(llm.acomplete(QUESTIONS[1], index=index, task="question"))
        assert answer.text == engine.query(QUESTIONS[1]).response
        return
    response = asyncio.run(engine.aquery(QUESTIONS[1]))
    check(response, texts, chunks)
    assert response.response == engine.query(QUESTIONS[1]).response


def test_bare_vector_store(
    stored: tuple[str, VectorStoreIndex], llm: NestLLM, texts: dict[str, str], chunks: list[TextNode]
) -> None:
    name, index = stored
    arguments: dict[str, Any] = {"vector_store": index.vector_store, "embed_model": BagEmbedding()}
    if name in ("faiss", "in_memory"):
        with pytest.raises(SourceError, match=r"returns ids only.*load_index_from_storage"):
            llm.complete(QUESTIONS[0], **arguments)
        return
    expected = llm.complete(QUESTIONS[0], index=index).text
    assert llm.complete(QUESTIONS[0], **arguments).text == expected


def bm25(chunks: list[TextNode]) -> BaseRetriever:
    from llama_index.retrievers.bm25 import BM25Retriever

    retriever: BaseRetriever = BM25Retriever.from_defaults(nodes=chunks, similarity_top_k=3)
    return retriever


def test_bm25_retriever(llm: NestLLM, texts: dict[str, str], chunks: list[TextNode]) -> None:
    engine = NestQueryEngine.from_args(bm25(chunks), llm=llm)
    assert sum(check(engine.query(question), texts, chunks) > 0 for question in QUESTIONS) >= 15


def test_fusion_of_bm25_and_vectors(llm: NestLLM, texts: dict[str, str], chunks: list[TextNode]) -> None:
    vectors = in_memory(chunks, Path()).as_retriever(similarity_top_k=3)
    fusion = QueryFusionRetriever(
        [vectors, bm25(chunks)], llm=llm, num_queries=1, mode="reciprocal_rerank", use_async=False, similarity_top_k=4
    )
    engine = NestQueryEngine.from_args(fusion, llm=llm)
    assert sum(check(engine.query(question), texts, chunks) > 0 for question in QUESTIONS) >= 15


def test_wrong_embedding_model_is_explained(llm: NestLLM, chunks: list[TextNode], tmp_path: Path) -> None:
    store = chroma(chunks[:5], tmp_path).vector_store
    with pytest.raises(SourceError, match=r"ChromaVectorStore failed.*embedding model"):
        llm.complete("x", vector_store=store, embed_model=BagEmbedding(dim=7))
