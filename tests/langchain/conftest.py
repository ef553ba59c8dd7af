"""Settings and fixtures of the LangChain tests."""

from __future__ import annotations

import os
from typing import Any

import pytest
from langchain_core.documents import Document

from nest_engine import NestConfig, NestEngine
from tests.langchain.helpers import DOCUMENTS
from tests.tiny import tiny_engine

# The tests of the stores need many large packages: `make test-stores` runs them.
collect_ignore = [] if os.environ.get("NEST_STORES") else ["stores"]

# Standard tests of what a model that runs here and reads text only does not have. They would skip themselves;
# no test of this project is skipped unnoticed, so each is named here.
NOT_FOR_NEST = {
    "test_init_from_env": "there is no key or address to read from the environment",
    "test_serdes": "models are pickled by their configuration, not serialized by LangChain",
    "test_stream_time": "there is no recorded traffic to replay",
    "test_audio_inputs": "text only",
    "test_image_inputs": "text only",
    "test_image_tool_message": "text only",
    "test_pdf_inputs": "text only",
    "test_pdf_tool_message": "text only",
}


def pytest_collection_modifyitems(config: pytest.Config, items: list[Any]) -> None:
    """Take the tests of `NOT_FOR_NEST` out, and let the rest of the standard suite run as it is."""
    here = [item for item in items if "langchain" in item.path.parts and "standard" in item.path.name]
    dropped = [item for item in here if item.originalname in NOT_FOR_NEST]
    if dropped:
        config.hook.pytest_deselected(items=dropped)
        items[:] = [item for item in items if item not in dropped]


def pytest_configure(config: pytest.Config) -> None:
    # LangChain's standard suites have coroutine tests without a mark of their own.
    config.option.asyncio_mode = "auto"


@pytest.fixture
def documents() -> list[Document]:
    return [document.model_copy(deep=True) for document in DOCUMENTS]


@pytest.fixture(scope="module")
def engine() -> NestEngine:
    """A tiny random model that copies a lot. Its answers mean nothing; where they come from does."""
    return tiny_engine(config=NestConfig(max_new_tokens=48, min_citation_words=2))
