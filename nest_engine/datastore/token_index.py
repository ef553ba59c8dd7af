"""The datastore of one generation: all entries of the retrieved passages, searched at every step."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray

from nest_engine.datastore.codec import FloatCodec, KeyCodec
from nest_engine.datastore.encoded import EncodedPassage
from nest_engine.datastore.transform import KeyTransform


@dataclass(frozen=True)
class Place:
    """Where a token stands.

    Attributes:
        passage: Number of the passage, in the order they were given.
        position: Index of the token in the passage's text, in tokens.
    """

    passage: int
    position: int


@dataclass(frozen=True)
class Sentence:
    """A sentence of a passage.

    Attributes:
        passage: Number of the passage.
        start: Position of its first token.
        end: Position behind its last token.
    """

    passage: int
    start: int
    end: int


@dataclass(frozen=True)
class Neighbors:
    """The entries nearest to some queries.

    Attributes:
        entries: int64 [n, r], entry numbers, in no order.
        distances: float [n, r], squared Euclidean distances: minus the similarity s of METHOD section 3.
    """

    entries: torch.Tensor
    distances: torch.Tensor


class TokenIndex:
    """Exact search over the entries of some passages; entries can be masked.

    An entry is numbered in the order of the passages, then of the tokens.

    Attributes:
        sentences: Sentences that answer the question, the best first, where they are ranked.
    """

    def __init__(
        self,
        passages: Sequence[EncodedPassage],
        transform: KeyTransform,
        *,
        device: torch.device,
        dtype: torch.dtype,
        codec: KeyCodec | None = None,
        sentence_ends: Sequence[NDArray[np.bool_]] | None = None,
        numbers: Sequence[int] | None = None,
    ) -> None:
        """Open a datastore.

        Args:
            passages: Encoded passages.
            transform: Applied to keys here and to queries in `search`.
            device: Where to search.
            dtype: Number format to search in: that of the queries.
            codec: Reads the keys' storage format, float16 by default.
            sentence_ends: For each passage bool [m]: does a sentence end with this token?
            numbers: The number of each passage in places, different ones; by default 0, 1, 2...
        """
        self.transform = transform
        self._numbers = list(numbers) if numbers is not None else list(range(len(passages)))
        self._rows = {number: row for row, number in enumerate(self._numbers)}
        self.token_ids = {number: p.token_ids for number, p in zip(self._numbers, passages, strict=True)}
        self._sentence_ends = sentence_ends
        self._first_entry = np.cumsum([0] + [len(p.keys) for p in passages])
        self._first_token = [p.first for p in passages]
        codec = codec or FloatCodec("float16")
        raw = [codec.decode(p.keys).to(device=device, dtype=dtype) for p in passages if len(p.keys)]
        self._keys = transform(torch.cat(raw)) if raw else torch.zeros((0, 0), device=device, dtype=dtype)
        self._norms = self._keys.square().sum(-1)
        values = np.concatenate([p.token_ids[p.first :] for p in passages] or [np.zeros(0, np.int32)])
        self.values = torch.from_numpy(values.astype(np.int64)).to(device)
        self.vocabulary, self.slots = torch.unique(self.values, return_inverse=True)
        self.sentences: Sequence[Sentence] = ()
        self.version = 0
        self._unmask()

    def _unmask(self) -> None:
        self._masked = torch.zeros(len(self.values), dtype=torch.bool, device=self.values.device)
        self._masked_entries: set[int] = set()
        self._active: torch.Tensor | None = None
        self.unmasked = len(self.values)

    def fresh(self) -> Self:
        """The same entries, none of them masked, for another generation; keys are shared."""
        other = copy.copy(self)
        other._unmask()
        return other

    @property
    def masked_places(self) -> list[Place]:
        """Places whose entries are masked."""
        return [self.place(entry) for entry in sorted(self._masked_entries)]

    def __len__(self) -> int:
        """Number of entries, masked ones included."""
        return len(self.values)

    @torch.inference_mode()
    def search(self, queries: torch.Tensor, r: int) -> Neighbors:
        """Find the `r` nearest unmasked entries, or all of them where there are fewer.

        Args:
            queries: float [n, key_dim], before the transform.
            r: Entries wanted, at least 1.
        """
        if self.unmasked == 0:
            empty = torch.zeros((len(queries), 0), device=queries.device)
            return Neighbors(empty.long(), empty.to(queries.dtype))
        queries = self.transform(queries)
        products = queries @ self._keys.T
        # In place: with thousands of entries these matrices are the cost of a step.
        distances = products.mul_(-2).add_(self._norms).add_(queries.square().sum(-1, keepdim=True)).clamp_(min=0)
        if self.unmasked <= r:
            active = self._unmasked_entries()
            chosen = distances if self.unmasked == len(self) else distances[:, active]
            return Neighbors(active.expand(len(queries), -1), chosen)
        if self.unmasked < len(self):
            distances[:, self._masked] = torch.inf
        nearest = torch.topk(distances, r, largest=False, sorted=False)
        return Neighbors(nearest.indices, nearest.values)

    @torch.inference_mode()
    def nearest(self, query: torch.Tensor, entries: torch.Tensor) -> int:
        """The entry nearest to a query among some; of equally near ones the lowest.

        Distances are summed directly here, so that equal keys are equally far to the last bit.

        Args:
            query: float [key_dim], before the transform.
            entries: int64 [n], at least one.
        """
        entries = torch.sort(entries).values
        differences = self._keys[entries] - self.transform(query[None])
        distances = differences.square().sum(-1)
        return int(entries[int(torch.argmin(distances))])

    def place(self, entry: int) -> Place:
        """Where the value of an entry stands."""
        row = int(np.searchsorted(self._first_entry, entry, side="right")) - 1
        return Place(self._numbers[row], entry - int(self._first_entry[row]) + self._first_token[row])

    def entry(self, place: Place) -> int | None:
        """The entry whose value stands at a place, if there is one."""
        row = self._rows.get(place.passage)
        if row is None:
            return None
        offset = place.position - self._first_token[row]
        return int(self._first_entry[row]) + offset if offset >= 0 else None

    def ends_sentence(self, place: Place) -> bool:
        """Whether a sentence ends with the token at a place."""
        return self._sentence_ends is not None and bool(self._sentence_ends[self._rows[place.passage]][place.position])

    def rest_of_sentence(self, place: Place) -> int:
        """Tokens from a place to the end of its sentence, or of its passage."""
        row = self._rows[place.passage]
        rest = len(self.token_ids[place.passage]) - place.position
        if self._sentence_ends is None:
            return rest
        ends = self._sentence_ends[row][place.position :]
        first = int(ends.argmax()) if len(ends) else 0
        return first + 1 if len(ends) and ends[first] else rest

    def is_masked(self, place: Place) -> bool:
        """Whether the entry whose value stands at a place is masked."""
        entry = self.entry(place)
        return entry is not None and entry in self._masked_entries

    def is_untouched(self, sentence: Sentence) -> bool:
        """Whether no entry with a value in a sentence is masked."""
        places = (Place(sentence.passage, position) for position in range(sentence.start, sentence.end))
        return not any(map(self.is_masked, places))

    def mask(self, places: Sequence[Place]) -> None:
        """Never find the entries whose values stand at these places again."""
        entries = [e for e in map(self.entry, places) if e is not None]
        if entries:
            self._masked[entries] = True
            self._masked_entries.update(entries)
            self.unmasked = len(self) - len(self._masked_entries)
            self._active = None
            self.version += 1

    def _unmasked_entries(self) -> torch.Tensor:
        if self._active is None:
            self._active = torch.nonzero(~self._masked)[:, 0]
        return self._active
