"""LangChain's cache must not answer from another datastore."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.caches import InMemoryCache
from langchain_core.documents import Document
from langchain_core.vectorstores import InMemoryVectorStore

from langchain_nest import ChatNest, NestLLM, cited_documents
from langchain_nest.identity import describe, object_name
from nest_engine import NestEngine
from tests.langchain.helpers import WordEmbeddings

QUESTION = "What is it?"
ONE = [Document("The first store has a text about apples and pears.", id="one")]
TWO = [Document("A second store has other words, on trains and cars.", id="two")]


def store_of(documents: list[Document]) -> InMemoryVectorStore:
    store = InMemoryVectorStore(WordEmbeddings())
    store.add_documents(documents)
    return store


class CountingCache(InMemoryCache):
    def __init__(self) -> None:
        super().__init__()
        self.hits = 0

    def lookup(self, prompt: str, llm_string: str) -> Any:
        found = super().lookup(prompt, llm_string)
        self.hits += found is not None
        return found


@pytest.fixture
def cache() -> CountingCache:
    return CountingCache()


@pytest.fixture(params=[ChatNest, NestLLM])
def make(request: pytest.FixtureRequest, engine: NestEngine, cache: CountingCache) -> Any:
    return lambda **arguments: request.param(engine=engine, cache=cache, max_tokens=24, **arguments)


def ids(answer: Any) -> set[str]:
    (generations,) = answer.generations
    first = generations[0]
    info = first.message.response_metadata if hasattr(first, "message") else first.generation_info
    return {str(document.id) for document in cited_documents(info)}


def ask(model: Any, **arguments: Any) -> set[str]:
    return ids(model.generate_prompt([model._convert_input(QUESTION)], **arguments))


def test_the_same_call_is_found_again(make: Any, cache: CountingCache) -> None:
    model = make(vectorstore=store_of(ONE))
    assert ask(model) == ask(model) == {"one"}
    assert cache.hits == 1


def test_other_stores_are_not_mixed_up(make: Any, cache: CountingCache) -> None:
    assert ask(make(vectorstore=store_of(ONE))) == {"one"}
    assert ask(make(vectorstore=store_of(TWO))) == {"two"}
    assert ask(make(retriever=store_of(ONE).as_retriever())) == {"one"}
    assert ask(make(documents=TWO)) == {"two"}
    assert cache.hits == 0


def test_documents_of_a_call_are_not_mixed_up(make: Any, cache: CountingCache) -> None:
    model = make()
    assert ask(model, documents=ONE) == {"one"}
    assert ask(model, documents=TWO) == {"two"}
    assert ask(model) == set()
    assert cache.hits == 0
    assert ask(model, documents=ONE) == {"one"}
    assert cache.hits == 1


def test_settings_of_a_call_are_not_mixed_up(make: Any, cache: CountingCache) -> None:
    model = make(documents=ONE)
    ask(model)
    ask(model, mode="lm")
    ask(model, gamma=0.5)
    ask(make(documents=ONE, alpha=0.9))
    assert cache.hits == 0


def test_a_store_that_grew(make: Any, cache: CountingCache) -> None:
    store = store_of(ONE)
    model = make(vectorstore=store)
    ask(model)
    store.add_documents(TWO)
    ask(model)
    assert cache.hits == 0


def test_a_name_for_the_datastore(make: Any, cache: CountingCache) -> None:
    ask(make(vectorstore=store_of(ONE), datastore_id="v1"))
    assert ask(make(vectorstore=store_of(ONE), datastore_id="v1")) == {"one"}
    assert cache.hits == 1
    ask(make(vectorstore=store_of(ONE), datastore_id="v2"))
    assert cache.hits == 1


async def test_async(make: Any, cache: CountingCache) -> None:
    model = make()
    prompt = [model._convert_input(QUESTION)]
    assert ids(await model.agenerate_prompt(prompt, documents=ONE)) == {"one"}
    assert ids(await model.agenerate_prompt(prompt, documents=TWO)) == {"two"}
    assert ids(await model.agenerate_prompt(prompt, documents=ONE)) == {"one"}


def test_names_are_never_used_again() -> None:
    names = {object_name(InMemoryVectorStore(WordEmbeddings())) for _ in range(50)}
    assert len(names) == 50
    kept = InMemoryVectorStore(WordEmbeddings())
    assert object_name(kept) == object_name(kept)
    assert object_name(object()) != object_name(object())  # cannot be referred to weakly


def test_descriptions_hold_no_addresses() -> None:
    described = repr(describe({"a": [1, None, ONE[0]], "store": store_of(ONE), "f": lambda: 1}))
    assert " at 0x" not in described
    assert describe(ONE[0]) != describe(TWO[0])
