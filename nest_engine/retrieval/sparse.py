"""Sparse passage search: BM25 over words."""

from __future__ import annotations

import importlib
import json
import os
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from nest_engine.errors import SourceError
from nest_engine.passages import Passage, ScoredPassage
from nest_engine.retrieval.dense import indexed_text
from nest_engine.retrieval.saved import (
    PassageTable,
    SavedIndex,
    Writer,
    array_writer,
    check_query,
    damaged,
    save_index,
    unique_passages,
)
from nest_engine.retrieval.terms import search_terms

KIND = "nest-bm25"
_ARRAYS = {"data": "float32", "indices": "int32", "indptr": "int64"}


class Bm25Source:
    """Passages ranked by BM25 (the Lucene variant) over words of title and text.

    Only passages that share a word with the query are found. BM25 scores have no absolute
    meaning, so results carry no relevance and `min_relevance` is None. Searches may run in
    several threads.
    """

    min_relevance: float | None = None

    def __init__(self, passages: PassageTable, model: Any) -> None:
        """Put the parts together; use `from_passages` or `open` instead.

        Args:
            passages: The passages, in the index's order.
            model: A bm25s model over them.
        """
        self._parts = (passages, model)  # one attribute, so that `add` replaces both at once
        self._lock = threading.Lock()

    @classmethod
    def from_passages(cls, passages: Iterable[Passage], *, progress: bool = False) -> Bm25Source:
        """Index passages; repetitions are left out.

        Args:
            passages: At least one passage.
            progress: Show a progress bar on stderr.

        Raises:
            PassageError: If there are no passages, or different ones share an id.
        """
        unique = unique_passages(passages)
        return cls(PassageTable(unique), _build(unique, progress))

    def add(self, passages: Iterable[Passage], *, progress: bool = False) -> None:
        """Add passages. All are indexed again: word weights depend on the whole collection.

        Raises:
            PassageError: If there are no passages, or different ones share an id.
        """
        given = unique_passages(passages)
        with self._lock:
            everything = unique_passages([*self._parts[0], *given])
            self._parts = (PassageTable(everything), _build(everything, progress))

    def search(self, query: str, k: int) -> list[ScoredPassage]:
        """Find the passages with the highest BM25 score above 0.

        Returns:
            At most `k` passages, best first, equal scores in the collection's order.

        Raises:
            PromptError: If the query is blank.
            ConfigError: If `k` is below 1.
        """
        check_query(query, k)
        passages, model = self._parts
        terms = model.get_tokens_ids(search_terms(query))
        if not terms:
            return []
        scores = model.get_scores_from_ids(terms)
        return [ScoredPassage(passages[int(i)], score=float(scores[i])) for i in _best(scores, k)]

    @property
    def passages(self) -> Sequence[Passage]:
        """All passages, in the order they were given."""
        table, _ = self._parts
        return table

    def __len__(self) -> int:
        """Number of passages."""
        return len(self._parts[0])

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Save index and passages; replaces an index saved there, all at once.

        Raises:
            StoreError: If the folder holds other things or cannot be written, or metadata
                of a passage is not JSON.
        """
        save_index(folder, self._fill)

    def _fill(self, writer: Writer) -> None:
        """Write the files of a saved index."""
        passages, model = self._parts
        passages.save(writer)
        for role, dtype in _ARRAYS.items():
            writer.add(role, ".npy", array_writer(np.asarray(model.scores[role], dtype=dtype)))
        vocabulary = json.dumps(model.vocab_dict, ensure_ascii=False)
        writer.add("vocabulary", ".json", lambda path: _write(path, vocabulary))
        writer.commit(KIND, {"count": len(passages)})

    @classmethod
    def open(cls, folder: str | os.PathLike[str], *, verify: bool = True) -> Bm25Source:
        """Open a saved index; scores and passages are mapped from disk, not read.

        Args:
            folder: The folder given to `save`.
            verify: Compare checksums and ranges; sizes are always compared.

        Raises:
            StoreError: If there is no index, or it is damaged or newer.
        """
        saved = SavedIndex(folder, KIND, verify=verify)
        passages = PassageTable.open(saved)
        arrays = {role: saved.array(role, dtype) for role, dtype in _ARRAYS.items()}
        model = _model()
        model.scores = {**arrays, "num_docs": saved.fact("count", int)}
        model.vocab_dict = _read_vocabulary(saved)
        model.unique_token_ids_set = set(model.vocab_dict.values())
        model.nonoccurrence_array = None
        _check(saved, model, passages)
        return cls(passages, model)


def _model() -> Any:
    """An empty BM25 model: plain numpy, so that results do not depend on what else is installed."""
    try:
        bm25s: Any = importlib.import_module("bm25s")
    except ImportError as error:
        raise SourceError('Bm25Source needs the package bm25s: run pip install "nest-rag[sparse]"') from error
    return bm25s.BM25(method="lucene", backend="numpy")


def _build(passages: list[Passage], progress: bool) -> Any:
    """A BM25 model over passages. Terms are numbered by first occurrence: the same every time."""
    from tqdm.auto import tqdm

    vocabulary: dict[str, int] = {}
    rows = [
        [vocabulary.setdefault(term, len(vocabulary)) for term in search_terms(indexed_text(passage))]
        for passage in tqdm(passages, desc="indexing words", unit="passage", disable=not progress)
    ]
    if not vocabulary:  # nothing but punctuation: the library needs one term
        rows[0].append(vocabulary.setdefault("", 0))
    model = _model()
    model.index((rows, vocabulary), create_empty_token=False, show_progress=False)
    return model


def _best(scores: npt.NDArray[np.float32], k: int) -> npt.NDArray[np.intp]:
    """Places of the `k` highest positive scores, best first, ties by place."""
    found = np.flatnonzero(scores > 0)
    if len(found) > k:
        limit = np.partition(scores[found], len(found) - k)[len(found) - k]
        found = found[scores[found] >= limit]
    return found[np.argsort(-scores[found], kind="stable")][:k]


def _write(path: Path, text: str) -> None:
    """Write UTF-8, also lone surrogates, which words of broken texts can hold."""
    path.write_bytes(text.encode("utf-8", "surrogatepass"))


def _read_vocabulary(saved: SavedIndex) -> dict[str, int]:
    """Numbers of the terms."""
    try:
        found = json.loads(saved.path("vocabulary").read_bytes().decode("utf-8", "surrogatepass"))
    except ValueError as error:
        raise damaged(saved.folder, "the vocabulary is unreadable") from error
    if not isinstance(found, dict) or not all(type(value) is int for value in found.values()):
        raise damaged(saved.folder, "the vocabulary does not map words to numbers")
    return found


def _check(saved: SavedIndex, model: Any, passages: PassageTable) -> None:
    """Check that the parts fit together: nothing may point outside of another part."""
    data, indices, indptr = (model.scores[role] for role in _ARRAYS)
    terms = len(indptr) - 1
    fits = len(passages) == model.scores["num_docs"] and len(data) == len(indices) and terms >= 1
    fits = fits and int(indptr[0]) == 0 and int(indptr[-1]) == len(data)
    fits = fits and all(0 <= value < terms for value in model.vocab_dict.values())
    if fits and saved.verify:
        fits = bool(np.all(np.diff(indptr) >= 0))
        fits = fits and (len(indices) == 0 or (int(indices.min()) >= 0 and int(indices.max()) < len(passages)))
    if not fits:
        raise damaged(saved.folder, "its arrays do not fit together")
