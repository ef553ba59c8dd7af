"""Perplexity and multiple choice: what systems make of the parts that are gathered by teacher forcing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from nest_engine.engine import NestEngine
from nest_engine.errors import NestError
from nest_engine.evaluation.perplexity import Scorer, Target, TokenParts, best_weight
from nest_engine.evaluation.runner import Measured, Report
from nest_engine.evaluation.systems import System
from nest_engine.evaluation.targets import choice_targets
from nest_engine.evaluation.tasks import Choice

TUNED = "knn-lm, tuned weight"
"""kNN-LM with the fixed weight that suits the very targets it is reported on best: the strongest it can be."""


def predict(
    scorer: Scorer,
    systems: Sequence[System],
    targets: Sequence[Target],
    variant: str,
    measured: Measured,
    report: Report | None = None,
) -> None:
    """Measure the perplexity of targets under every system with a model.

    The metric is `perplexity: VARIANT`: the exponential of the mean loss of all counted tokens.
    Where `knn-lm` is among the systems, `TUNED` joins them.

    Args:
        scorer: Gathers.
        systems: The systems.
        targets: What to predict.
        variant: What the targets are, and what may be retrieved for them.
        measured: Takes the results.
        report: Called after each target of each system.
    """
    metric = f"perplexity: {variant}"
    for system in systems:
        if system.extractive:
            continue
        parts: dict[str, TokenParts] = {}
        for target in targets:
            try:
                parts[target.id] = scorer.parts(system.config, target, variant)
            except NestError as error:
                measured.fail(system, f"{variant}, {target.id}", error)
            if report is not None:
                report(1)
        _add_losses(measured, system, metric, parts)
        if system.name == "knn-lm" and parts:
            weight = best_weight(TokenParts.join(list(parts.values())))
            tuned = replace(system, name=TUNED, config=system.config.replace(knn_weight=weight))
            measured.note(tuned, f"{metric}, tuned knn_weight", weight)
            _add_losses(measured, tuned, metric, parts)


def _add_losses(measured: Measured, system: System, metric: str, parts: dict[str, TokenParts]) -> None:
    for target_id, tokens in parts.items():
        losses = tokens.losses(system.config)
        measured.add(system, target_id, {metric: (float(losses.sum()), float(len(losses)))})


def choose(
    scorer: Scorer,
    engine: NestEngine,
    systems: Sequence[System],
    choices: Sequence[Choice],
    measured: Measured,
    report: Report | None = None,
) -> None:
    """Answer multiple-choice questions by the choice of the lowest perplexity.

    Args:
        scorer: Gathers.
        engine: Words the prompts.
        systems: The systems.
        choices: The questions.
        measured: Takes `accuracy`.
        report: Called after each question of each system.
    """
    for system in systems:
        if system.extractive:
            continue
        for choice in choices:
            try:
                parts = [scorer.parts(system.config, t, "choices") for t in choice_targets(engine, choice)]
                losses = [float(p.losses(system.config).mean()) for p in parts]
                measured.add(system, choice.id, {"accuracy": (float(np.argmin(losses) == choice.answer), 1)})
            except NestError as error:
                measured.fail(system, choice.id, error)
            if report is not None:
                report(1)
