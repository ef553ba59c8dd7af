"""LlamaIndex components on top of `nest_engine`: LLM, query engine, chat engine and passage sources.

This package translates types only; the method lives in `nest_engine`.
"""

from llama_index_nest.chat_engine import NestChatEngine
from llama_index_nest.citations import CitedNode, add_markers
from llama_index_nest.llms import NestLLM
from llama_index_nest.query_engine import NestQueryEngine, NestSynthesizer
from llama_index_nest.rendering import to_html, to_markdown
from llama_index_nest.sources import (
    IndexSource,
    NestRetriever,
    NodeSource,
    RetrieverSource,
    VectorStoreSource,
    to_source,
)

__all__ = [
    "CitedNode",
    "IndexSource",
    "NestChatEngine",
    "NestLLM",
    "NestQueryEngine",
    "NestRetriever",
    "NestSynthesizer",
    "NodeSource",
    "RetrieverSource",
    "VectorStoreSource",
    "add_markers",
    "to_html",
    "to_markdown",
    "to_source",
]
