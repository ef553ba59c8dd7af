"""Hybrid passage search: a dense and a sparse source, fused."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from nest_engine.errors import ConfigError, SourceError, StoreError
from nest_engine.passages import Passage, ScoredPassage
from nest_engine.retrieval.dense import KIND as DENSE_KIND
from nest_engine.retrieval.dense import FaissSource
from nest_engine.retrieval.embedder import Embedder
from nest_engine.retrieval.fusion import fuse, reciprocal_ranks
from nest_engine.retrieval.saved import SavedIndex, Writer, check_query, damaged, read_manifest, save_index
from nest_engine.retrieval.source import PassageSource
from nest_engine.retrieval.sparse import KIND as SPARSE_KIND
from nest_engine.retrieval.sparse import Bm25Source

KIND = "nest-hybrid"
# The paper's setting: 40 passages wanted, 100 candidates for each.
MAX_CANDIDATES = 4000


@runtime_checkable
class RelevanceSource(Protocol):
    """A source that can tell the relevance of passages it was not asked to rank."""

    def relevance(self, query: str, passages: Sequence[Passage]) -> Sequence[float | None]:
        """Relevance of each passage to the query, or None where it is unknown."""
        ...


class HybridSource:
    """Two sources fused by the paper's rule (appendix A), or by rank where one has no scores.

    The relevance of a result is that of the dense side (its cosine), also for passages that
    only the sparse side found.

    Attributes:
        dense: The source by meaning.
        sparse: The source by words.
        min_relevance: Relevance below which passages are off topic: the dense side's.
    """

    min_relevance: float | None

    def __init__(
        self,
        dense: PassageSource,
        sparse: PassageSource,
        *,
        candidates: int = 100,
        max_candidates: int = MAX_CANDIDATES,
        scale: bool = False,
    ) -> None:
        """Fuse two sources.

        Args:
            dense: Any source; `FaissSource` is the usual one.
            sparse: Any source; `Bm25Source` is the usual one.
            candidates: Each side is asked for `k` times this many passages (the paper's l).
            max_candidates: Never more than this many, whatever `k`.
            scale: Divide each side's scores by its best before fusing. The paper does not;
                see `fusion.fuse`.

        Raises:
            ConfigError: If a number is below 1.
        """
        if candidates < 1 or max_candidates < 1:
            raise ConfigError("candidates and max_candidates must be at least 1")
        self.dense = dense
        self.sparse = sparse
        self.candidates = candidates
        self.max_candidates = max_candidates
        self.scale = scale
        self.min_relevance = getattr(dense, "min_relevance", None)

    @classmethod
    def from_passages(
        cls,
        passages: Iterable[Passage],
        embedder: Embedder | None = None,
        *,
        candidates: int = 100,
        scale: bool = False,
        progress: bool = False,
    ) -> HybridSource:
        """Index passages on both sides.

        Args:
            passages: At least one passage.
            embedder: By default the demo embedder, which is made for English.
            candidates: See the constructor.
            scale: See the constructor.
            progress: Show progress bars on stderr.

        Raises:
            PassageError: If there are no passages, or different ones share an id.
            DownloadError: If the demo embedder is wanted and cannot be fetched.
        """
        everything = list(passages)
        sparse = Bm25Source.from_passages(everything, progress=progress)
        dense = FaissSource.from_passages(everything, embedder, progress=progress)
        return cls(dense, sparse, candidates=candidates, scale=scale)

    def add(self, passages: Iterable[Passage], *, progress: bool = False) -> None:
        """Add passages to both sides.

        Raises:
            SourceError: If a side cannot be added to.
            PassageError: If there are no passages, or different ones share an id.
        """
        given = list(passages)
        sides: list[Any] = [self.sparse, self.dense]
        for side in sides:
            if not hasattr(side, "add"):
                raise SourceError(f"{type(side).__name__} has no add(): add the passages to its store")
        for side in sides:
            side.add(given, progress=progress)

    def search(self, query: str, k: int) -> list[ScoredPassage]:
        """Find the passages that the fused ranking puts first.

        Returns:
            At most `k` passages, best first.

        Raises:
            PromptError: If the query is blank.
            ConfigError: If `k` is below 1.
        """
        check_query(query, k)
        dense = _by_id(self.dense.search(query, self._wanted(self.dense, k)))
        sparse = _by_id(self.sparse.search(query, self._wanted(self.sparse, k)))
        scores = _fused(dense, sparse, self.scale)
        best = list(scores)[:k]
        found = [dense.get(key) or sparse[key] for key in best]
        relevance = self._relevance(query, found, known=dense)
        return [
            ScoredPassage(hit.passage, score=scores[key], relevance=value)
            for key, hit, value in zip(best, found, relevance, strict=True)
        ]

    def _wanted(self, source: PassageSource, k: int) -> int:
        """How many candidates to ask a source for: at least `k`, at most all it has."""
        wanted = max(k, min(k * self.candidates, self.max_candidates))
        size = getattr(source, "__len__", None)
        return max(1, min(wanted, size())) if size is not None else wanted

    def _relevance(self, query: str, found: list[ScoredPassage], known: dict[str, ScoredPassage]) -> list[float | None]:
        """Dense relevance of each hit, asking for that of hits that only the sparse side has."""
        values = {hit.passage.id: hit.relevance for hit in found if hit.passage.id in known}
        others = [hit.passage for hit in found if hit.passage.id not in known]
        if others and isinstance(self.dense, RelevanceSource):
            asked = self.dense.relevance(query, others)
            values |= {passage.id: value for passage, value in zip(others, asked, strict=True)}
        return [values.get(hit.passage.id) for hit in found]

    @property
    def passages(self) -> Sequence[Passage]:
        """All passages of the dense side, where it can list them.

        Raises:
            AttributeError: If it cannot.
        """
        source: Any = self.dense
        everything: Sequence[Passage] = source.passages
        return everything

    def __len__(self) -> int:
        """Number of passages of the dense side.

        Raises:
            TypeError: If that source does not know it.
        """
        size: Any = self.dense
        return len(size)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Save both sides; replaces an index saved there, all at once.

        Raises:
            StoreError: If a side cannot be saved, or the folder cannot be written.
        """
        for side in (self.dense, self.sparse):
            if not isinstance(side, FaissSource | Bm25Source):
                raise StoreError(f"{type(side).__name__} cannot be saved here: save its own store, and combine again")
        save_index(folder, self._fill)

    def _fill(self, writer: Writer) -> None:
        """Write both sides into fresh folders."""
        for role in ("dense", "sparse"):
            writer.add_folder(role, getattr(self, role).save)
        numbers = {"candidates": self.candidates, "max_candidates": self.max_candidates}
        writer.commit(KIND, {**numbers, "scale": self.scale})

    @classmethod
    def open(
        cls, folder: str | os.PathLike[str], embedder: Embedder | None = None, *, verify: bool = True
    ) -> HybridSource:
        """Open a saved index; vectors, scores and passages are mapped from disk.

        Args:
            folder: The folder given to `save`.
            embedder: The embedder it was built with. May be left out for the demo embedder.
            verify: Compare checksums (about a second per GB); sizes are always compared.

        Raises:
            StoreError: If there is no index, it is damaged or newer, or was built with
                another embedder.
        """
        saved = SavedIndex(folder, KIND, verify=verify)
        sides = [_open_side(saved.path(role), embedder, verify) for role in ("dense", "sparse")]
        numbers = {name: saved.fact(name, int) for name in ("candidates", "max_candidates")}
        if min(numbers.values()) < 1:
            raise damaged(saved.folder, f"the manifest's numbers are {numbers}")
        return cls(sides[0], sides[1], scale=saved.fact("scale", bool), **numbers)


def _open_side(folder: Path, embedder: Embedder | None, verify: bool) -> PassageSource:
    """Open one half of a saved index by the format that its manifest names."""
    kind = read_manifest(folder)["format"]
    if kind == DENSE_KIND:
        return FaissSource.open(folder, embedder, verify=verify)
    if kind == SPARSE_KIND:
        return Bm25Source.open(folder, verify=verify)
    raise damaged(folder, f"unknown format {kind!r}")


def _by_id(hits: Sequence[ScoredPassage]) -> dict[str, ScoredPassage]:
    """Hits by passage id, best first; of repeated ids the first."""
    found: dict[str, ScoredPassage] = {}
    for hit in hits:
        found.setdefault(hit.passage.id, hit)
    return found


def _fused(dense: dict[str, ScoredPassage], sparse: dict[str, ScoredPassage], scale: bool) -> dict[str, float]:
    """Fused scores, best first: by score where every hit has one, else by rank."""
    sides = [{key: hit.score for key, hit in side.items()} for side in (dense, sparse)]
    scored = [{key: score for key, score in side.items() if score is not None} for side in sides]
    if scored == sides:
        return fuse(scored[0], scored[1], scale=scale)
    return reciprocal_ranks(list(dense), list(sparse))
