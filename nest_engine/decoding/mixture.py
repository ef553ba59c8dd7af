"""The mixture of the LM with the token datastore (Eq. 2 to 4), at several positions at once."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

import torch

from nest_engine.config import NestConfig
from nest_engine.datastore.token_index import Neighbors, TokenIndex
from nest_engine.errors import NonFiniteLogitsError


def retrieval_confidence(distances: torch.Tensor) -> torch.Tensor:
    """The ratio of Eq. 4: smallest over largest distance among the neighbors.

    Args:
        distances: float [n, r], r at least 1.

    Returns:
        float [n]; 0 where the largest distance is 0.
    """
    largest = distances.amax(-1)
    return torch.where(largest > 0, distances.amin(-1) / largest, torch.zeros_like(largest))


def lm_weight(distances: torch.Tensor, config: NestConfig) -> torch.Tensor:
    """Lambda: the weight of the LM in the mixture (Eq. 4), or the fixed one of knn-lm (Eq. 3).

    Args:
        distances: float [n, r] of the neighbors. With r = 0 the LM has all the weight.
        config: `mode`, `alpha`, `tau`, `knn_weight`.

    Returns:
        float [n], from 0 to 1.
    """
    if distances.shape[1] == 0:
        return torch.ones(len(distances), device=distances.device, dtype=distances.dtype)
    return weight_at(retrieval_confidence(distances), config)


def weight_at(ratio: torch.Tensor, config: NestConfig) -> torch.Tensor:
    """Lambda at a ratio of Eq. 4, whatever it was computed from: see `lm_weight`.

    Args:
        ratio: float [n].
        config: `mode`, `alpha`, `tau`, `knn_weight`.

    Returns:
        float [n], from 0 to 1.
    """
    if config.mode == "knn-lm":
        return torch.full_like(ratio, config.knn_weight)
    return torch.sigmoid((ratio - config.alpha) / config.tau)


def sharpness(config: NestConfig, key_dim: int) -> float:
    """The mu of Eq. 2: the configured one, or 1 / sqrt(key_dim)."""
    return config.mu if config.mu is not None else 1 / math.sqrt(key_dim)


def neighbor_weights(distances: torch.Tensor, mu: float) -> torch.Tensor:
    """How much each neighbor adds to p_kNN (Eq. 2): a softmax of `mu` times the similarity.

    Args:
        distances: float [n, r].
        mu: Sharpness.

    Returns:
        float [n, r], each row summing to 1.
    """
    return torch.softmax(-mu * distances, -1)


@dataclass(frozen=True)
class Mixture:
    """p_M at n consecutive positions.

    It is kept in parts: a token that no entry has as value has p_M = lambda p_LM, so a full
    distribution is only written out for a position where one is drawn from.

    Attributes:
        logits: float [n, vocabulary], after the logits processors; -inf is banned.
        normalizers: float [n], log-sum-exp of the logits.
        weights: float [n], lambda.
        vocabulary: int64 [v], the tokens that entries have as values, rising.
        retrieved: float [n, v], p_kNN of these tokens.
        neighbors: The entries found at each position.
        queries: float [n, key_dim].
        index: Where they were found.
        lm_tokens: The LM's likeliest token at each position.
        best_tokens: The mixture's likeliest token at each position.
        best_probabilities: Its p_M.
    """

    logits: torch.Tensor
    normalizers: torch.Tensor
    weights: torch.Tensor
    vocabulary: torch.Tensor
    retrieved: torch.Tensor
    neighbors: Neighbors
    queries: torch.Tensor
    index: TokenIndex | None
    lm_tokens: list[int]
    best_tokens: list[int]
    best_probabilities: list[float]

    def probability(self, token: int, row: int) -> float:
        """p_M of one token at one position."""
        logit = float(self.logits[row, token])
        if logit == -math.inf:
            return 0.0
        weight = float(self.weights[row])
        p = weight * math.exp(logit - float(self.normalizers[row]))
        slot = int(torch.searchsorted(self.vocabulary, token))
        if slot < len(self.vocabulary) and int(self.vocabulary[slot]) == token:
            p += (1 - weight) * float(self.retrieved[row, slot])
        return p

    def lm_probability(self, tokens: Collection[int], row: int) -> float:
        """p_LM of any of some tokens at one position."""
        logits = self.logits[row, list(tokens)]
        return float(torch.exp(logits - self.normalizers[row]).sum())

    def distribution(self, row: int) -> torch.Tensor:
        """p_M of every token at one position: float [vocabulary]."""
        logits, weight = self.logits[row], self.weights[row]
        p = weight * torch.exp(logits - self.normalizers[row])
        if len(self.vocabulary):
            p = p.index_add(0, self.vocabulary, (1 - weight) * self.retrieved[row])
        return torch.where(logits > -math.inf, p, 0)

    def neighbors_with(self, token: int, row: int) -> torch.Tensor:
        """The neighbors at a position that have a token as value: int64 [k] entry numbers."""
        entries = self.neighbors.entries[row]
        if self.index is None or not len(entries):
            return entries
        return entries[self.index.values[entries] == token]

    def nearest_with(self, token: int, row: int) -> int | None:
        """Of the neighbors at a position that have a token as value, the nearest one, if there is one."""
        entries = self.neighbors_with(token, row)
        if self.index is None or not len(entries):
            return None
        return self.index.nearest(self.queries[row], entries)


@torch.inference_mode()
def mix(logits: torch.Tensor, queries: torch.Tensor, index: TokenIndex | None, config: NestConfig) -> Mixture:
    """Search the datastore at each position and mix (Eq. 2 to 4).

    Args:
        logits: float [n, vocabulary], after the logits processors.
        queries: float [n, key_dim].
        index: The datastore, or None where the LM stands alone.
        config: `neighbors`, `mu`, `mode`, `alpha`, `tau`, `knn_weight`.

    Raises:
        NonFiniteLogitsError: If a logit is NaN or infinite, or every token is banned.
    """
    normalizers = torch.logsumexp(logits, -1)
    if not torch.isfinite(normalizers).all():
        raise NonFiniteLogitsError(
            "the logits are NaN or infinite, or every token is banned: "
            "try dtype='float32', or check the logits processors"
        )
    neighbors, vocabulary, retrieved = _retrieve(queries, index, config)
    weights = lm_weight(neighbors.distances, config)
    lm_logits, lm_tokens = logits.max(-1)
    best, best_tokens = weights * torch.exp(lm_logits - normalizers), lm_tokens
    if len(vocabulary):
        # The likeliest token is the LM's own or one that an entry has as value.
        known = logits[:, vocabulary]
        p = weights[:, None] * torch.exp(known - normalizers[:, None]) + (1 - weights[:, None]) * retrieved
        top, slot = torch.where(known > -math.inf, p, 0).max(-1)
        best_tokens = torch.where(top >= best, vocabulary[slot], lm_tokens)
        best = torch.maximum(top, best)
    return Mixture(
        logits, normalizers, weights, vocabulary, retrieved, neighbors, queries, index,
        lm_tokens.tolist(), best_tokens.tolist(), best.tolist(),
    )  # fmt: skip


def _retrieve(
    queries: torch.Tensor, index: TokenIndex | None, config: NestConfig
) -> tuple[Neighbors, torch.Tensor, torch.Tensor]:
    """The neighbors of each query, the tokens they can have, and p_kNN of these."""
    if index is None or index.unmasked == 0:
        nothing = torch.zeros((len(queries), 0), device=queries.device, dtype=queries.dtype)
        none = nothing.long()
        return Neighbors(none, nothing), none[:0].reshape(-1), nothing
    neighbors = index.search(queries, config.neighbors)
    shares = neighbor_weights(neighbors.distances, sharpness(config, queries.shape[1]))
    retrieved = torch.zeros((len(queries), len(index.vocabulary)), device=queries.device, dtype=queries.dtype)
    retrieved.scatter_add_(1, index.slots[neighbors.entries], shares)
    return neighbors, index.vocabulary, retrieved
