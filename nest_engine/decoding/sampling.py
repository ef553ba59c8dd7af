"""Warp a distribution and draw from it."""

from __future__ import annotations

import torch

from nest_engine.config import NestConfig


def warp(probabilities: torch.Tensor, config: NestConfig) -> torch.Tensor:
    """Apply temperature, then top-k, then top-p.

    Args:
        probabilities: float [vocabulary]; need not sum to 1.
        config: `temperature` above 0, `top_k`, `top_p`.

    Returns:
        float64 [vocabulary], summing to 1.
    """
    p = probabilities.double()
    p = torch.softmax(p.log() / config.temperature, -1)
    if config.top_k is not None and config.top_k < len(p):
        p = torch.where(p >= torch.topk(p, config.top_k).values[-1], p, 0)
    if config.top_p < 1:
        ordered, order = torch.sort(p / p.sum(), descending=True, stable=True)
        # A token stays while those before it do not yet hold top_p.
        dropped = ordered.cumsum(-1) - ordered >= config.top_p
        p = p.index_fill(0, order[dropped], 0)
    return p / p.sum()


def draw(probabilities: torch.Tensor, u: float) -> int:
    """The token at which the cumulated probability passes `u`.

    Args:
        probabilities: float64 [vocabulary], summing to 1.
        u: A number in [0, 1).
    """
    cumulated = probabilities.cumsum(-1)
    token = int(torch.searchsorted(cumulated, u * float(cumulated[-1]), right=True))
    return min(token, int(torch.nonzero(probabilities)[-1]))
