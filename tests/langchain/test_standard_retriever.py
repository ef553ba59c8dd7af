"""LangChain's standard tests of retrievers, whole."""

from __future__ import annotations

from typing import Any

from langchain_core.vectorstores import InMemoryVectorStore
from langchain_tests.integration_tests import RetrieversIntegrationTests

from langchain_nest import NestRetriever
from tests.langchain.helpers import DOCUMENTS, WordEmbeddings


class TestNestRetriever(RetrieversIntegrationTests):
    @property
    def retriever_constructor(self) -> type[NestRetriever]:
        return NestRetriever

    @property
    def retriever_constructor_params(self) -> dict[str, Any]:
        return {"vectorstore": InMemoryVectorStore.from_documents(DOCUMENTS, WordEmbeddings())}

    @property
    def retriever_query_example(self) -> str:
        return "What does the raise statement do?"
