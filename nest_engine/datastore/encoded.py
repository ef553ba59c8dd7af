"""One encoded passage: what a key store keeps of it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nest_engine.datastore.codec import StoredKeys
from nest_engine.passages import Passage

FORMAT_VERSION = 2
"""Version of what is stored and of how it is computed; part of every address."""


@dataclass(frozen=True)
class EncodedPassage:
    """Tokens and raw keys of one passage.

    Entry e has the key `keys[e]` and the value `token_ids[first + e]`: the key is the hidden
    state that predicts that token (METHOD section 3).

    Attributes:
        token_ids: int32 [m], the tokens of the passage's text.
        ends: int32 [m], for each token the characters of the text that are complete after it.
        keys: The keys of m - first entries, before any transform, in their storage format.
        first: Index of the first token that has an entry: 1 where the first token's key would
            lie at the very first position of the sequence, else 0.
        model: Fingerprint of the model that computed the keys.
    """

    token_ids: NDArray[np.int32]
    ends: NDArray[np.int32]
    keys: StoredKeys
    first: int
    model: str = ""


def address(passage: Passage, model_fingerprint: str, key_format: str) -> str:
    """Where a passage's keys are kept: a digest of all that they depend on, 64 hex digits.

    Args:
        passage: Only its title and text matter.
        model_fingerprint: `LanguageModel.fingerprint`.
        key_format: `KeyCodec.name`.
    """
    digest = hashlib.sha256()
    for part in (str(FORMAT_VERSION), model_fingerprint, key_format, passage.title, passage.text):
        data = part.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()
