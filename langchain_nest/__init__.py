"""LangChain components on top of `nest_engine`: chat model, text LLM, retriever and chain.

This package translates types only; the method lives in `nest_engine`.
"""

from langchain_nest.chains import create_nest_chain
from langchain_nest.chat_models import ChatNest
from langchain_nest.citations import cited_documents, message_citations
from langchain_nest.llms import NestLLM
from langchain_nest.rendering import to_html, to_markdown
from langchain_nest.retrievers import NestRetriever
from langchain_nest.sources import StoreSource

__all__ = [
    "ChatNest",
    "NestLLM",
    "NestRetriever",
    "StoreSource",
    "cited_documents",
    "create_nest_chain",
    "message_citations",
    "to_html",
    "to_markdown",
]
