"""Settings that fit a model: alpha, tau and mu by its losses, then gamma and delta by its answers.

The first step is a matter of milliseconds once the parts of the mixture are gathered. What
predicts best need not answer best: the second step tries the first one's settings beside those
it started from, and may overrule it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from nest_engine.config import SETTINGS_VERSION, NestConfig
from nest_engine.errors import ConfigError
from nest_engine.evaluation.intervals import interval
from nest_engine.evaluation.perplexity import TokenParts, best_weight
from nest_engine.evaluation.runner import Measured
from nest_engine.evaluation.systems import System

GAMMAS = (5e-4, 5e-3, 5e-2, 5e-1)
SHARES = (0.25, 0.5, 0.75, 1.0)
"""Shares of tokens at which a span may start: delta is what lets so many of them."""

_ROUNDS = 4
_ALPHAS, _TAUS = 33, 17
_TAU_RANGE = (3e-3, 3.0)

# What an evaluation chooses for itself, and a settings file must not bring along.
_OWN = {"max_new_tokens", "draft_chunk", "seed", "stop", "temperature", "top_k", "top_p"}


@dataclass(frozen=True)
class Fit:
    """Settings of the mixture that predict some tokens best.

    Attributes:
        alpha: See `NestConfig`.
        tau: See `NestConfig`.
        mu: See `NestConfig`.
        tokens: How many tokens were predicted.
        loss: Their mean loss with these settings, in nats.
        start_loss: The same with the settings that were there before.
        lm_loss: The same by the LM alone.
        knn_loss: The same by kNN-LM with the fixed weight that suits these tokens best.
    """

    alpha: float
    tau: float
    mu: float | None
    tokens: int
    loss: float
    start_loss: float
    lm_loss: float
    knn_loss: float


def fit(parts: TokenParts, start: NestConfig) -> Fit:
    """Minimize the mixture's mean loss over alpha and tau (Eq. 4).

    Args:
        parts: Gathered by teacher forcing, with the start's `mu`.
        start: The settings to compare with.

    Raises:
        ConfigError: If there are no tokens with neighbors.
    """
    known = parts.keep(np.isfinite(parts.ratio))
    if not len(known.ratio):
        raise ConfigError("nothing to calibrate on: no passages were found for any of the texts")
    low, high = float(known.ratio.min()), float(known.ratio.max())
    margin = max(high - low, 1e-3)
    alphas, taus = (low - margin, high + margin), _TAU_RANGE
    for _ in range(_ROUNDS):
        alpha, tau, alphas, taus = _finer(known, alphas, taus)
    lm_loss = float(-np.log(parts.p_lm).mean())
    weight = best_weight(parts)
    losses = [parts.losses(c).mean() for c in (start.replace(mode="nest", alpha=alpha, tau=tau),
              start.replace(mode="nest"), start.replace(mode="knn-lm", knn_weight=weight))]  # fmt: skip
    return Fit(alpha, tau, start.mu, len(parts.ratio), float(losses[0]), float(losses[1]), lm_loss, float(losses[2]))


def _finer(
    parts: TokenParts, alphas: tuple[float, float], taus: tuple[float, float]
) -> tuple[float, float, tuple[float, float], tuple[float, float]]:
    """The best point of a grid, and the ranges of a finer grid around it."""
    grid = np.linspace(*alphas, _ALPHAS)
    softness = np.geomspace(*taus, _TAUS)
    losses = np.array([_mean_losses(parts, grid, float(tau)) for tau in softness])
    row, column = np.unravel_index(int(np.argmin(losses)), losses.shape)
    ranges = [
        (float(axis[max(at - 1, 0)]), float(axis[min(at + 1, len(axis) - 1)]))
        for axis, at in ((grid, int(column)), (softness, int(row)))
    ]
    return float(grid[column]), float(softness[row]), ranges[0], ranges[1]


def _mean_losses(parts: TokenParts, alphas: np.ndarray[Any, Any], tau: float) -> Any:
    """Mean loss at each alpha: float64 [len(alphas)]."""
    steepness = np.clip((parts.ratio - alphas[:, None]) / tau, -700, 700)
    weights = 1 / (1 + np.exp(-steepness))
    return -np.log(weights * parts.p_lm + (1 - weights) * parts.p_knn).mean(-1)


def starts(config: NestConfig, fitted: Fit, parts: TokenParts) -> list[System]:
    """The settings that the second step begins from: the fitted ones, and those that were there before.

    Delta is compared with lambda, and the fit moves all lambdas, perhaps above delta. So the fitted
    settings get the delta that lets spans start at the same share of tokens as before.

    Args:
        config: The settings from before.
        fitted: The fit.
        parts: What it was made from.
    """
    share = float(np.mean(parts.weights(config) <= config.delta))
    changed = config.replace(alpha=round(fitted.alpha, 4), tau=round(fitted.tau, 4), mu=fitted.mu)
    return [System("fitted", changed.replace(delta=delta_at(share, changed, parts))), System("start", config)]


def delta_at(share: float, config: NestConfig, parts: TokenParts) -> float:
    """The delta at which spans may start at a share of tokens: a quantile of lambda, to four digits.

    Args:
        share: From 0 to 1.
        config: `alpha` and `tau`.
        parts: The tokens.
    """
    quantile = float(np.quantile(parts.weights(config), share, method="inverted_cdf"))
    return min(1.0, math.ceil(quantile * 1e4) / 1e4)


def with_gammas(systems: Sequence[System], gammas: Sequence[float] = GAMMAS) -> list[System]:
    """Each system with each gamma."""
    return [System(f"{s.name} gamma={g}", s.config.replace(gamma=g)) for s in systems for g in gammas]


def with_deltas(system: System, deltas: Sequence[float]) -> list[System]:
    """A system with each delta other than its own."""
    others = [delta for delta in dict.fromkeys(deltas) if delta != system.config.delta]
    return [System(f"{system.name} delta={d}", system.config.replace(delta=d)) for d in others]


@dataclass(frozen=True)
class Objective:
    """What makes settings better than others.

    Attributes:
        metric: The metric to make large.
        min_speed: Tokens/s that are needed, as a multiple of the plain model's.
    """

    metric: str = "recall"
    min_speed: float = 1.0

    def table(self, measured: Measured) -> dict[str, dict[str, float]]:
        """Metric with interval, and tokens/s, of every system but the plain model."""
        return {s.name: self._row(measured, s.name) for s in measured.systems if s.name != "lm"}

    def _row(self, measured: Measured, name: str) -> dict[str, float]:
        rows = measured.ratios.get(name, {}).values()
        figure = interval(*zip(*(row[self.metric] for row in rows), strict=True))
        return {self.metric: figure.value, "low": figure.low, "high": figure.high, "tokens/s": speed(measured, name)}

    def best(self, systems: Sequence[System], measured: Measured) -> tuple[System, bool]:
        """The best of some systems, and whether it is fast enough; if none is, the fastest.

        Of equally good systems the first one wins.
        """
        answered = [system for system in systems if measured.ratios.get(system.name)]
        if not answered:
            raise ConfigError("none of the questions could be answered: see the warnings above")
        rates = {system.name: speed(measured, system.name) for system in answered}
        needed = self.min_speed * speed(measured, "lm")
        fast = [system for system in answered if rates[system.name] >= needed]
        if not fast:
            return max(answered, key=lambda system: rates[system.name]), False
        return max(fast, key=lambda system: self._row(measured, system.name)[self.metric]), True


def speed(measured: Measured, name: str) -> float:
    """Tokens/s of a system: tokens over seconds, summed over its answers."""
    ratios = [row["tokens/s"] for row in measured.ratios.get(name, {}).values()]
    seconds = sum(s for _, s in ratios)
    return sum(t for t, _ in ratios) / seconds if seconds else 0.0


def search_settings(
    config: NestConfig,
    fitted: Fit,
    parts: TokenParts,
    objective: Objective,
    run: Callable[[Sequence[System]], Measured],
    gammas: Sequence[float] = (),
    deltas: Sequence[float] = (),
) -> tuple[NestConfig, dict[str, Any]]:
    """Choose gamma, then delta, by answers, for the fitted settings and those from before.

    Args:
        config: The settings from before.
        fitted: What the first step found.
        parts: What it was found from.
        objective: What is better.
        run: Asks systems the questions and says what was measured of all of them so far.
        gammas: Values to try, by default `GAMMAS`.
        deltas: Values to try, by default those at `SHARES` of the tokens.

    Returns:
        The best settings, and the evidence for them.
    """
    first = with_gammas(starts(config, fitted, parts), gammas or GAMMAS)
    measured = run([System("lm", config.replace(mode="lm")), *first])
    best, _ = objective.best(first, measured)
    second = with_deltas(best, deltas or [delta_at(share, best.config, parts) for share in SHARES])
    if second:
        measured = run(second)
    best, is_fast = objective.best([*first, *second], measured)
    evidence = {
        "objective": asdict(objective),
        "lm tokens/s": speed(measured, "lm"),
        "tried": objective.table(measured),
        "chosen": best.name,
        "fast_enough": is_fast,
        "overruled": best.name.startswith("start"),
    }
    return best.config, evidence


def write_settings(path: Path, config: NestConfig, evidence: dict[str, Any]) -> None:
    """Write a settings file that `NestConfig.load` reads.

    Args:
        path: The file; its folder is made if needed.
        config: The settings; those that differ from the defaults are written, except for what is
            every caller's own, such as the length of answers.
        evidence: How they were found.
    """
    default = NestConfig()
    settings = {
        f.name: getattr(config, f.name)
        for f in fields(NestConfig)
        if f.name not in _OWN and getattr(config, f.name) != getattr(default, f.name)
    }
    document = {"nest_settings": SETTINGS_VERSION, "settings": settings, "evidence": evidence}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
