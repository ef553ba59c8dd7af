"""A tiny random model, an embedding without a model, and a few documents: LlamaIndex in milliseconds."""

from __future__ import annotations

import hashlib
import re
from typing import Any

from llama_index.core import Document, VectorStoreIndex
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.node_parser import SentenceSplitter
from llama_index.core.schema import MetadataMode

from llama_index_nest import NestLLM
from nest_engine import NestConfig
from tests.texts import TEXTS
from tests.tiny import tiny_engine

COPYING = NestConfig(
    max_new_tokens=60, gamma=1e-4, alpha=2.0, tau=0.5, delta=1.0, mu=0.05, top_passages=6, min_citation_words=1
)
"""With these settings even a random model copies long spans."""

NAMES = ("lighthouse", "bread", "river", "spanish", "chinese", "emoji")
QUESTIONS = (
    "When was the lighthouse at Cape Morwen built?",
    "How long must the dough rest?",
    "Where does the river Ansel rise?",
    "¿Quién construyó el molino?",
)


class BagEmbedding(BaseEmbedding):
    """Texts as hashed bags of words: deterministic, and related texts are near each other."""

    dim: int = 96

    def _vector(self, text: str) -> list[float]:
        vector = [0.01] * self.dim
        for word in re.findall(r"\w+", text.lower()):
            vector[int(hashlib.md5(word.encode()).hexdigest(), 16) % self.dim] += 1.0
        norm = sum(v * v for v in vector) ** 0.5
        return [v / norm for v in vector]

    def _get_query_embedding(self, query: str) -> list[float]:
        return self._vector(query)

    def _get_text_embedding(self, text: str) -> list[float]:
        return self._vector(text)

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return self._vector(query)


def documents() -> list[Document]:
    return [
        Document(text=TEXTS[name], id_=f"doc-{name}", metadata={"title": name.title(), "lang": name[:2]})
        for name in NAMES
    ]


def split_nodes(size: int = 60) -> list[Any]:
    return SentenceSplitter(chunk_size=size, chunk_overlap=0, include_metadata=True).get_nodes_from_documents(
        documents()
    )


def memory_index(nodes: list[Any] | None = None) -> VectorStoreIndex:
    return VectorStoreIndex(nodes if nodes is not None else split_nodes(), embed_model=BagEmbedding())


def tiny_llm(config: NestConfig = COPYING, architecture: str = "llama", **arguments: Any) -> NestLLM:
    """An LLM over a tiny random model. Unless `ends`, it never ends an answer by itself."""
    model = {**({} if arguments.pop("ends", False) else {"eos_token_id": None}), **arguments.pop("model_arguments", {})}
    return NestLLM(engine=tiny_engine(architecture, config=config, **model), **arguments)


def assert_verbatim(text: str, citations: list[dict[str, Any]], nodes: dict[str, Any]) -> None:
    """Every citation is verbatim in the answer and in a known node, and in the document where the offset is known."""
    full = {f"doc-{name}": TEXTS[name] for name in NAMES}
    for c in citations:
        assert text[c["start"] : c["end"]] == c["text"]
        node = nodes[c["passage_id"]]
        assert node.get_content(MetadataMode.NONE)[c["source_start"] : c["source_end"]] == c["text"]
        assert c["document_id"] == node.ref_doc_id
        if c["document_start"] is not None:
            assert full[c["document_id"]][c["document_start"] :].startswith(c["text"])
