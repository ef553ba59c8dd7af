"""The figures of an evaluation, with intervals, as JSON, Markdown and pictures."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nest_engine.evaluation.intervals import Interval, difference, interval
from nest_engine.evaluation.metrics import Ratio
from nest_engine.evaluation.reports import find_figure_class, write_texts
from nest_engine.evaluation.runner import Measured

_PERPLEXITY = "perplexity"

_PERCENT = {
    "recall", "recall@20", "em", "f1", "rouge1", "rouge2", "rougeL", "attribution", "citation_precision",
    "first_citation", "citation_recall", "retrieval_top1", "retrieval_all", "cited_answers", "ended", "mid_sentence",
    "loops", "accuracy",
}  # fmt: skip
_TITLES = {
    "recall": "answer recall", "recall@20": "recall in 20 tokens", "em": "exact match", "f1": "F1",
    "rouge1": "ROUGE-1", "rouge2": "ROUGE-2", "rougeL": "ROUGE-L", "delta_bleu": "ΔBLEU",
    "delta_rouge1": "ΔROUGE-1", "delta_rouge2": "ΔROUGE-2", "delta_rougeL": "ΔROUGE-L",
    "attribution": "attribution ratio", "mean_run": "mean run in one document (tokens)",
    "citation_precision": "citation precision", "first_citation": "first citation right",
    "citation_recall": "citation recall", "retrieval_top1": "retrieval: best passage right",
    "retrieval_all": "retrieval: right passage found", "cited_answers": "answers with citations",
    "ended": "ended by themselves", "mid_sentence": "stop mid-sentence", "loops": "loop",
    "tokens": "tokens an answer", "accuracy": "accuracy",
}  # fmt: skip
_PLOTTED = ("recall", "recall@20", "f1", "tokens/s", "accuracy")


def _transform(metric: str) -> Any:
    """A perplexity is the exponential of a mean loss."""
    return np.exp if metric.startswith(_PERPLEXITY) else None


@dataclass(frozen=True)
class Results:
    """Figures by system and metric.

    Attributes:
        protocol: What was measured and how: model, task, passages, source, limits.
        settings: The settings of each system.
        swept: The setting and the value of each system that is a point of a sweep.
        figures: By system and metric, over all that the system answered.
        base: The system that the others are compared with.
        differences: By system and metric, the system minus the base, on the questions that both answered.
        failed: Messages of questions that could not be answered, by system and question.
        notes: Further figures by name.
    """

    protocol: dict[str, Any]
    settings: dict[str, dict[str, Any]]
    swept: dict[str, tuple[str, Any]]
    figures: dict[str, dict[str, Interval]]
    base: str
    differences: dict[str, dict[str, Interval]]
    failed: dict[str, dict[str, str]]
    notes: dict[str, float]

    def to_json(self) -> str:
        """Everything as JSON; what is not a number becomes null."""
        return json.dumps(_plain(asdict(self)), indent=2, ensure_ascii=False)

    def to_markdown(self) -> str:
        """A table of the figures, one of the differences, and the protocol."""
        parts = [_table(self.figures, signed=False)]
        if self.differences:
            parts += [
                f"Difference to {self.base} on the same questions; in bold where the interval excludes 0:",
                _table(self.differences, signed=True),
            ]
        failed = sum(len(questions) for questions in self.failed.values())
        parts += [f"{failed} answers failed: see results.json."] if failed else []
        parts += [f"{name}: {value:.3f}" for name, value in self.notes.items()]
        parts.append("In brackets: 95 % bootstrap intervals. " + _facts(self.protocol))
        return "\n\n".join(parts)


def summarize(measured: Measured, protocol: dict[str, Any], base: str | None = None) -> Results:
    """Work out the figures of a run.

    Args:
        measured: What was measured.
        protocol: What to say about how.
        base: The system to compare with; by default `ra`, else the first one.
    """
    names = [system.name for system in measured.systems if system.name in measured.ratios]
    base = base or next((name for name in ("ra", "lm") if name in names), names[0] if names else "")
    figures = {name: dict(_figures(measured, name)) for name in names}
    differences = {name: dict(_differences(measured, name, base)) for name in names if name != base}
    return Results(
        protocol=protocol,
        settings={system.name: asdict(system.config) for system in measured.systems if system.name in names},
        swept={system.name: system.swept for system in measured.systems if system.swept is not None},
        figures=figures,
        base=base,
        differences={name: values for name, values in differences.items() if values},
        failed=measured.failed,
        notes=measured.notes,
    )


def _metrics(measured: Measured, name: str) -> list[str]:
    return list(dict.fromkeys(metric for ratios in measured.ratios[name].values() for metric in ratios))


def _figures(measured: Measured, name: str) -> Iterator[tuple[str, Interval]]:
    for metric in _metrics(measured, name):
        pairs = [ratios[metric] for ratios in measured.ratios[name].values() if metric in ratios]
        yield metric, interval(*_columns(pairs), transform=_transform(metric))


def _differences(measured: Measured, name: str, base: str) -> Iterator[tuple[str, Interval]]:
    ours, theirs = measured.ratios[name], measured.ratios[base]
    for metric in _metrics(measured, name):
        # The order in which questions were asked may differ: pairs are made by id.
        both = [q for q in ours if metric in ours[q] and metric in theirs.get(q, {})]
        if both:
            left, right = ([side[q][metric] for q in both] for side in (ours, theirs))
            yield metric, difference(_columns(left), _columns(right), transform=_transform(metric))


def _columns(pairs: Sequence[Ratio]) -> tuple[list[float], list[float]]:
    """Amounts, and counts."""
    return [amount for amount, _ in pairs], [count for _, count in pairs]


def _table(figures: dict[str, dict[str, Interval]], *, signed: bool) -> str:
    metrics = dict.fromkeys(metric for values in figures.values() for metric in values)
    rows = [["", *figures], ["---"] * (len(figures) + 1)]
    for metric in metrics:
        cells = [_cell(metric, values.get(metric), signed=signed) for values in figures.values()]
        rows.append([_TITLES.get(metric, metric) + (" (%)" if metric in _PERCENT else ""), *cells])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _cell(metric: str, figure: Interval | None, *, signed: bool) -> str:
    if figure is None or math.isnan(figure.value):
        return ""
    scale = 100 if metric in _PERCENT else 1
    value, low, high = (_number(scale * x, signed) for x in (figure.value, figure.low, figure.high))
    text = f"{value} [{low}, {high}]"
    return f"**{text}**" if signed and figure.excludes_zero else text


def _number(value: float, signed: bool) -> str:
    return f"{value:{'+' if signed else ''}.{0 if abs(value) >= 1000 else 1 if abs(value) >= 10 else 2}f}"


def _facts(protocol: dict[str, Any]) -> str:
    return ", ".join(f"{key.replace('_', ' ')}: {value}" for key, value in protocol.items()) + "."


def _plain(value: Any) -> Any:
    """Values that JSON knows."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def write_results(results: Results, folder: Path) -> Iterator[Path]:
    """Write the results as JSON and Markdown, and as pictures where matplotlib is installed.

    Args:
        results: What to write.
        folder: Where to; made if needed.

    Yields:
        The files written.
    """
    yield from write_texts(folder, {"results.json": results.to_json(), "results.md": results.to_markdown()})
    figure_class = find_figure_class()
    if figure_class is not None:
        yield from _draw(results, folder, figure_class)


def _draw(results: Results, folder: Path, figure_class: Any) -> Iterator[Path]:
    known = dict.fromkeys(metric for values in results.figures.values() for metric in values)
    metrics = [metric for metric in known if metric in _PLOTTED or metric.startswith(_PERPLEXITY)]
    columns = [name for name in results.figures if name not in results.swept]
    if metrics and columns:
        figure = figure_class(figsize=(4 * len(metrics), 1 + 0.4 * len(columns)), layout="constrained")
        for axes, metric in zip(figure.subplots(1, len(metrics), squeeze=False)[0], metrics, strict=True):
            _draw_bars(axes, metric, {name: results.figures[name].get(metric) for name in columns})
        figure.savefig(folder / "results.png", dpi=150)
        yield folder / "results.png"
    for setting in dict.fromkeys(name for name, _ in results.swept.values()):
        figure = figure_class(figsize=(4 * len(metrics), 3.2), layout="constrained")
        for axes, metric in zip(figure.subplots(1, len(metrics), squeeze=False)[0], metrics, strict=True):
            _draw_sweep(axes, metric, setting, results)
        figure.savefig(folder / f"sweep-{setting}.png", dpi=150)
        yield folder / f"sweep-{setting}.png"


def _draw_bars(axes: Any, metric: str, figures: dict[str, Interval | None]) -> None:
    known = {name: f for name, f in figures.items() if f is not None and math.isfinite(f.value)}
    values = [f.value for f in known.values()]
    axes.barh(list(known), values, xerr=_errors(list(known.values())), color="tab:blue", alpha=0.8)
    axes.set_title(_TITLES.get(metric, metric))
    axes.invert_yaxis()


def _draw_sweep(axes: Any, metric: str, setting: str, results: Results) -> None:
    points = [
        (str(value), results.figures[name].get(metric)) for name, (s, value) in results.swept.items() if s == setting
    ]
    known = [(value, figure) for value, figure in points if figure is not None and math.isfinite(figure.value)]
    figures = [figure for _, figure in known]
    axes.errorbar([v for v, _ in known], [f.value for f in figures], yerr=_errors(figures), marker="o", capsize=3)
    axes.set_title(_TITLES.get(metric, metric))
    axes.set_xlabel(setting)


def _errors(figures: Sequence[Interval]) -> list[list[float]]:
    """Distances from the figure to the ends of its interval; a resample may lie on one side alone."""
    return [[max(f.value - f.low, 0) for f in figures], [max(f.high - f.value, 0) for f in figures]]
