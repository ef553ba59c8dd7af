"""Token search over a whole collection: FAISS finds candidates, exact distances decide."""

from __future__ import annotations

import math
from typing import Any, Self

import faiss
import numpy as np
import torch

from nest_engine.datastore.token_index import Neighbors, TokenIndex

EXACT_ENTRIES = 200_000
"""Up to this many entries every one is compared; beyond, those of the nearest inverted lists."""

_SPARE = 2
"""Candidates asked for, as a multiple of the neighbors wanted."""

_PROBED_SHARE = 16
"""One inverted list in this many is looked at."""


class FaissTokenIndex(TokenIndex):
    """A `TokenIndex` that does not compare a query with every entry.

    What FAISS finds is measured again, exactly, before it is used; masked entries are kept
    out of the search itself.
    """

    def build(self, *, exact: bool | None = None) -> Self:
        """Index the entries for `search`.

        Args:
            exact: Whether to compare every entry; by default up to `EXACT_ENTRIES`.
        """
        keys = self._keys.float().cpu().numpy()
        exact = len(keys) <= EXACT_ENTRIES if exact is None else exact
        flat = faiss.IndexFlatL2(keys.shape[1])
        if exact or len(keys) < 1000:
            self._faiss: Any = flat
        else:
            lists = round(4 * math.sqrt(len(keys)))
            self._faiss = faiss.IndexIVFFlat(flat, keys.shape[1], lists)
            self._quantizer = flat  # FAISS holds no reference of its own
            self._faiss.train(keys[:: max(1, len(keys) // (lists * 64))])
            self._faiss.nprobe = max(1, lists // _PROBED_SHARE)
        self._faiss.add(keys)
        return self

    @torch.inference_mode()
    def search(self, queries: torch.Tensor, r: int) -> Neighbors:
        """Find the `r` nearest unmasked entries among FAISS's candidates: see `TokenIndex.search`."""
        if self.unmasked <= r:
            return super().search(queries, r)
        transformed = self.transform(queries)
        candidates = self._candidates(transformed, min(_SPARE * r, self.unmasked))
        distances = torch.stack(
            [
                torch.where(row >= 0, (self._keys[row.clamp(min=0)] - query).square().sum(-1), torch.inf)
                for row, query in zip(candidates, transformed, strict=True)
            ]
        )
        # Inverted lists can hold fewer than r entries: no padding may enter the ratio.
        found = int(torch.isfinite(distances).sum(-1).min())
        nearest = torch.topk(distances, max(1, min(r, found)), largest=False, sorted=False)
        return Neighbors(candidates.gather(1, nearest.indices), nearest.values)

    def _candidates(self, queries: torch.Tensor, count: int) -> torch.Tensor:
        """Entry numbers, int64 [n, count]; -1 where an inverted list has no more."""
        library: Any = faiss  # its stubs do not know the arguments of search parameters
        selector = None
        if self._masked_entries:
            masked = np.fromiter(self._masked_entries, dtype=np.int64)
            selector = faiss.IDSelectorNot(faiss.IDSelectorBatch(masked))
        if isinstance(self._faiss, faiss.IndexIVF):
            parameters = library.SearchParametersIVF(sel=selector, nprobe=self._faiss.nprobe)
        else:
            parameters = library.SearchParameters(sel=selector)
        _, found = self._faiss.search(queries.float().cpu().numpy(), count, params=parameters)
        return torch.from_numpy(found).to(queries.device)
