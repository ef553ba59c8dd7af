"""What finding passages costs, against the size of the collection: synthetic passages, real indexes."""

from __future__ import annotations

import hashlib
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from nest_engine.passages import Passage
from nest_engine.retrieval.dense import FaissSource
from nest_engine.retrieval.hybrid import HybridSource
from nest_engine.retrieval.source import PassageSource
from nest_engine.retrieval.sparse import Bm25Source

_T = TypeVar("_T")

_WORDS = 20_000
_PASSAGE_WORDS = 100
_QUERY_WORDS = 8
_FOUND = 5


@dataclass(frozen=True)
class Cost:
    """What one kind of search costs at one size.

    Attributes:
        passages: Passages in the collection.
        search: `dense`, `sparse` or `hybrid`.
        milliseconds: Median time of a query, its embedding left out.
        build: Seconds to make the index, embeddings left out; 0 for `hybrid`, which is made of the others.
    """

    passages: int
    search: str
    milliseconds: float
    build: float


class _Vectors:
    """An embedder whose vectors follow from a digest of the text alone: around few centers, as real ones are."""

    name = "synthetic"

    def __init__(self, dim: int, centers: int) -> None:
        self.dim = dim
        self._centers = np.random.default_rng(0).standard_normal((centers, dim), dtype=np.float32)

    def embed(self, texts: Sequence[str], *, progress: bool = False) -> npt.NDArray[np.float32]:
        """Unit vectors, float32 [n, dim]."""
        rows = [self._vector(text) for text in texts]
        vectors = np.stack(rows) if rows else np.empty((0, self.dim), dtype=np.float32)
        unit: npt.NDArray[np.float32] = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
        return unit

    def _vector(self, text: str) -> npt.NDArray[np.float32]:
        random = np.random.default_rng(int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()))
        noise = random.standard_normal(self.dim, dtype=np.float32)
        vector: npt.NDArray[np.float32] = self._centers[random.integers(len(self._centers))] + noise
        return vector


def measure_costs(sizes: Sequence[int], *, queries: int = 50, dim: int = 384) -> Iterator[Cost]:
    """Build indexes of each size and search them.

    Args:
        sizes: Numbers of passages.
        queries: Queries each is searched with.
        dim: Length of the synthetic embeddings.
    """
    for size in sizes:
        random = np.random.default_rng(size)
        passages = [Passage(_text(random, _PASSAGE_WORDS), id=str(i)) for i in range(size)]
        asked = [_text(random, _QUERY_WORDS) for _ in range(queries)]
        embedder = _Vectors(dim, max(1, size // 100))
        _, embedding = _timed(partial(embedder.embed, [passage.text for passage in passages]))
        dense, dense_seconds = _timed(partial(FaissSource.from_passages, passages, embedder))
        sparse, sparse_seconds = _timed(partial(Bm25Source.from_passages, passages))
        yield Cost(size, "dense", _median(dense, asked), max(0.0, dense_seconds - embedding))
        yield Cost(size, "sparse", _median(sparse, asked), sparse_seconds)
        yield Cost(size, "hybrid", _median(HybridSource(dense, sparse), asked), 0.0)


def costs_table(costs: Sequence[Cost]) -> str:
    """The costs as a Markdown table."""
    lines = ["| passages | search | milliseconds a query | seconds to build |", "|---|---|---|---|"]
    return "\n".join(
        [*lines, *(f"| {c.passages:,} | {c.search} | {c.milliseconds:.2f} | {c.build:.1f} |" for c in costs)]
    )


def _text(random: np.random.Generator, words: int) -> str:
    """Words as frequent as in a language: Zipf's law."""
    ranks = random.zipf(1.2, size=words) % _WORDS
    return " ".join(f"w{rank}" for rank in ranks)


def _timed(make: Callable[[], _T]) -> tuple[_T, float]:
    start = time.perf_counter()
    made = make()
    return made, time.perf_counter() - start


def _median(source: PassageSource, queries: Sequence[str]) -> float:
    times = []
    for query in queries:
        source.search(query, _FOUND)  # embeds the query, which is not what is measured
        _, seconds = _timed(partial(source.search, query, _FOUND))
        times.append(1000 * seconds)
    return statistics.median(times)
