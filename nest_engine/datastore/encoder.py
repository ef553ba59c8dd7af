"""Passages to keys: read each passage on its own and keep the hidden state before every token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from nest_engine.datastore.codec import FloatCodec, KeyCodec, StoredKeys
from nest_engine.datastore.encoded import EncodedPassage, address
from nest_engine.errors import KeyFormatError
from nest_engine.lm.protocol import LanguageModel
from nest_engine.lm.tokenizer import TokenizedText, Tokenizer
from nest_engine.passages import Passage

_WINDOW = 2048
"""Tokens read at once: longer passages are read in windows, whatever the model's context would allow."""

_OVERLAP = 128
"""Tokens of the text that a further window reads again, so that its keys have a context."""


@dataclass(frozen=True)
class _Window:
    """A part of one passage, as it is read.

    Attributes:
        token_ids: What the model reads.
        skip: Positions at its start that give no key.
    """

    token_ids: list[int]
    skip: int


class PassageEncoder:
    """Encodes passages with one model, in one storage format."""

    def __init__(self, lm: LanguageModel, tokenizer: Tokenizer, codec: KeyCodec | None = None) -> None:
        """Encode with `lm`; keys pass through `codec` (float16 by default) before anything uses them."""
        self._lm = lm
        self._tokenizer = tokenizer
        self._codec = codec or FloatCodec("float16")

    def address(self, passage: Passage) -> str:
        """The key store address of a passage: see `encoded.address`."""
        return address(passage, self._fingerprint, self._codec.name)

    @cached_property
    def _fingerprint(self) -> str:
        return self._lm.fingerprint  # asked for once: a model looks through its adapters each time

    def encode(self, passages: Sequence[Passage]) -> list[EncodedPassage]:
        """Encode passages; what they hold does not depend on each other or on any prompt.

        A passage longer than the model's window is read in overlapping windows; it stays one
        passage, and citations refer to it as a whole.

        Raises:
            KeyFormatError: If a key is not finite in the number format.
        """
        texts = [self._tokenizer.encode(p.text) for p in passages]
        windows = [self._windows(p, t.ids) for p, t in zip(passages, texts, strict=True)]
        flat = [window for group in windows for window in group]
        states = iter(self._lm.encode([window.token_ids for window in flat]))
        encoded = []
        for passage, text, group in zip(passages, texts, windows, strict=True):
            # The last position of a window predicts nothing that is in it.
            keys = [next(states)[window.skip : -1] for window in group]
            stored = self._store(torch.cat(keys) if keys else torch.zeros((0, self._lm.key_dim)), passage)
            encoded.append(_assemble(text, stored, self._fingerprint))
        return encoded

    def tokenize(self, passages: Sequence[Passage]) -> list[EncodedPassage]:
        """Passages as tokens alone, without keys: enough to draft from and to cite."""
        nothing = StoredKeys(np.zeros((0, self._lm.key_dim), dtype=np.float16))
        return [_assemble(self._tokenizer.encode(p.text), nothing, "") for p in passages]

    def _windows(self, passage: Passage, ids: list[int]) -> list[_Window]:
        if not ids:
            return []
        context = self._tokenizer.prefix + self._tokenizer.encode(f"{passage.title}\n").ids
        room = min(self._lm.context_window, _WINDOW) - len(context)
        if room < 2:
            raise KeyFormatError(f"the title of passage {passage.id} alone fills the model's window: shorten it")
        overlap = min(_OVERLAP, room // 2)
        # The key at the very first position of a sequence is an attention sink: it is left out.
        windows = [_Window(context + ids[:room], max(len(context) - 1, 1))]
        for start in range(room, len(ids), room - overlap):
            token_ids = context + ids[start - overlap : start - overlap + room]
            windows.append(_Window(token_ids, len(context) + overlap - 1))
        return windows

    def _store(self, keys: torch.Tensor, passage: Passage) -> StoredKeys:
        stored = self._codec.encode(keys)
        if not stored.is_finite():
            raise KeyFormatError(
                f"a key of passage {passage.id} is not finite in {self._codec.name}; "
                "use NestConfig(key_format='float32') or another key_layer"
            )
        return stored


def _assemble(text: TokenizedText, keys: StoredKeys, model: str) -> EncodedPassage:
    ids, ends = np.array(text.ids, dtype=np.int32), np.array(text.ends, dtype=np.int32)
    return EncodedPassage(ids, ends, keys, len(ids) - len(keys), model)
