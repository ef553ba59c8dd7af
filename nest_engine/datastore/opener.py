"""From passages to an index that can be searched: encode or look up, decode, transform, open."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from nest_engine.config import KeyFormat, NestConfig
from nest_engine.config import KeyTransform as KeyTransformName
from nest_engine.datastore.codec import KeyCodec
from nest_engine.datastore.encoded import EncodedPassage
from nest_engine.datastore.encoder import PassageEncoder
from nest_engine.datastore.relevance import rank_sentences
from nest_engine.datastore.sentences import sentence_ends
from nest_engine.datastore.statistics import load_codec, load_transform, sample_passages
from nest_engine.datastore.store import KeyStore, get_or_encode
from nest_engine.datastore.token_index import TokenIndex
from nest_engine.datastore.transform import KeyTransform
from nest_engine.errors import ConfigError
from nest_engine.lm.protocol import LanguageModel
from nest_engine.lm.tokenizer import Tokenizer
from nest_engine.metrics import StoreCounts
from nest_engine.passages import Passage
from nest_engine.retrieval.source import PassageSource

Report = Callable[[int], None]
"""Takes the number of passages done since the last call."""


class DatastoreOpener:
    """Opens token datastores with one model. What depends on the model alone is made once.

    Attributes:
        store: Where keys are kept.
    """

    def __init__(self, lm: LanguageModel, tokenizer: Tokenizer, store: KeyStore) -> None:
        """Encode with `lm`, keep keys in `store`."""
        self.store = store
        self._lm = lm
        self._tokenizer = tokenizer
        self._transforms: dict[str, KeyTransform] = {}
        self._codecs: dict[str, KeyCodec] = {}
        self._collections: weakref.WeakKeyDictionary[PassageSource, tuple[tuple[object, ...], TokenIndex]] = (
            weakref.WeakKeyDictionary()
        )

    def encoder(self, key_format: KeyFormat) -> PassageEncoder:
        """The encoder of a storage format."""
        return PassageEncoder(self._lm, self._tokenizer, self._codec(key_format))

    def encode(
        self,
        passages: Sequence[Passage],
        config: NestConfig,
        report: Report | None = None,
        counts: StoreCounts | None = None,
    ) -> list[EncodedPassage]:
        """Look up or compute the keys of passages, and keep them: see `get_or_encode`."""
        return get_or_encode(passages, self.encoder(config.key_format), self.store, report, counts)

    def tokenize(self, passages: Sequence[Passage], config: NestConfig) -> list[EncodedPassage]:
        """Passages as tokens alone: see `PassageEncoder.tokenize`."""
        return self.encoder(config.key_format).tokenize(passages)

    def index(
        self,
        passages: Sequence[Passage],
        encoded: Sequence[EncodedPassage],
        config: NestConfig,
        numbers: Sequence[int] | None = None,
        kind: type[TokenIndex] = TokenIndex,
    ) -> TokenIndex:
        """An index over encoded passages.

        Args:
            passages: The passages.
            encoded: Their tokens and keys.
            config: `key_format` and `key_transform` matter.
            numbers: The number of each passage in places, by default 0, 1, 2...
            kind: The class of the index.
        """
        return kind(
            encoded,
            self._transform(config.key_transform),
            device=self._lm.device,
            dtype=self._lm.dtype,
            codec=self._codec(config.key_format),
            sentence_ends=[sentence_ends(p.text, e.ends) for p, e in zip(passages, encoded, strict=True)],
            numbers=numbers,
        )

    def open_collection(
        self,
        source: PassageSource,
        config: NestConfig,
        report: Report | None = None,
        counts: StoreCounts | None = None,
    ) -> tuple[Sequence[Passage], list[EncodedPassage], TokenIndex]:
        """All passages of a source and an index over their keys, kept for the next call.

        Raises:
            ConfigError: If the source cannot list its passages.
        """
        from nest_engine.datastore.faiss_index import FaissTokenIndex  # FAISS takes a second to import

        passages = list_passages(source)
        key = (len(passages), config.key_format, config.key_transform)
        encoded = self.encode(passages, config, report, counts)
        known, index = self._collections.get(source, (None, None))
        if index is None or known != key:
            index = self.index(passages, encoded, config, kind=FaissTokenIndex)
            if isinstance(index, FaissTokenIndex):
                index.build()
            self._collections[source] = (key, index)
        return passages, encoded, index.fresh()

    def _transform(self, name: KeyTransformName) -> KeyTransform:
        """The key transform: its statistics depend on model and key layer only."""
        if name not in self._transforms:
            self._transforms[name] = load_transform(name, self._sample_keys)
        return self._transforms[name]

    def _codec(self, name: KeyFormat) -> KeyCodec:
        if name not in self._codecs:
            self._codecs[name] = load_codec(name, self._sample_keys)
        return self._codecs[name]

    def _sample_keys(self) -> torch.Tensor:
        """Keys of the text sample, float32 whatever the format of the user's keys."""
        config, codec = NestConfig(key_format="float32"), self._codec("float32")
        return torch.cat([codec.decode(encoded.keys) for encoded in self.encode(sample_passages(), config)])


class OpenPassages:
    """The passages of one generation, numbered as they come.

    Attributes:
        passages: All that were opened, in the order of their numbers.
        token_ends: int32 [m] of each: characters complete after each token.
        counts: How many of them the key store had.
    """

    def __init__(self, opener: DatastoreOpener, config: NestConfig) -> None:
        """Begin with no passage."""
        self._opener = opener
        self._config = config
        self.counts = StoreCounts()
        self.passages: list[Passage] = []
        self.token_ends: list[NDArray[np.int32]] = []
        self._numbers: dict[tuple[str, str, str], int] = {}

    def add(self, passages: Sequence[Passage], report: Report | None = None, query: str = "") -> TokenIndex | None:
        """Open an index over some passages; those seen before keep their numbers.

        Args:
            passages: The passages to search in from now on.
            report: Called while they are encoded.
            query: What the sentences are ranked for, where spans start at sentences.

        Returns:
            The index, or None in a mode that needs none.
        """
        if not self._config.uses_keys and not self._config.uses_spans:
            self.passages = list(passages)
            return None
        passages = list({_identity(p): p for p in passages}.values())  # a place names one entry
        if not passages:
            return None
        if self._config.uses_keys:
            encoded = self._opener.encode(passages, self._config, report, self.counts)
        else:
            encoded = self._opener.tokenize(passages, self._config)
        numbers = [self._number(p, e) for p, e in zip(passages, encoded, strict=True)]
        index = self._opener.index(passages, encoded, self._config, numbers)
        if self._config.starts_at_sentences:
            index.sentences = rank_sentences(passages, [e.ends for e in encoded], numbers, query)
        return index

    def add_collection(self, source: PassageSource, report: Report | None = None) -> TokenIndex:
        """Open the index over all passages of a source."""
        passages, encoded, index = self._opener.open_collection(source, self._config, report, self.counts)
        self.passages, self.token_ends = list(passages), [e.ends for e in encoded]
        return index

    def _number(self, passage: Passage, encoded: EncodedPassage) -> int:
        key = _identity(passage)
        if key not in self._numbers:
            self._numbers[key] = len(self.passages)
            self.passages.append(passage)
            self.token_ends.append(encoded.ends)
        return self._numbers[key]


def _identity(passage: Passage) -> tuple[str, str, str]:
    """What tells two passages of a generation apart: equal texts of two documents are two sources."""
    return passage.document_id, passage.id, passage.text


def list_passages(source: PassageSource) -> Sequence[Passage]:
    """All passages of a source.

    Raises:
        ConfigError: If the source cannot list them.
    """
    passages = getattr(source, "passages", None)
    if not isinstance(passages, Sequence):
        raise ConfigError(
            f"datastore='global' searches all passages, and {type(source).__name__} cannot list them: "
            "use FaissSource, Bm25Source, HybridSource or ListSource, or datastore='passages'"
        )
    return passages
