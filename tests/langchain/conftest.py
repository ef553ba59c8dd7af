"""Settings and fixtures of the LangChain tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from langchain_core.documents import Document

from nest_engine import NestConfig, NestEngine
from tests.langchain.helpers import DOCUMENTS
from tests.tiny import tiny_engine


def pytest_configure(config: pytest.Config) -> None:
    # LangChain's standard suites have coroutine tests without a mark of their own.
    config.option.asyncio_mode = "auto"


@pytest.fixture
def documents() -> list[Document]:
    return [document.model_copy(deep=True) for document in DOCUMENTS]


@pytest.fixture(scope="module")
def engine() -> Iterator[NestEngine]:
    """A tiny random model that copies a lot. Its answers mean nothing; where they come from does."""
    yield tiny_engine(config=NestConfig(max_new_tokens=48, min_citation_words=2))
