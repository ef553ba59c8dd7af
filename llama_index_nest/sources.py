"""Passages from LlamaIndex: nodes, retrievers, indexes and vector stores as the engine's sources, and back."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from typing import Any

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.indices.base import BaseIndex
from llama_index.core.indices.vector_store.base import VectorStoreIndex
from llama_index.core.schema import (
    BaseNode,
    MetadataMode,
    NodeRelationship,
    NodeWithScore,
    QueryBundle,
    RelatedNodeInfo,
    TextNode,
)
from llama_index.core.storage.docstore.types import BaseDocumentStore
from llama_index.core.vector_stores.simple import SimpleVectorStore
from llama_index.core.vector_stores.types import BasePydanticVectorStore, VectorStoreQuery, VectorStoreQueryResult

from nest_engine.errors import ConfigError, NestError, SourceError
from nest_engine.passages import Passage, ScoredPassage
from nest_engine.retrieval.source import ListSource, PassageSource

logger = logging.getLogger(__name__)

SOURCE_NAMES = ("source", "index", "retriever", "nodes", "vector_store")
"""Arguments that name where passages come from; at most one of them is given."""

_COMPANIONS = ("embed_model", "docstore")
_TITLES = ("title", "file_name", "filename")


def to_passage(node: BaseNode) -> Passage | None:
    """A node as a passage, or None where it holds no text.

    The passage's text is `node.get_content(MetadataMode.NONE)`, its id the node's, its document
    the node's `ref_doc_id`.

    Args:
        node: Any node; of images and the like only the text counts.
    """
    text = node.get_content(metadata_mode=MetadataMode.NONE)
    if not text.strip():
        return None
    return Passage(
        text=text,
        title=_title(node.metadata),
        id=node.node_id,
        document_id=node.ref_doc_id or node.node_id,
        offset=_offset(node, text),
        metadata=dict(node.metadata),
    )


def to_scored_passages(
    nodes: Sequence[NodeWithScore | BaseNode], *, score_is_relevance: bool = False
) -> list[ScoredPassage]:
    """Nodes as passages, in the same order. Nodes without text are left out with a warning.

    Scores are passed on only where the order says that higher is better, since stores disagree.

    Args:
        nodes: Nodes, the best first.
        score_is_relevance: Whether scores are on an absolute scale (cosine similarity), so that
            `min_relevance` may compare with them.
    """
    scored = [n if isinstance(n, NodeWithScore) else NodeWithScore(node=n) for n in nodes]
    scores = _falling(scored)
    found = []
    for item, score in zip(scored, scores, strict=True):
        passage = to_passage(item.node)
        if passage is not None:
            found.append(ScoredPassage(passage, score, score if score_is_relevance else None))
    if len(found) < len(scored):
        logger.warning("%d of %d retrieved nodes hold no text and are left out", len(scored) - len(found), len(scored))
    return found


def to_node(passage: Passage) -> TextNode:
    """A passage as a node, with the same id, document, offset and text."""
    metadata = dict(passage.metadata)
    if passage.title:
        metadata.setdefault("title", passage.title)
    node = TextNode(id_=passage.id, text=passage.text, metadata=metadata)
    if passage.document_id != passage.id:
        node.relationships[NodeRelationship.SOURCE] = RelatedNodeInfo(node_id=passage.document_id)
    if passage.offset is not None:
        node.start_char_idx, node.end_char_idx = passage.offset, passage.offset + len(passage.text)
    return node


class NodeSource:
    """A fixed list of nodes, all of them, in the caller's order, whatever the query."""

    def __init__(self, nodes: Sequence[NodeWithScore | BaseNode], *, score_is_relevance: bool = False) -> None:
        """Keep the nodes; see `to_scored_passages`."""
        self.passages = to_scored_passages(nodes, score_is_relevance=score_is_relevance)

    def __len__(self) -> int:
        """The number of passages."""
        return len(self.passages)

    def search(self, query: str, k: int) -> list[ScoredPassage]:
        """Return the first `k` passages."""
        return self.passages[:k]


class RetrieverSource:
    """What a LlamaIndex retriever finds. How many passages that are is the retriever's own setting."""

    def __init__(self, retriever: BaseRetriever, *, score_is_relevance: bool = False) -> None:
        """Search with `retriever`; see `to_scored_passages` for its scores."""
        self.retriever = retriever
        self._score_is_relevance = score_is_relevance

    def search(self, query: str, k: int) -> list[ScoredPassage]:
        """Retrieve.

        Raises:
            SourceError: If the retriever fails.
        """
        with explain_errors(self.retriever):
            nodes = self.retriever.retrieve(query)
        return to_scored_passages(nodes, score_is_relevance=self._score_is_relevance)[:k]


class IndexSource:
    """What an index finds; it is asked for as many passages as the engine wants."""

    def __init__(
        self, index: BaseIndex[Any], *, score_is_relevance: bool | None = None, **retriever_arguments: Any
    ) -> None:
        """Search an index.

        Args:
            index: Any index.
            score_is_relevance: See `to_scored_passages`; by default True for a vector index in memory, whose
                scores are cosine similarities.
            **retriever_arguments: For `index.as_retriever`, such as `filters`.
        """
        self.index = index
        self._arguments = retriever_arguments
        if score_is_relevance is None:
            score_is_relevance = _has_cosines(index) and not retriever_arguments.get("vector_store_query_mode")
        self._score_is_relevance = score_is_relevance

    def search(self, query: str, k: int) -> list[ScoredPassage]:
        """Retrieve `k` nodes.

        Raises:
            SourceError: If the index fails.
        """
        with explain_errors(self.index):
            retriever = self.index.as_retriever(**{"similarity_top_k": k, **self._arguments})
        return RetrieverSource(retriever, score_is_relevance=self._score_is_relevance).search(query, k)


class VectorStoreSource:
    """What a bare vector store finds: it needs an embedding model, and a docstore where it keeps no texts."""

    def __init__(
        self,
        vector_store: BasePydanticVectorStore,
        embed_model: BaseEmbedding,
        *,
        docstore: BaseDocumentStore | None = None,
        score_is_relevance: bool = False,
        **query_arguments: Any,
    ) -> None:
        """Search a vector store.

        Args:
            vector_store: The store.
            embed_model: The model that its vectors were made with.
            docstore: Where the nodes are, if the store returns ids only.
            score_is_relevance: See `to_scored_passages`.
            **query_arguments: More fields of `VectorStoreQuery`, such as `filters`.

        Raises:
            ConfigError: If there is no embedding model.
        """
        if embed_model is None:
            raise ConfigError("a bare vector store needs embed_model=..., the model that its vectors were made with")
        self.vector_store, self.embed_model, self.docstore = vector_store, embed_model, docstore
        self._score_is_relevance = score_is_relevance
        self._arguments = query_arguments

    def search(self, query: str, k: int) -> list[ScoredPassage]:
        """Embed the query and search.

        Raises:
            SourceError: If the store fails, or returns ids of nodes that nothing knows.
        """
        with explain_errors(self.vector_store):
            embedding = self.embed_model.get_agg_embedding_from_queries([query])
            result = self.vector_store.query(
                VectorStoreQuery(
                    **{"query_embedding": embedding, "query_str": query, "similarity_top_k": k, **self._arguments}
                )
            )
            nodes = list(result.nodes) if result.nodes is not None else self._look_up(result)
        scores: Sequence[float | None] = result.similarities or []
        scored = [NodeWithScore(node=n, score=s) for n, s in itertools.zip_longest(nodes, scores[: len(nodes)])]
        return to_scored_passages(scored, score_is_relevance=self._score_is_relevance)[:k]

    def _look_up(self, result: VectorStoreQueryResult) -> list[BaseNode]:
        """The nodes of a result that holds ids only."""
        ids = list(result.ids or [])
        found = self.docstore.get_nodes(ids, raise_error=False) if self.docstore is not None else []
        if len(found) < len(ids):
            raise SourceError(
                f"{type(self.vector_store).__name__} returns ids only ({', '.join(ids[:3])}, ...), and no docstore "
                "knows their texts: pass index=load_index_from_storage(StorageContext.from_defaults(vector_store=..., "
                "persist_dir=...)) instead of the bare store, or docstore=... if it is keyed by these ids"
            )
        return found


class NestRetriever(BaseRetriever):
    """A source of `nest_engine` (FAISS, BM25, hybrid search, another adapter's) as a LlamaIndex retriever."""

    def __init__(self, source: PassageSource, similarity_top_k: int = 5, **arguments: Any) -> None:
        """Retrieve from an engine source.

        Args:
            source: Where to search.
            similarity_top_k: Passages wanted.
            **arguments: For `BaseRetriever`.
        """
        self.source = source
        self.similarity_top_k = similarity_top_k
        super().__init__(**arguments)

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        with explain_errors(self.source):
            found = self.source.search(query_bundle.query_str, self.similarity_top_k)
        return [
            NodeWithScore(node=to_node(s.passage), score=s.relevance if s.relevance is not None else s.score)
            for s in found
        ]

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return await asyncio.to_thread(self._retrieve, query_bundle)


def to_source(
    origin: Any, *, embed_model: BaseEmbedding | None = None, docstore: BaseDocumentStore | None = None
) -> PassageSource:
    """Whatever can be searched, as a source of the engine.

    Args:
        origin: An index, a retriever, a vector store, a sequence of nodes, documents or passages, or a source.
        embed_model: For a vector store.
        docstore: For a vector store that returns ids only.

    Raises:
        ConfigError: If it is none of these.
    """
    if isinstance(origin, BaseRetriever):
        return RetrieverSource(origin)
    if isinstance(origin, BaseIndex):
        return IndexSource(origin)
    if isinstance(origin, BasePydanticVectorStore):
        if embed_model is None:
            raise ConfigError("a bare vector store needs embed_model=..., the model that its vectors were made with")
        return VectorStoreSource(origin, embed_model, docstore=docstore)
    if isinstance(origin, PassageSource):
        return origin
    if isinstance(origin, Sequence) and not isinstance(origin, str):
        return _list_source(origin)
    raise ConfigError(
        f"{type(origin).__name__} is nothing to search: give an index, a retriever, a vector store with embed_model, "
        "nodes, passages, or an object with search(query, k)"
    )


def take_source(arguments: MutableMapping[str, Any]) -> PassageSource | None:
    """Take the arguments that name a source out of `arguments`.

    Raises:
        ConfigError: If more than one source is named, or something that cannot be searched.
    """
    named = {name: arguments.pop(name) for name in SOURCE_NAMES if name in arguments}
    companions = {name: arguments.pop(name, None) for name in _COMPANIONS}
    given = {name: origin for name, origin in named.items() if origin is not None}
    if len(given) > 1:
        raise ConfigError(f"give one source of passages, not {' and '.join(sorted(given))}")
    return to_source(next(iter(given.values())), **companions) if given else None


def to_retriever(origin: Any, *, similarity_top_k: int = 5, **arguments: Any) -> BaseRetriever:
    """Whatever can be searched, as a retriever.

    Args:
        origin: A retriever, an index, or what `to_source` takes.
        similarity_top_k: Nodes wanted; a retriever keeps its own number.
        **arguments: For `index.as_retriever`, such as `filters`.

    Raises:
        ConfigError: If it cannot be searched.
    """
    if isinstance(origin, BaseRetriever):
        return origin
    if isinstance(origin, BaseIndex):
        return origin.as_retriever(similarity_top_k=similarity_top_k, **arguments)
    if isinstance(origin, BasePydanticVectorStore) and origin.stores_text:
        index = VectorStoreIndex.from_vector_store(origin, embed_model=arguments.pop("embed_model", None))
        return index.as_retriever(similarity_top_k=similarity_top_k, **arguments)
    return NestRetriever(to_source(origin, **arguments), similarity_top_k)


@contextmanager
def explain_errors(origin: object) -> Iterator[None]:
    """Turn any error of a foreign store into a `SourceError` that says which store failed and what to look at.

    Raises:
        SourceError: If the block raises; errors of this project pass unchanged.
    """
    name = type(origin).__name__
    try:
        yield
    except NestError:
        raise
    except KeyError as error:
        raise SourceError(
            f"{name} found node {error}, but its docstore does not have it: load the index with the storage context "
            "it was made with (load_index_from_storage)"
        ) from error
    except Exception as error:
        raise SourceError(
            f"{name} failed: {error} ({type(error).__name__}). Check that it can be searched by itself, and that its "
            "embedding model is the one it was filled with"
        ) from error


def _list_source(items: Sequence[Any]) -> PassageSource:
    if items and all(isinstance(item, Passage) for item in items):
        return ListSource(items)
    for item in items:
        if not isinstance(item, BaseNode | NodeWithScore):
            raise ConfigError(f"nodes must be LlamaIndex nodes, not {type(item).__name__}: use TextNode(text=...)")
    return NodeSource(items)


def _title(metadata: Mapping[str, Any]) -> str:
    return next((str(metadata[name]) for name in _TITLES if metadata.get(name)), "")


def _offset(node: BaseNode, text: str) -> int | None:
    """Where the text begins in its document, or None where that is not known."""
    start, end = getattr(node, "start_char_idx", None), getattr(node, "end_char_idx", None)
    if node.ref_doc_id is None and start is None:
        return 0  # the node is a document of its own
    if start is None or (end is not None and end - start != len(text)):
        return None  # a postprocessor has replaced the text, by a window around it for instance
    return int(start)


def _falling(nodes: Sequence[NodeWithScore]) -> list[float | None]:
    """The scores, if all are there and none is above the one before it; else no scores at all."""
    scores = [None if n.score is None else float(n.score) for n in nodes]
    known = [s for s in scores if s is not None]
    falls = all(a >= b for a, b in itertools.pairwise(known))
    return scores if falls and len(known) == len(scores) else [None] * len(scores)


def _has_cosines(index: BaseIndex[Any]) -> bool:
    return isinstance(index, VectorStoreIndex) and isinstance(index.vector_store, SimpleVectorStore)
