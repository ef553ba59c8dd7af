"""Stores, retrievers, hybrid search, scores, and what goes wrong with them."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnableLambda
from langchain_core.vectorstores import InMemoryVectorStore, VectorStore

from langchain_nest import ChatNest, NestLLM, NestRetriever, cited_documents
from langchain_nest.documents import to_document, to_passage
from langchain_nest.scores import score_reader
from langchain_nest.sources import Sources
from nest_engine import NestConfig, NestEngine, Passage, ScoredPassage
from nest_engine.errors import ConfigError, SourceError
from nest_engine.retrieval.source import ListSource
from tests.langchain.helpers import WordEmbeddings, check_citations, text_and_citations

QUESTION = "What does the raise statement do?"
CONFIG = NestConfig(top_passages=2)


@pytest.fixture
def store(documents: list[Document]) -> InMemoryVectorStore:
    store = InMemoryVectorStore(WordEmbeddings())
    store.add_documents(documents)
    return store


def between(store: VectorStore) -> float:
    """A relevance that only the best document reaches."""
    first, second = (score for _, score in store.similarity_search_with_score(QUESTION, k=2))
    assert first > second
    return (first + second) / 2


class PlainStore(VectorStore):
    """Only what the base class demands."""

    def __init__(self, documents: list[Document]) -> None:
        self.documents = documents
        self.asked: list[dict[str, Any]] = []

    def similarity_search(self, query: str, k: int = 4, **kwargs: Any) -> list[Document]:
        self.asked.append({"query": query, "k": k, **kwargs})
        return self.documents[:k]

    @classmethod
    def from_texts(cls, texts: Any, embedding: Embeddings, metadatas: Any = None, **kwargs: Any) -> PlainStore:
        return cls([Document(text) for text in texts])


class ListRetriever(BaseRetriever):
    found: Any = None
    error: Any = None
    seconds: float = 0.0

    def _get_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
        time.sleep(self.seconds)
        if self.error is not None:
            raise self.error
        return self.found


class Runs(BaseCallbackHandler):
    def __init__(self) -> None:
        self.parents: dict[str, Any] = {}
        self.names: dict[str, str] = {}

    def on_chat_model_start(self, serialized: Any, messages: Any, *, run_id: Any, **kwargs: Any) -> None:
        self.names[str(run_id)] = "model"

    def on_llm_start(self, serialized: Any, prompts: Any, *, run_id: Any, **kwargs: Any) -> None:
        self.names[str(run_id)] = "model"

    def on_retriever_start(
        self, serialized: Any, query: str, *, run_id: Any, parent_run_id: Any = None, **kw: Any
    ) -> None:
        self.names[str(run_id)] = kw.get("name") or "retriever"
        self.parents[self.names[str(run_id)]] = self.names.get(str(parent_run_id))


class TestStores:
    def test_answers_cite_what_the_store_returned(
        self, engine: NestEngine, store: Any, documents: list[Document]
    ) -> None:
        message = ChatNest(engine=engine, vectorstore=store, top_passages=2).invoke(QUESTION)
        assert message.response_metadata["stats"]["passages"] == 2
        check_citations(*text_and_citations(message), cited_documents(message), documents)
        assert cited_documents(message)

    async def test_sync_and_async_find_the_same(self, store: Any, documents: list[Document]) -> None:
        sources = Sources(vectorstore=store)
        found = sources.find(QUESTION, CONFIG)
        other = await sources.afind(QUESTION, CONFIG)
        assert [hit.passage for hit in found.hits] == [hit.passage for hit in other.hits]
        assert found.hits[0].passage.id == "raise"
        assert len(found.hits) == 2

    def test_scores_of_a_known_store(self, store: Any) -> None:
        found = Sources(vectorstore=store).find(QUESTION, CONFIG)
        first = found.hits[0]
        assert first.score == first.relevance
        assert 0 < first.relevance <= 1
        assert first.score >= found.hits[1].score

    async def test_scores_of_an_unknown_store_are_not_used(self, documents: list[Document]) -> None:
        class Scored(PlainStore):
            def similarity_search_with_score(self, *args: Any, **kwargs: Any) -> Any:
                raise AssertionError("nobody knows what these scores mean")

        store = Scored(documents)
        assert score_reader(store) is None
        for found in (
            Sources(vectorstore=store).find("q", CONFIG),
            await Sources(vectorstore=store).afind("q", CONFIG),
        ):
            assert [(hit.score, hit.relevance) for hit in found.hits] == [(None, None)] * 2
            assert [hit.passage.text for hit in found.hits] == [d.page_content for d in documents[:2]]

    async def test_a_known_store_that_gives_no_scores(self, documents: list[Document]) -> None:
        class InMemoryVectorStore(PlainStore):  # known by its name
            pass

        store = InMemoryVectorStore(documents)
        assert score_reader(store) is not None
        assert len(Sources(vectorstore=store).find("q", CONFIG).hits) == 2
        assert len((await Sources(vectorstore=store).afind("q", CONFIG)).hits) == 2

    def test_min_relevance(self, engine: NestEngine, store: Any) -> None:
        model = ChatNest(engine=engine, vectorstore=store, top_passages=4)
        assert model.invoke(QUESTION).response_metadata["stats"]["passages"] == 4
        assert model.invoke(QUESTION, min_relevance=between(store)).response_metadata["stats"]["passages"] == 1
        assert cited_documents(model.invoke(QUESTION, min_relevance=1.1)) == []

    def test_search_kwargs_pass_through(self, engine: NestEngine, documents: list[Document]) -> None:
        store = PlainStore(documents)
        model = ChatNest(
            engine=engine, vectorstore=store, search_kwargs={"filter": {"a": 1}, "timeout": 5}, max_tokens=2
        )
        model.invoke(QUESTION)
        model.invoke(QUESTION, search_kwargs={"filter": {"a": 2}, "k": 1})
        assert store.asked[0] == {"query": QUESTION, "k": 40, "filter": {"a": 1}, "timeout": 5}
        assert store.asked[1] == {"query": QUESTION, "k": 1, "filter": {"a": 2}, "timeout": 5}

    def test_a_filter_of_a_real_store(self, engine: NestEngine, store: Any) -> None:
        only = {"filter": lambda document: document.id == "scripts"}
        message = ChatNest(engine=engine, vectorstore=store, search_kwargs=only).invoke(QUESTION)
        assert {d.id for d in cited_documents(message)} == {"scripts"}

    def test_no_search_in_plain_mode(self, engine: NestEngine, documents: list[Document]) -> None:
        store = PlainStore(documents)
        ChatNest(engine=engine, vectorstore=store, mode="lm", max_tokens=2).invoke(QUESTION)
        assert store.asked == []

    def test_fewer_passages_for_a_prompt(self, engine: NestEngine, documents: list[Document]) -> None:
        store = PlainStore(documents)
        ChatNest(engine=engine, vectorstore=store, mode="ra", prompt_passages=2, max_tokens=2).invoke(QUESTION)
        assert store.asked[0]["k"] == 2


class TestRetrievers:
    async def test_retriever(self, engine: NestEngine, store: Any, documents: list[Document]) -> None:
        model = ChatNest(engine=engine, retriever=store.as_retriever(search_kwargs={"k": 2}))
        message = model.invoke(QUESTION)
        check_citations(*text_and_citations(message), cited_documents(message), documents)
        assert (await model.ainvoke(QUESTION)).content == message.content

    def test_any_runnable(self, engine: NestEngine, documents: list[Document]) -> None:
        model = ChatNest(engine=engine, retriever=RunnableLambda(lambda query: documents[:1]))
        assert [d.id for d in cited_documents(model.invoke(QUESTION))] == ["with"]

    def test_engine_source(self, engine: NestEngine) -> None:
        passage = Passage(
            "A passage of the engine's own kind, to be copied.", title="T", offset=7, metadata={"page": 2}
        )
        message = ChatNest(engine=engine, source=ListSource([passage])).invoke(QUESTION)
        (document,) = cited_documents(message)
        assert document.metadata == {"document_id": passage.id, "page": 2, "title": "T", "start_index": 7}
        assert document.id == passage.id

    def test_traces_nest(self, engine: NestEngine, store: Any) -> None:
        for model in (
            ChatNest(engine=engine, vectorstore=store),
            ChatNest(engine=engine, retriever=store.as_retriever()),
        ):
            runs = Runs()
            model.invoke(QUESTION, config={"callbacks": [runs]}, max_tokens=2)
            assert list(runs.parents.values()) == ["model"]
        runs = Runs()
        NestLLM(engine=engine, vectorstore=store, max_tokens=2).invoke(QUESTION, config={"callbacks": [runs]})
        assert runs.parents == {"InMemoryVectorStore": "model"}

    async def test_traces_nest_async(self, engine: NestEngine, store: Any) -> None:
        runs = Runs()
        model = ChatNest(engine=engine, vectorstore=store, max_tokens=2)
        await model.ainvoke(QUESTION, config={"callbacks": [runs]})
        assert runs.parents == {"InMemoryVectorStore": "model"}

    async def test_hybrid(self, engine: NestEngine, store: Any, documents: list[Document]) -> None:
        # The sparse side knows the same texts, as other objects and without ids.
        sparse = ListRetriever(found=[Document(documents[3].page_content), Document(documents[1].page_content)])
        sources = Sources(vectorstore=store, sparse_retriever=sparse)
        found = sources.find(QUESTION, NestConfig(top_passages=3))
        ids = [hit.passage.id for hit in found.hits]
        assert ids[0] == "raise"  # found by both
        assert len(set(ids)) == 3
        assert [h.passage for h in (await sources.afind(QUESTION, NestConfig(top_passages=3))).hits] == [
            h.passage for h in found.hits
        ]
        message = ChatNest(engine=engine, vectorstore=store, sparse_retriever=sparse).invoke(QUESTION)
        check_citations(*text_and_citations(message), cited_documents(message), documents)


class TestWhileAnswering:
    def test_refreshed_passages_can_be_cited(self, engine: NestEngine, documents: list[Document]) -> None:
        asked: list[str] = []

        def search(query: str) -> list[Document]:
            asked.append(query)
            return [documents[len(asked) % 3]]

        model = ChatNest(engine=engine, retriever=RunnableLambda(search), refresh_every=8, span_tokens=4, max_tokens=60)
        message = model.invoke(QUESTION)
        assert len(asked) > 1
        assert asked[0] == QUESTION
        assert {d.id for d in cited_documents(message)} - {"raise"}  # what the first search did not find
        check_citations(*text_and_citations(message), cited_documents(message), documents)

    def test_a_whole_collection_can_be_cited(self, engine: NestEngine, documents: list[Document]) -> None:
        passages = [to_passage(document) for document in documents]
        model = ChatNest(engine=engine, source=ListSource(passages), datastore="global")
        message = model.invoke(QUESTION)
        assert cited_documents(message)
        check_citations(*text_and_citations(message), cited_documents(message), documents)

    def test_a_store_is_no_collection(self, engine: NestEngine, store: Any) -> None:
        with pytest.raises(ConfigError, match="global"):
            ChatNest(engine=engine, vectorstore=store, datastore="global").invoke(QUESTION)


class TestErrors:
    async def test_a_source_that_raises(self, engine: NestEngine) -> None:
        model = ChatNest(engine=engine, retriever=ListRetriever(error=ConnectionError("refused")))
        with pytest.raises(SourceError, match="ListRetriever failed: refused") as caught:
            model.invoke(QUESTION)
        assert isinstance(caught.value.__cause__, ConnectionError)
        with pytest.raises(SourceError, match="refused"):
            await model.ainvoke(QUESTION)
        with pytest.raises(SourceError, match="refused"):
            list(model.stream(QUESTION))

    def test_a_source_that_times_out_itself(self, engine: NestEngine) -> None:
        with pytest.raises(SourceError, match="ListRetriever failed: TimeoutError"):
            ChatNest(engine=engine, retriever=ListRetriever(error=TimeoutError())).invoke(QUESTION)

    async def test_a_slow_source(self, engine: NestEngine, documents: list[Document]) -> None:
        model = ChatNest(engine=engine, retriever=ListRetriever(found=documents, seconds=1.0), timeout=0.05)
        start = time.perf_counter()
        with pytest.raises(SourceError, match=r"longer than 0\.05 seconds"):
            model.invoke(QUESTION)
        with pytest.raises(SourceError, match=r"longer than 0\.05 seconds"):
            await model.ainvoke(QUESTION)
        assert time.perf_counter() - start < 0.9

    def test_nothing_found(self, engine: NestEngine, caplog: pytest.LogCaptureFixture) -> None:
        message = ChatNest(engine=engine, retriever=ListRetriever(found=[])).invoke(QUESTION)
        assert cited_documents(message) == []
        assert message.text == ChatNest(engine=engine, mode="lm").invoke(QUESTION).text
        assert "no passages" in caplog.text

    @pytest.mark.parametrize(
        ("found", "match"),
        [
            (["a text"], "returned a str instead of a Document"),
            ([Document.model_construct(page_content=b"bytes", metadata={}, id="b")], "is bytes, not text"),
            ("abc", "list of Documents"),
            (None, "list of Documents"),
        ],
    )
    def test_what_is_no_document(self, engine: NestEngine, found: Any, match: str) -> None:
        with pytest.raises(SourceError, match=match):
            ChatNest(engine=engine, retriever=RunnableLambda(lambda query: found)).invoke(QUESTION)

    def test_a_huge_document(self, engine: NestEngine) -> None:
        huge = Document("A sentence that comes again and again. " * 500, id="huge")
        message = ChatNest(engine=engine, documents=[huge], max_tokens=16).invoke("A sentence?")
        check_citations(*text_and_citations(message), cited_documents(message), [huge])

    def test_a_store_without_embeddings(self, engine: NestEngine) -> None:
        class Broken(PlainStore):
            def similarity_search(self, *args: Any, **kwargs: Any) -> Any:
                raise ValueError("cannot embed")

        with pytest.raises(SourceError, match="no embedding model: give it one"):
            ChatNest(engine=engine, vectorstore=Broken([])).invoke(QUESTION)

    def test_things_in_the_wrong_place(self, engine: NestEngine, store: Any) -> None:
        with pytest.raises(ConfigError, match="give it as vectorstore="):
            ChatNest(engine=engine, retriever=store)
        with pytest.raises(ConfigError, match="sparse_retriever needs"):
            ChatNest(engine=engine, sparse_retriever=store.as_retriever())
        with pytest.raises(ConfigError, match="one of"):
            ChatNest(engine=engine, vectorstore=store, retriever=store.as_retriever())


class TestNestRetriever:
    async def test_store_and_k(self, store: Any) -> None:
        retriever = NestRetriever(vectorstore=store, k=3)
        found = retriever.invoke(QUESTION)
        assert found[0].id == "raise"
        assert len(found) == 3
        assert len(retriever.invoke(QUESTION, k=1)) == 1
        assert await retriever.ainvoke(QUESTION) == found

    def test_min_relevance(self, store: Any) -> None:
        assert len(NestRetriever(vectorstore=store, min_relevance=between(store)).invoke(QUESTION)) == 1

    def test_engine_source(self) -> None:
        class Source:
            min_relevance = 0.5

            def search(self, query: str, k: int) -> list[ScoredPassage]:
                return [ScoredPassage(Passage("near"), 0.9, 0.9), ScoredPassage(Passage("far"), 0.1, 0.1)]

        assert [d.page_content for d in NestRetriever(source=Source()).invoke("q")] == ["near"]

    def test_traces_nest(self, store: Any) -> None:
        runs = Runs()
        NestRetriever(vectorstore=store, name="mine").invoke(QUESTION, config={"callbacks": [runs]})
        assert runs.parents == {"mine": None, "InMemoryVectorStore": "mine"}


def test_documents_and_passages() -> None:
    document = Document("text", metadata={"source": "s", "title": 3, "start_index": True})
    passage = to_passage(document)
    assert passage is not None
    assert (passage.document_id, passage.title, passage.offset) == ("s", "", None)
    assert to_document(passage) is document
    assert (
        to_passage(Document("text", id="1"), by_content=True).id
        == to_passage(Document("text", id="2"), by_content=True).id
    )


def test_concurrent_async_searches_do_not_block_each_other(store: Any) -> None:
    class Slow(ListRetriever):
        async def _aget_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
            await asyncio.sleep(0.2)
            return [Document("found")]

    async def search() -> float:
        start = time.perf_counter()
        await asyncio.gather(*(Sources(retriever=Slow()).afind("q", CONFIG) for _ in range(10)))
        return time.perf_counter() - start

    assert asyncio.run(search()) < 1.0
