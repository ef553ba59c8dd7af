"""Dense passage search: embeddings in a FAISS index."""

from __future__ import annotations

import importlib
import math
import os
import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from nest_engine.errors import ConfigError, SourceError, StoreError
from nest_engine.passages import Passage, ScoredPassage
from nest_engine.retrieval.embedder import DEFAULT_EMBEDDER, Embedder, TransformerEmbedder
from nest_engine.retrieval.saved import (
    PassageTable,
    SavedIndex,
    Writer,
    check_query,
    damaged,
    save_index,
    unique_passages,
)

IndexKind = Literal["flat", "ivf", "ivfpq"]
KIND = "nest-faiss"

# Up to here every vector is compared: exact, and about 7 ms per query for 384 dimensions on
# one free CPU core. An IVF index would save milliseconds and cost recall.
FLAT_LIMIT = 50_000
# Up to here whole vectors fit into memory (0.8 GB for 384 dimensions in float32). Beyond, the
# lists hold product-quantized codes of one byte for 8 dimensions; float16 vectors, which an
# opened index maps from disk, re-rank what the codes find, so that scores stay cosines.
IVF_LIMIT = 500_000
_REFINED = 1000  # at least so many candidates of the codes are re-ranked
_POINTS_PER_LIST = 39  # fewer training points per list than this make poor lists (FAISS warns)
_POINTS_WANTED = 64
_PQ_CODES = 256
_QUERIES_KEPT = 64


class FaissSource:
    """Passages ranked by the cosine of their embedding to the query's.

    Searches may run in several threads; `add` waits for them.

    Attributes:
        min_relevance: Cosine below which passages are off topic: the embedder's own
            measured default, or None. May be set.
        embedder: The embedder in use.
    """

    min_relevance: float | None

    def __init__(self, passages: PassageTable, index: Any, embedder: Embedder, kind: IndexKind | None) -> None:
        """Put the parts together; use `from_passages` or `open` instead.

        Args:
            passages: The passages, in the index's order.
            index: A FAISS inner-product index over their embeddings.
            embedder: Embeds queries and further passages.
            kind: Kind of index to keep when passages are added; None to choose by size.
        """
        self.embedder = embedder
        self.min_relevance = getattr(embedder, "min_relevance", None)
        self._passages = passages
        self._index = index
        self._kind = kind
        self._mapped: Path | None = None
        self._lock = threading.Lock()
        self._queries: OrderedDict[str, npt.NDArray[np.float32]] = OrderedDict()

    @classmethod
    def from_passages(
        cls,
        passages: Iterable[Passage],
        embedder: Embedder | None = None,
        *,
        kind: IndexKind | None = None,
        progress: bool = False,
    ) -> FaissSource:
        """Embed and index passages; repetitions are left out.

        Args:
            passages: At least one passage.
            embedder: By default the demo embedder, which is made for English.
            kind: Force a kind of index; by default chosen by size (`FLAT_LIMIT`, `IVF_LIMIT`).
            progress: Show progress bars on stderr.

        Raises:
            PassageError: If there are no passages, or different ones share an id.
            SourceError: If the embedder returns something else than unit vectors.
            DownloadError: If the demo embedder is wanted and cannot be fetched.
        """
        unique = unique_passages(passages)
        used = embedder if embedder is not None else TransformerEmbedder.from_pretrained(progress=progress)
        vectors = _embed(used, [indexed_text(passage) for passage in unique], progress=progress)
        return cls(PassageTable(unique), _build(vectors, kind), used, kind)

    def add(self, passages: Iterable[Passage], *, progress: bool = False) -> None:
        """Add passages; those already there are skipped.

        An index that has outgrown its kind is rebuilt. One opened from disk is read into
        memory; the folder changes only with `save`.

        Args:
            passages: At least one passage.
            progress: Show a progress bar on stderr.

        Raises:
            PassageError: If there are no passages, or different ones share an id.
        """
        given = unique_passages(passages)
        vectors = _embed(self.embedder, [indexed_text(passage) for passage in given], progress=progress)
        with self._lock:
            count = len(self._passages)
            everything = unique_passages([*self._passages, *given])
            places = {passage.id: i for i, passage in enumerate(given)}
            fresh = vectors[[places[passage.id] for passage in everything[count:]]]
            self._index = self._grown(fresh, count)
            self._passages = PassageTable(everything)
            self._mapped = None

    def _grown(self, fresh: npt.NDArray[np.float32], count: int) -> Any:
        """The index with further vectors `[n, dim]`, of the kind that fits its new size."""
        if choose_kind(count, self._kind) != choose_kind(count + len(fresh), self._kind):
            old = self._index.reconstruct_n(0, count)
            return _build(np.concatenate([old, fresh]), self._kind)
        # FAISS aborts the process when a mapped index is added to
        index = _read(self._mapped, mapped=False) if self._mapped else self._index
        if len(fresh):
            index.add(fresh)
        return index

    def search(self, query: str, k: int) -> list[ScoredPassage]:
        """Find the passages nearest to a query.

        Returns:
            At most `k` passages, best first; score and relevance are both the cosine.

        Raises:
            PromptError: If the query is blank.
            ConfigError: If `k` is below 1.
        """
        check_query(query, k)
        vector = self._query(query)
        with self._lock:
            scores, places = _nearest(self._index, vector, min(k, len(self._passages)))
            found = [(float(s), int(i)) for s, i in zip(scores[0], places[0], strict=True) if i >= 0]
            found.sort(key=lambda pair: (-pair[0], pair[1]))  # ties in a fixed order
            return [ScoredPassage(self._passages[i], score=s, relevance=s) for s, i in found]

    def relevance(self, query: str, passages: Sequence[Passage]) -> list[float | None]:
        """Cosines between a query and passages of this source.

        Returns:
            One value per passage; None for a passage that is not in the index.
        """
        vector = self._query(query)[0]
        with self._lock:
            places = [self._passages.position(passage.id) for passage in passages]
            return [None if i is None else float(vector @ self._index.reconstruct(i)) for i in places]

    def _query(self, query: str) -> npt.NDArray[np.float32]:
        """Embedding of a query, `[1, dim]`; the latest ones are kept."""
        with self._lock:
            if query in self._queries:
                self._queries.move_to_end(query)
                return self._queries[query]
        vector = _embed(self.embedder, [query])
        with self._lock:
            self._queries[query] = vector
            while len(self._queries) > _QUERIES_KEPT:
                self._queries.popitem(last=False)
        return vector

    @property
    def passages(self) -> Sequence[Passage]:
        """All passages, in the order they were given."""
        return self._passages

    def __len__(self) -> int:
        """Number of passages."""
        return len(self._passages)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Save index and passages; replaces an index saved there, all at once.

        Raises:
            StoreError: If the folder holds other things or cannot be written, or metadata
                of a passage is not JSON.
        """
        with self._lock:
            save_index(folder, self._fill)

    def _fill(self, writer: Writer) -> None:
        """Write the files of a saved index."""
        self._passages.save(writer)
        writer.add("index", ".faiss", lambda path: _faiss().write_index(self._index, str(path)))
        facts = {"embedder": self.embedder.name, "dim": self.embedder.dim, "kind": self._kind}
        writer.commit(KIND, {**facts, "count": len(self._passages)})

    @classmethod
    def open(
        cls, folder: str | os.PathLike[str], embedder: Embedder | None = None, *, verify: bool = True
    ) -> FaissSource:
        """Open a saved index; vectors and passages are mapped from disk, not read.

        Args:
            folder: The folder given to `save`.
            embedder: The embedder it was built with. May be left out for the demo embedder.
            verify: Compare checksums (about a second per GB); sizes are always compared.

        Raises:
            StoreError: If there is no index, it is damaged or newer, or was built with
                another embedder.
        """
        saved = SavedIndex(folder, KIND, verify=verify)
        name, dim, count = saved.fact("embedder", str), saved.fact("dim", int), saved.fact("count", int)
        used = _matching_embedder(name, dim, embedder, saved.folder)
        passages = PassageTable.open(saved)
        index = _read(saved.path("index"), mapped=True)
        if (index.d, index.ntotal, len(passages)) != (dim, count, count):
            raise damaged(saved.folder, f"{index.ntotal} vectors of {index.d} for {len(passages)} passages")
        kind = saved.facts.get("kind")
        source = cls(passages, index, used, kind if kind in ("flat", "ivf", "ivfpq") else None)
        source._mapped = saved.path("index")
        return source


def indexed_text(passage: Passage) -> str:
    """What is searched of a passage: its title, if any, on a line before its text."""
    title = passage.title.replace("_", " ").strip()
    return f"{title}\n{passage.text}" if title else passage.text


def choose_kind(count: int, kind: IndexKind | None = None) -> IndexKind:
    """Kind of index for a number of vectors, unless one is given."""
    if kind is not None:
        return kind
    if count <= FLAT_LIMIT:
        return "flat"
    return "ivf" if count <= IVF_LIMIT else "ivfpq"


def _faiss() -> Any:
    """The faiss module, loaded late: it has no type hints and takes a moment."""
    return importlib.import_module("faiss")


def _embed(embedder: Embedder, texts: list[str], *, progress: bool = False) -> npt.NDArray[np.float32]:
    """Embed and check: float32 `[len(texts), dim]`, finite, unit length."""
    raw = embedder.embed(texts, progress=True) if progress else embedder.embed(texts)
    vectors = np.ascontiguousarray(raw, dtype=np.float32)
    if vectors.shape != (len(texts), embedder.dim):
        raise SourceError(
            f"the embedder returned shape {vectors.shape}, expected {(len(texts), embedder.dim)}: "
            "embed() must return one row per text"
        )
    lengths = np.linalg.norm(vectors, axis=1)
    if not np.allclose(lengths, 1.0, atol=1e-3):  # also false for NaN
        raise SourceError("the embedder's vectors are not of length 1: divide each by its Euclidean norm")
    return vectors


def _build(vectors: npt.NDArray[np.float32], kind: IndexKind | None) -> Any:
    """A trained and filled inner-product index over `[n, dim]` vectors."""
    faiss = _faiss()
    count, dim = vectors.shape
    chosen = choose_kind(count, kind)
    if chosen == "ivfpq" and count < _PQ_CODES:
        raise ConfigError(f"an ivfpq index needs at least {_PQ_CODES} passages, there are {count}: use kind='flat'")
    lists = max(1, min(round(4 * math.sqrt(count)), count // _POINTS_PER_LIST))
    # "np": no polysemous training, which takes minutes and serves a search that is not used here
    codes = f"IVF{lists},PQ{_codes(dim)}np,Refine(SQfp16)"
    recipe = {"flat": "Flat", "ivf": f"IVF{lists},Flat", "ivfpq": codes}[chosen]
    index = faiss.index_factory(dim, recipe, faiss.METRIC_INNER_PRODUCT)
    if chosen != "flat":
        _train(index, vectors, lists)
    index.add(vectors)
    if chosen == "ivf":
        index.make_direct_map()  # `reconstruct` needs it
    return index


def _nearest(index: Any, vector: npt.NDArray[np.float32], k: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Cosines and places of the `k` nearest vectors, each `[1, k]`; place -1 where there are fewer."""
    faiss = _faiss()
    found: tuple[npt.NDArray[Any], npt.NDArray[Any]]
    if isinstance(index, faiss.IndexRefine):
        params = faiss.IndexRefineSearchParameters(k_factor=max(2.0, _REFINED / k))
        found = index.search(vector, k, params=params)
    else:
        found = index.search(vector, k)
    return found


def _codes(dim: int) -> int:
    """Bytes per product-quantized vector: one for 8 dimensions, and a divisor of `dim`."""
    return next(size for size in range(max(1, dim // 8), 0, -1) if dim % size == 0)


def _train(index: Any, vectors: npt.NDArray[np.float32], lists: int) -> None:
    """Train the lists (and codes) on an evenly spaced sample and set how many are searched."""
    faiss = _faiss()
    ivf = faiss.downcast_index(faiss.extract_index_ivf(index))
    ivf.cp.min_points_per_centroid = 1  # else FAISS writes warnings to stderr
    if hasattr(ivf, "pq"):
        ivf.pq.cp.min_points_per_centroid = 1
    wanted = max(_POINTS_WANTED * lists, _POINTS_WANTED * _PQ_CODES)
    index.train(np.ascontiguousarray(vectors[:: max(1, len(vectors) // wanted)]))
    ivf.nprobe = max(8, lists // 16)


def _read(path: Path, *, mapped: bool) -> Any:
    """Read a FAISS file, mapping its vectors where asked."""
    faiss = _faiss()
    try:
        if not mapped:
            return faiss.read_index(str(path))
        index = faiss.read_index(str(path), faiss.IO_FLAG_MMAP_IFC)
    except RuntimeError as error:
        raise damaged(path.parent, f"FAISS cannot read {path.name}") from error
    if index.metric_type != faiss.METRIC_INNER_PRODUCT:
        raise damaged(path.parent, f"{path.name} is not an inner-product index")
    return index


def _matching_embedder(name: str, dim: int, embedder: Embedder | None, folder: Path) -> Embedder:
    """The given embedder, or the demo one, if it is the one that the index was built with."""
    if embedder is None and not name.startswith(f"{DEFAULT_EMBEDDER}@"):
        raise StoreError(f"the index in {folder} was built with the embedder {name!r}: pass it as `embedder`")
    used = embedder if embedder is not None else TransformerEmbedder.from_pretrained()
    if used.name != name or used.dim != dim:
        raise StoreError(
            f"the index in {folder} was built with {name!r} ({dim} dimensions), not with {used.name!r} ({used.dim}): "
            "pass the same embedder, or build the index again"
        )
    return used
