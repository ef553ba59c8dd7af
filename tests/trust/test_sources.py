"""Vector stores that raise, hang, come late, repeat themselves, find nothing or 50 MB: through both adapters."""

from __future__ import annotations

import threading
import time

import pytest
from langchain_core.retrievers import BaseRetriever as LangChainRetriever
from llama_index.core.retrievers import BaseRetriever as LlamaRetriever

from langchain_nest.sources import StoreSource
from llama_index_nest.sources import RetrieverSource
from nest_engine import Passage, ScoredPassage
from nest_engine.errors import ConfigError, SourceError
from nest_engine.retrieval.limits import MAX_PASSAGE_CHARACTERS, LimitedSource
from tests.texts import LIGHTHOUSE, passages
from tests.tiny import tiny_engine

QUESTION = "When was the lighthouse built?"


@pytest.fixture(scope="module")
def engine():
    return tiny_engine()


def through_engine(find):
    class Source:
        def search(self, query, k):
            return [ScoredPassage(Passage(text, id=str(n))) for n, text in enumerate(find())]

    return Source()


def through_langchain(find):
    from langchain_core.documents import Document

    class Retriever(LangChainRetriever):
        def _get_relevant_documents(self, query, *, run_manager):
            return [Document(page_content=text) for text in find()]

    return StoreSource(Retriever())


def through_llama_index(find):
    from llama_index.core.schema import NodeWithScore, TextNode

    class Retriever(LlamaRetriever):
        def _retrieve(self, query_bundle):
            return [NodeWithScore(node=TextNode(text=text, id_=text[:20])) for text in find()]

    return RetrieverSource(Retriever())


WAYS = pytest.mark.parametrize("way", [through_engine, through_langchain, through_llama_index])


@WAYS
def test_one_that_raises(engine, way):
    def fail():
        raise ConnectionError("database is down")

    with pytest.raises(SourceError, match="database is down"):
        engine.generate(QUESTION, source=way(fail))
    assert engine.generate(QUESTION, passages=passages("lighthouse")).text


@WAYS
def test_one_that_hangs(engine, way):
    never = threading.Event()
    source = LimitedSource(way(lambda: never.wait(20) and []), timeout=0.1)
    start = time.perf_counter()
    with pytest.raises(SourceError, match=r"longer than 0\.1 seconds"):
        engine.generate(QUESTION, source=source)
    assert time.perf_counter() - start < 5
    never.set()


@WAYS
def test_one_that_is_late_but_in_time(engine, way):
    source = LimitedSource(way(lambda: time.sleep(0.05) or [LIGHTHOUSE]), timeout=20)
    assert engine.generate(QUESTION, source=source, max_new_tokens=5).stats.passages == 1


@WAYS
def test_one_that_repeats_itself(engine, way):
    once = engine.generate(QUESTION, source=way(lambda: [LIGHTHOUSE]), max_new_tokens=12)
    found = engine.generate(QUESTION, source=way(lambda: [LIGHTHOUSE, LIGHTHOUSE]), max_new_tokens=12)
    assert once.text == found.text or found.stats.passages == 2  # the engine's own source gives them two ids


@WAYS
def test_one_that_finds_nothing(engine, way, caplog):
    answer = engine.generate(QUESTION, source=way(list), max_new_tokens=5)
    assert answer.citations == ()
    assert "no passages" in caplog.text


@WAYS
def test_one_that_returns_fifty_megabytes(engine, way):
    huge = "word " * 10_000_000
    start = time.perf_counter()
    with pytest.raises(SourceError, match="split documents"):
        engine.generate(QUESTION, source=way(lambda: [LIGHTHOUSE, huge]))
    assert time.perf_counter() - start < 20
    assert len(huge) > MAX_PASSAGE_CHARACTERS


def test_searches_that_hang_do_not_pile_up():
    never = threading.Event()
    before = threading.active_count()
    source = LimitedSource(through_engine(lambda: never.wait(20) and []), timeout=0.02, max_hanging=3)
    for _ in range(10):
        with pytest.raises(SourceError, match=r"longer than|still hanging"):
            source.search("q", 1)
    assert threading.active_count() - before <= 3
    never.set()
    deadline = time.monotonic() + 10
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    source.source = through_engine(lambda: [LIGHTHOUSE])
    source.timeout = 10
    assert source.search("q", 1), "it works again once the searches have ended"


@pytest.mark.parametrize("limits", [{"timeout": 0}, {"timeout": float("inf")}, {"max_characters": 0}])
def test_bad_limits(limits):
    with pytest.raises(ConfigError):
        LimitedSource(through_engine(list), **limits)
