"""How well a text is predicted: teacher forcing under the LM, kNN-LM and the method's mixture (Eq. 2 to 4).

For each token of a target three numbers are gathered in one forward pass: p_LM, p_kNN and the
ratio of Eq. 4. All modes and all of alpha, tau and the fixed weight follow from them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray

from nest_engine.config import NestConfig
from nest_engine.datastore.token_index import TokenIndex
from nest_engine.decoding.mixture import mix, neighbor_weights, retrieval_confidence, sharpness, weight_at
from nest_engine.engine import NestEngine, search
from nest_engine.errors import ConfigError, ContextOverflowError
from nest_engine.evaluation.answers import AnswerFile, Key
from nest_engine.lm.protocol import LanguageModel
from nest_engine.passages import Passage
from nest_engine.retrieval.source import PassageSource

Floats = NDArray[np.float64]

_GATHERED = (
    "top_passages", "prompt_passages", "key_layer", "key_transform", "key_format", "neighbors", "mu",
)  # fmt: skip
"""Settings that what is gathered depends on; all others only say how it is mixed."""


@dataclass(frozen=True)
class TokenParts:
    """What the mixture is made of, at each token of a target.

    Attributes:
        p_lm: float64 [n], the LM's probability of the token.
        p_knn: float64 [n], the datastore's (Eq. 2).
        ratio: float64 [n], the ratio of Eq. 4; infinite where there is no entry: lambda is 1 there.
    """

    p_lm: Floats
    p_knn: Floats
    ratio: Floats

    @classmethod
    def from_row(cls, row: dict[str, Any]) -> Self:
        """Make parts of what `row` returned."""
        ratio = [np.inf if value is None else value for value in row["ratio"]]
        return cls(np.array(row["p_lm"]), np.array(row["p_knn"]), np.array(ratio, dtype=np.float64))

    def row(self) -> dict[str, list[float | None]]:
        """The parts as plain values, to nine digits."""
        numbers = {"p_lm": self.p_lm, "p_knn": self.p_knn, "ratio": self.ratio}
        return {
            name: [float(f"{value:.9g}") if np.isfinite(value) else None for value in values]
            for name, values in numbers.items()
        }

    @classmethod
    def join(cls, parts: Sequence[TokenParts]) -> TokenParts:
        """The parts of several targets, one behind the other."""
        return cls(*(np.concatenate([getattr(p, name) for p in parts]) for name in ("p_lm", "p_knn", "ratio")))

    def keep(self, mask: NDArray[np.bool_]) -> TokenParts:
        """The parts at some tokens, bool [n]."""
        return TokenParts(self.p_lm[mask], self.p_knn[mask], self.ratio[mask])

    def losses(self, config: NestConfig) -> Floats:
        """Minus the logarithm of p_M at each token, float64 [n], in nats.

        Args:
            config: `mode`, `alpha`, `tau`, `knn_weight`.
        """
        weights = self.weights(config)
        return -np.log(weights * self.p_lm + (1 - weights) * self.p_knn)

    def weights(self, config: NestConfig) -> Floats:
        """Lambda at each token, float64 [n]."""
        if not config.uses_keys:
            return np.ones_like(self.ratio)
        weights = weight_at(torch.from_numpy(self.ratio), config).numpy()
        return np.where(np.isinf(self.ratio), 1.0, weights)


@torch.inference_mode()
def gather(
    lm: LanguageModel, prompt: Sequence[int], target: Sequence[int], index: TokenIndex | None, config: NestConfig
) -> TokenParts:
    """Read a target behind a prompt in one forward pass, and search the datastore before each of its tokens.

    Nothing is masked: for perplexity the method ends with the mixture.

    Args:
        lm: The model.
        prompt: Token ids, at least one.
        target: Token ids, at least one.
        index: The datastore; None for the LM alone.
        config: `neighbors` and `mu` matter.

    Raises:
        ContextOverflowError: If prompt and target do not fit the model's window.
    """
    if len(prompt) + len(target) > lm.context_window:
        raise ContextOverflowError(
            f"prompt and target have {len(prompt) + len(target)} tokens, the model's window is {lm.context_window}: "
            "lower prompt_passages"
        )
    reading = lm.open().read([*prompt, *target[:-1]])
    mixture = mix(reading.logits[-len(target) :], reading.queries[-len(target) :], index, config)
    wanted = torch.tensor(list(target), device=mixture.logits.device)
    logits = mixture.logits.gather(1, wanted[:, None])[:, 0]
    p_lm = torch.exp((logits - mixture.normalizers).double())
    distances = mixture.neighbors.distances
    if index is None or not distances.shape[1]:
        nothing = np.zeros(len(target))
        return TokenParts(_numbers(p_lm), nothing, np.full(len(target), np.inf))
    mu = sharpness(config, mixture.queries.shape[1])
    is_right = index.values[mixture.neighbors.entries] == wanted[:, None]
    p_knn = (neighbor_weights(distances, mu) * is_right).sum(-1)
    return TokenParts(_numbers(p_lm), _numbers(p_knn), _numbers(retrieval_confidence(distances)))


def _numbers(values: torch.Tensor) -> Floats:
    numbers: Floats = values.double().cpu().numpy()
    return numbers


def best_weight(parts: TokenParts) -> float:
    """The fixed weight of the LM at which kNN-LM predicts these tokens best (Eq. 3).

    Args:
        parts: At least one token.
    """
    low, high = 0.0, 1.0
    # The loss is convex in the weight: halve the bracket around the lowest of the points.
    for _ in range(12):
        weights = np.linspace(low, high, 17)
        mixed = weights[:, None] * parts.p_lm + (1 - weights[:, None]) * parts.p_knn
        with np.errstate(divide="ignore"):
            best = int(np.argmin(-np.log(mixed).sum(-1)))
        low, high = weights[max(best - 1, 0)], weights[min(best + 1, 16)]
    return float((low + high) / 2)


@dataclass(frozen=True)
class Target:
    """A text to predict.

    Attributes:
        id: Id, unique among the targets of a metric.
        query: What passages are searched for.
        prompt: Token ids before the target, with some passages in them.
        token_ids: The target.
        counted: Which of its tokens count.
        allows: Whether a passage may be retrieved.
        spare: How many passages may at most be refused: as many more are searched.
    """

    id: str
    query: str
    prompt: Callable[[Sequence[Passage]], list[int]]
    token_ids: tuple[int, ...]
    counted: tuple[bool, ...]
    allows: Callable[[Passage], bool] = lambda passage: True
    spare: int = 0


class Scorer:
    """Gathers the parts of targets with one engine over one collection, each only once."""

    def __init__(self, engine: NestEngine, source: PassageSource | None, collection: str, answers: AnswerFile) -> None:
        """Prepare.

        Args:
            engine: Its model and key store are used.
            source: Where passages come from; None for the LM alone.
            collection: Says what the source searches and how.
            answers: Where parts are kept, and found again.
        """
        self._engine = engine
        self._source = source
        self._collection = collection
        self._model = engine.model.lm.fingerprint
        self._answers = answers

    def parts(self, config: NestConfig, target: Target, variant: str) -> TokenParts:
        """The parts of a target's counted tokens.

        Args:
            config: Settings.
            target: What to predict.
            variant: Says what may be retrieved: part of what results are kept by.

        Raises:
            ConfigError: If the settings search all of a collection at every step.
        """
        if config.uses_keys and config.datastore == "global":
            raise ConfigError("perplexity needs datastore='passages': each target has its own passages")
        key = Key(f"tokens: {variant}", self._fingerprint(config, target, variant), target.id)
        known = self._answers.results.get(key)
        if known is None:
            known = dict(self._gather(config, target).row())
            self._answers.add(key, known)
        return TokenParts.from_row(known).keep(np.array(target.counted))

    def entries(self, config: NestConfig, target: Target) -> int:
        """Size of the datastore that a target is predicted with, in entries."""
        index = self._engine.open_index(self._search(config, target), config)
        return 0 if index is None else len(index)

    def _search(self, config: NestConfig, target: Target) -> list[Passage]:
        if self._source is None or not (config.uses_keys or config.reads_passages):
            return []
        count = config.top_passages if config.uses_keys else config.prompt_passages
        searched = search(self._source, target.query, count + target.spare)
        return [s.passage for s in searched if target.allows(s.passage)][:count]

    def _gather(self, config: NestConfig, target: Target) -> TokenParts:
        found = self._search(config, target)
        background = found[: config.prompt_passages] if config.reads_passages else []
        index = self._engine.open_index(found, config) if config.uses_keys else None
        return gather(self._engine.model.lm, target.prompt(background), target.token_ids, index, config)

    def _fingerprint(self, config: NestConfig, target: Target, variant: str) -> str:
        """Digest of all that the parts depend on: 16 hex digits."""
        uses = (config.uses_keys, config.reads_passages)
        if any(uses):
            settings = {name: getattr(config, name) for name in _GATHERED}
            surroundings = [settings, self._collection, variant, target.query]
        else:
            surroundings = []  # the LM alone knows nothing of passages
        parts = [uses, self._model, target.prompt([]), target.token_ids, *surroundings]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]
