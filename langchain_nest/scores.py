"""What the scores of vector stores mean. Where that is not known, they are not used."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from langchain_core.vectorstores import VectorStore


class Score(NamedTuple):
    """A store's score, read.

    Attributes:
        score: Higher is better.
        relevance: The cosine similarity; None where it cannot be told from the score.
    """

    score: float
    relevance: float | None = None


ScoreReader = Callable[[float], Score]


def score_reader(store: VectorStore) -> ScoreReader | None:
    """How to read the scores of a store; None where their direction is not known.

    Distances and similarities come under the same method, `similarity_search_with_score`.
    """
    for kind in type(store).__mro__:
        find = _STORES.get(kind.__name__)
        if find is not None:
            return find(store)
    return None


def _cosine(score: float) -> Score:
    return Score(score, score)


def _cosine_distance(distance: float) -> Score:
    return Score(1.0 - distance, 1.0 - distance)


def _similarity(score: float) -> Score:
    return Score(score)


def _distance(distance: float) -> Score:
    return Score(-distance)


def _unit_l2(distance: float) -> Score:
    """Squared distance of vectors of length one."""
    return Score(-distance, 1.0 - distance / 2.0)


def _faiss(store: Any) -> ScoreReader | None:
    metric = getattr(getattr(store, "index", None), "metric_type", None)
    if metric == 0:
        return _similarity
    if metric == 1:
        return _unit_l2 if getattr(store, "_normalize_L2", False) else _distance
    return None


def _chroma(store: Any) -> ScoreReader | None:
    space = _chroma_space(store)
    return {"cosine": _cosine_distance, "l2": _distance, "ip": _distance}.get(space)


def _chroma_space(store: Any) -> str:
    collection = getattr(store, "_collection", None)
    for settings in (getattr(collection, "configuration", None), getattr(collection, "configuration_json", None)):
        for index in ("hnsw", "spann"):
            space = ((settings or {}).get(index) or {}).get("space") if isinstance(settings, dict) else None
            if space:
                return str(space)
    return str((getattr(collection, "metadata", None) or {}).get("hnsw:space", "l2"))


def _qdrant(store: Any) -> ScoreReader | None:
    mode = str(getattr(getattr(store, "retrieval_mode", "dense"), "value", "dense")).lower()
    if mode != "dense":  # fused or sparse scores: higher is better, on no scale of their own
        return _similarity
    distance = str(getattr(getattr(store, "distance", None), "value", "")).lower()
    return {"cosine": _cosine, "dot": _similarity, "euclid": _distance, "manhattan": _distance}.get(distance)


def _pgvector(store: Any) -> ScoreReader | None:
    for name in ("_distance_strategy", "distance_strategy"):
        strategy = getattr(store, name, None)
        if strategy is not None:
            value = str(getattr(strategy, "name", strategy)).lower()
            return _cosine_distance if "cosine" in value else _distance
    return None


def _lancedb(store: Any) -> ScoreReader | None:
    distance = str(getattr(store, "distance", None) or "l2").lower()
    return _cosine_distance if distance == "cosine" else _distance


_STORES: dict[str, Callable[[Any], ScoreReader | None]] = {
    "InMemoryVectorStore": lambda store: _cosine,
    "FAISS": _faiss,
    "Chroma": _chroma,
    "QdrantVectorStore": _qdrant,
    "PGVector": _pgvector,
    "LanceDB": _lancedb,
}
"""By the name of the class, so that no store's package has to be installed."""
