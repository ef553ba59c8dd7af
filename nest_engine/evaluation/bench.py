"""How fast the modes are, beside transformers on the same prompts, in one interleaved run."""

from __future__ import annotations

import json
import platform
import resource
import statistics
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from nest_engine.config import NestConfig
from nest_engine.datastore.store import MemoryKeyStore
from nest_engine.engine import NestEngine, search
from nest_engine.errors import ConfigError
from nest_engine.evaluation.baselines import LlamaCpp, generate_greedily
from nest_engine.evaluation.reports import engine_facts, find_figure_class, write_texts
from nest_engine.evaluation.systems import setting_name, setting_value
from nest_engine.generation import Generation
from nest_engine.passages import Passage
from nest_engine.retrieval.source import PassageSource

LOOKUP_TOKENS = 10
"""Draft length of transformers' prompt lookup: the value of its documentation."""

BASELINES = ("transformers", "transformers ra", "transformers ra + prompt lookup")
LLAMA_CPP = "llama.cpp"
MODES = ("lm", "ra", "knn-lm", "nest", "ra-nest", "lossless", "lossless ra")
STAGES = ("retrieve", "encode", "prefill", "lm", "mix", "other")


@dataclass(frozen=True)
class Sample:
    """One answer of one system.

    Attributes:
        tokens: Tokens of the answer.
        decode: Seconds after the first token.
        total: Seconds from the question to the end, retrieval and opening the datastore included.
        stages: Seconds by stage, for our own modes.
        lm_calls: Forward passes, that of the prompt included.
        drafted: Tokens read ahead.
        accepted: Those of them that came true.
        attributed: Copied tokens.
        runs: Lengths of the cited runs, in characters.
    """

    tokens: int
    decode: float
    total: float
    stages: dict[str, float] = field(default_factory=dict)
    lm_calls: int = 0
    drafted: int = 0
    accepted: int = 0
    attributed: int = 0
    runs: tuple[int, ...] = ()


@dataclass
class Report:
    """The samples of each system, and where they were taken.

    Attributes:
        machine: Facts about the machine and the run.
        samples: By system, one sample a question and repeat.
    """

    machine: dict[str, Any]
    samples: dict[str, list[Sample]]

    def rows(self) -> list[dict[str, Any]]:
        """One row of figures for each system; rates are sums over sums."""
        return [{"system": name, **_figures(samples)} for name, samples in self.samples.items() if samples]

    def to_json(self) -> str:
        """Machine and rows."""
        return json.dumps({"machine": self.machine, "rows": self.rows()}, indent=2)

    def to_markdown(self) -> str:
        """The rows as a table, the ratios taken against plain greedy transformers."""
        rows = self.rows()
        base = next((row for row in rows if row["system"] == BASELINES[0]), rows[0])
        lines = [
            "| system | tokens/s decoding | spread | over greedy | tokens/s end to end | over greedy "
            "| tokens a pass | accepted | copied | seconds an answer |",
            "|---|---|---|---|---|---|---|---|---|---|",
        ]
        for row in rows:
            low, high = row["decode_quartiles"]
            lines.append(
                f"| {row['system']} | {row['decode_rate']:.1f} | {low:.1f} to {high:.1f} "
                f"| {row['decode_rate'] / base['decode_rate']:.2f} | {row['total_rate']:.1f} "
                f"| {row['total_rate'] / base['total_rate']:.2f} | {row['tokens_per_call']:.2f} "
                f"| {row['acceptance']:.2f} | {row['attribution']:.2f} | {row['median_seconds']:.2f} |"
            )
        facts = ", ".join(f"{key} {value}" for key, value in self.machine.items())
        return "\n".join([*lines, "", facts])


def run_bench(
    engine: NestEngine,
    source: PassageSource,
    questions: Sequence[str],
    *,
    systems: Sequence[str] = (*BASELINES, *MODES, "nest cold"),
    gguf: Path | None = None,
    max_new_tokens: int = 64,
    repeats: int = 1,
    report: Callable[[int], None] | None = None,
) -> Report:
    """Ask every system every question, one system after the other within each question.

    Args:
        engine: The engine; its configuration is the preset that is measured.
        source: Where passages come from.
        questions: What to ask.
        systems: Names from `BASELINES`, `MODES`, or `LLAMA_CPP`. Behind a mode may stand ` cold`: it encodes
            afresh; and settings, as in `nest gamma=0.05 top_passages=20`.
        gguf: The model file that `LLAMA_CPP` runs.
        max_new_tokens: The limit of an answer, in tokens.
        repeats: How often each question is asked.
        report: Called with the number of answers since the last call.
    """
    samples: dict[str, list[Sample]] = {name: [] for name in systems}
    ask = {name: _system(name, engine, source, max_new_tokens) for name in systems if name != LLAMA_CPP}
    if LLAMA_CPP in systems:
        ask[LLAMA_CPP] = _llama_cpp(engine, gguf, max_new_tokens)
    warm_up = questions[0]
    for name in systems:
        ask[name](warm_up)
    for number in range(repeats * len(questions)):
        question = questions[number % len(questions)]
        # The order turns, so that no system always runs behind the same other one.
        turn = number % len(systems)
        for name in [*systems[turn:], *systems[:turn]]:
            samples[name].append(ask[name](question))
            if report is not None:
                report(1)
    return Report(_machine(engine, len(questions), repeats, max_new_tokens), samples)


def _system(name: str, engine: NestEngine, source: PassageSource, limit: int) -> Callable[[str], Sample]:
    """A function that answers a question with one system."""
    if name in BASELINES:
        return lambda question: _ask_baseline(name, engine, source, question, limit)
    mode, *words = name.split()
    settings: dict[str, Any] = {"mode": mode, "max_new_tokens": limit}
    if "ra" in words:
        settings["passages_in_prompt"] = True
    for word in words:
        setting, equals, value = word.partition("=")
        if equals:
            settings[setting_name(setting)] = setting_value(value)
    engine.config.replace(**settings)  # a wrong one is told now and not in the middle
    return lambda question: _ask(engine, source, question, settings, cold="cold" in words)


def _llama_cpp(engine: NestEngine, gguf: Path | None, limit: int) -> Callable[[str], Sample]:
    """A function that answers a question with llama.cpp, on the prompt of the plain model."""
    if gguf is None:
        raise ConfigError("llama.cpp runs a GGUF file: name it with --gguf FILE")
    llama = LlamaCpp(gguf, torch.get_num_threads(), engine.model.lm.end_ids)

    def ask(question: str) -> Sample:
        run = llama.generate_greedily(engine.build_prompt(question, passages=[]), limit)
        return Sample(len(run.token_ids), run.decode_seconds, run.seconds)

    return ask


def _ask(engine: NestEngine, source: PassageSource, question: str, settings: dict[str, Any], *, cold: bool) -> Sample:
    kept = engine.store
    if cold:
        engine.store = MemoryKeyStore()
    elif NestConfig(mode=settings["mode"]).uses_keys:
        wanted = settings.get("top_passages", engine.config.top_passages)
        engine.encode([s.passage for s in search(source, question, wanted)])
    try:
        return _sample(engine.generate(question, source=source, min_relevance=-float("inf"), **settings))
    finally:
        engine.store = kept


def _sample(answer: Generation) -> Sample:
    stats, seconds = answer.stats, answer.stats.seconds
    known = seconds.retrieve + seconds.encode
    lm = seconds.lm - seconds.prefill if seconds.lm > seconds.prefill else seconds.lm
    stages = {
        "retrieve": seconds.retrieve, "encode": seconds.encode, "prefill": seconds.prefill,
        "lm": lm, "mix": seconds.mix, "other": max(0.0, seconds.total - known - seconds.prefill - lm - seconds.mix),
    }  # fmt: skip
    return Sample(
        stats.tokens, seconds.decode, seconds.total, stages, stats.lm_calls, stats.drafted, stats.accepted,
        stats.attributed_tokens, tuple(c.end - c.start for c in answer.citations),
    )  # fmt: skip


def _ask_baseline(name: str, engine: NestEngine, source: PassageSource, question: str, limit: int) -> Sample:
    passages: list[Passage] = []
    if " ra" in name:
        passages = [s.passage for s in search(source, question, engine.config.prompt_passages)]
    prompt = engine.build_prompt(question, passages=passages)
    lookup = LOOKUP_TOKENS if "lookup" in name else None
    run = generate_greedily(engine, prompt, limit, prompt_lookup=lookup)
    return Sample(len(run.token_ids), run.decode_seconds, run.seconds)


def _figures(samples: Sequence[Sample]) -> dict[str, Any]:
    calls = sum(s.lm_calls for s in samples)
    tokens = sum(s.tokens for s in samples)
    runs = [length for s in samples for length in s.runs]
    rates = [(s.tokens - 1) / s.decode for s in samples if s.decode > 0 and s.tokens > 1]
    return {
        "answers": len(samples),
        "tokens": tokens,
        # The first token belongs to the prefill on both sides.
        "decode_rate": _rate(sum(max(s.tokens - 1, 0) for s in samples), sum(s.decode for s in samples)),
        "decode_quartiles": _quartiles(rates),
        "total_rate": _rate(tokens, sum(s.total for s in samples)),
        "median_seconds": statistics.median(s.total for s in samples),
        "tokens_per_call": _rate(tokens, calls) if calls else 1.0,
        "acceptance": _rate(sum(s.accepted for s in samples), sum(s.drafted for s in samples)),
        "attribution": _rate(sum(s.attributed for s in samples), tokens),
        "mean_run_characters": statistics.fmean(runs) if runs else 0.0,
        "stages": {stage: statistics.fmean(s.stages.get(stage, 0.0) for s in samples) for stage in STAGES},
    }


def _rate(amount: float, seconds: float) -> float:
    return amount / seconds if seconds else 0.0


def _quartiles(rates: Sequence[float]) -> tuple[float, float]:
    if len(rates) < 2:
        return (rates[0], rates[0]) if rates else (0.0, 0.0)
    low, _, high = statistics.quantiles(rates, n=4)
    return low, high


def _machine(engine: NestEngine, questions: int, repeats: int, limit: int) -> dict[str, Any]:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        **engine_facts(engine),
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "system": platform.machine(),
        "questions": questions,
        "repeats": repeats,
        "max_new_tokens": limit,
        "peak_mb": peak // (1 << 20 if sys.platform == "darwin" else 1 << 10),
    }


def write_report(report: Report, folder: Path) -> Iterable[Path]:
    """Write the report as JSON and Markdown, and its breakdown as a picture where matplotlib is installed.

    Args:
        report: What was measured.
        folder: Where to; made if needed.

    Yields:
        The files written.
    """
    yield from write_texts(folder, {"bench.json": report.to_json(), "bench.md": report.to_markdown()})
    figure_class = find_figure_class()
    if figure_class is None:
        return
    figure = figure_class(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    rows = [row for row in report.rows() if any(row["stages"].values())]
    left = [0.0] * len(rows)
    for stage in STAGES:
        widths = [row["stages"][stage] for row in rows]
        axes.barh([row["system"] for row in rows], widths, left=left, label=stage)
        left = [a + b for a, b in zip(left, widths, strict=True)]
    axes.set_xlabel("seconds an answer")
    axes.invert_yaxis()
    axes.legend(ncols=len(STAGES), loc="upper center", bbox_to_anchor=(0.5, 1.12), frameon=False)
    figure.savefig(folder / "bench.png", dpi=150)
    yield folder / "bench.png"
