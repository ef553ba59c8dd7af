"""`nest-engine eval` and `calibrate`: their arguments, and the way from them to results."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nest_engine.config import NestConfig
from nest_engine.errors import ConfigError

if TYPE_CHECKING:
    from nest_engine.engine import NestEngine
    from nest_engine.evaluation.answers import AnswerFile
    from nest_engine.evaluation.calibration import Fit
    from nest_engine.evaluation.perplexity import Scorer, Target, TokenParts
    from nest_engine.evaluation.results import Results
    from nest_engine.evaluation.runner import Measured
    from nest_engine.evaluation.systems import ConfigOf, System
    from nest_engine.evaluation.tasks import Task
    from nest_engine.lm.prompts import Task as Wording
    from nest_engine.passages import Passage
    from nest_engine.retrieval.source import PassageSource

logger = logging.getLogger(__name__)

DEFAULT_SYSTEMS = "lm,ra,knn-lm,nest,ra-nest,lossless,top passage,best sentence"
FORMATS = ("squad", "nq-open", "truthfulqa", "wikitext", "jsonl", "mmlu")
WORDINGS = ("question", "brief", "chat")
"""`nest_engine.lm.prompts.Task`: those that suit questions."""
OBJECTIVES = ("recall", "recall@20", "f1")
ANSWER_TOKENS = 64
_SIZED = 20  # how many datastores are looked at for their size


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `nest-engine eval` that other commands lack."""
    _add_task(parser, split="all")
    parser.add_argument("--modes", default=DEFAULT_SYSTEMS, metavar="A,B", help=f"the columns ({DEFAULT_SYSTEMS})")
    parser.add_argument("--ablate", action="store_true", help="instead of modes: the method's parts, one after another")
    parser.add_argument("--sweep", action="append", default=[], metavar="NAME=V,V", help="also: values of a setting")
    parser.add_argument("--perplexity", action="store_true", help="also: perplexity of the sentences with the answers")
    parser.add_argument(
        "--without-gold", action="store_true", help="take the passages that hold its answer from each question"
    )
    parser.add_argument("--wording", choices=WORDINGS, default="question", help="how questions are asked (question)")
    parser.add_argument("--base", metavar="SYSTEM", help="what the others are compared with (ra, else lm)")
    parser.add_argument("--out", type=Path, metavar="DIR", help="keep answers and results there; a second run goes on")


def add_calibration_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `nest-engine calibrate` that other commands lack."""
    _add_task(parser, split="tune")
    parser.add_argument("--objective", choices=OBJECTIVES, default="recall", help="what to make large (recall)")
    parser.add_argument(
        "--min-speed", type=float, default=1.0, metavar="X", help="at X times the plain model's tokens/s or more (1)"
    )
    parser.add_argument("--mus", default="", metavar="V,V", help="values of mu to try (that of the settings only)")
    parser.add_argument("--gammas", metavar="V,V", help="values of gamma to try (5e-4 to 5e-1, in tens)")
    parser.add_argument("--deltas", metavar="V,V", help="values of delta to try (quantiles of lambda)")
    parser.add_argument("--fit-only", action="store_true", help="fit alpha and tau to the texts, ask no questions")
    parser.add_argument("--out", type=Path, default=Path("nest-settings.json"), metavar="FILE", help="where to write")


def _add_task(parser: argparse.ArgumentParser, split: str) -> None:
    parser.add_argument("task", type=Path, metavar="TASKFILE", help="questions with answers, articles or choices")
    parser.add_argument("--format", choices=FORMATS, help="format of the task file (by default found out)")
    parser.add_argument(
        "--split", choices=("all", "tune", "report"), default=split, help=f"half of the questions ({split})"
    )
    parser.add_argument("--limit", type=int, metavar="N", help="take N of them, evenly spread")


@dataclass(frozen=True)
class Tools:
    """How the command line makes what an evaluation needs.

    Attributes:
        config_of: The settings to use in a mode.
        passages: Reads the passages that were given; None where none were.
        engine: Makes the engine.
        source: Makes the source over a collection.
        bar: Shows progress: `progress_bar` without its last argument.
    """

    config_of: ConfigOf
    passages: Callable[[NestConfig], list[Passage] | None]
    engine: Callable[[NestConfig], NestEngine]
    source: Callable[[list[Passage]], PassageSource]
    bar: Callable[[str, int], Any]


def evaluate(chosen: argparse.Namespace, tools: Tools) -> Results:
    """Run `nest-engine eval`.

    Args:
        chosen: The arguments.
        tools: Makes engine and source.

    Raises:
        NestError: Whatever is wrong with the arguments is found before a model is loaded.
    """
    from nest_engine.evaluation.metrics import require_libraries
    from nest_engine.evaluation.results import summarize

    task = _read(chosen)
    systems = choose_systems(chosen, tools.config_of)
    if task.questions:
        require_libraries()
    work = _prepare(task, systems, chosen, tools, chosen.out / "answers.jsonl" if chosen.out is not None else None)
    measured = work.measure(systems, chosen.perplexity, tools.bar)
    return summarize(measured, _protocol(work, chosen), chosen.base)


def _read(chosen: argparse.Namespace) -> Task:
    """The part of the task file that the arguments ask for."""
    from nest_engine.evaluation.tasks import read_task

    if chosen.limit is not None and chosen.limit < 1:
        raise ConfigError("--limit must be at least 1")
    return read_task(chosen.task, chosen.format).select(chosen.split, chosen.limit)


def _prepare(
    task: Task, systems: list[System], chosen: argparse.Namespace, tools: Tools, answers: Path | None
) -> _Work:
    """Read the collection, then load the model."""
    from nest_engine.evaluation.answers import AnswerFile
    from nest_engine.evaluation.runner import digest_passages

    task, passages = _collection(task, tools.passages(tools.config_of("nest")), systems, chosen.passage_words)
    kept = AnswerFile(answers)
    engine = tools.engine(tools.config_of("nest"))
    source = tools.source(passages) if passages else None
    collection = f"{type(source).__name__} {digest_passages(passages)}"
    asked: dict[str, Any] = {name: getattr(chosen, name) for name in ("without_gold", "wording") if name in chosen}
    return _Work(task, passages, engine, source, collection, kept, **asked)


def calibrate(chosen: argparse.Namespace, tools: Tools) -> dict[str, Any]:
    """Run `nest-engine calibrate` and write its settings file.

    Args:
        chosen: The arguments.
        tools: Makes engine and source.

    Returns:
        The evidence that stands in the file.
    """
    from nest_engine.evaluation.calibration import Objective, search_settings, starts, write_settings
    from nest_engine.evaluation.metrics import require_libraries
    from nest_engine.evaluation.systems import System

    config = tools.config_of(getattr(chosen, "mode", "nest"))
    if config.mode not in ("nest", "ra-nest"):
        raise ConfigError(f"only nest and ra-nest have settings to calibrate, not {config.mode}")
    task = _read(chosen)
    gammas, deltas, mus = (_numbers(chosen, name) for name in ("gammas", "deltas", "mus"))
    if task.choices:
        raise ConfigError("calibrate on questions with answers, or on articles: choices are too short")
    if task.questions:
        require_libraries()
    system = System("start", config)
    work = _prepare(task, [system], chosen, tools, chosen.out.with_suffix(".answers.jsonl"))
    fitted, parts, entries = work.fit(config, mus or [config.mu], tools.bar)
    evidence: dict[str, Any] = {"protocol": _protocol(work, chosen), "fit": asdict(fitted)}
    best = starts(config, fitted, parts)[0].config
    if task.questions and not chosen.fit_only:
        objective = Objective(chosen.objective, chosen.min_speed)
        run = work.asker(tools.bar)
        best, evidence["answers"] = search_settings(config, fitted, parts, objective, run, gammas, deltas)
    write_settings(chosen.out, best.replace(calibrated_entries=entries), evidence)
    return evidence


def _numbers(chosen: argparse.Namespace, name: str) -> list[Any]:
    """Numbers between commas; each is checked as a setting of that name."""
    from nest_engine.evaluation.systems import System, sweep

    text = getattr(chosen, name)
    swept = sweep(f"{name.removesuffix('s')}={text}", System("", NestConfig())) if text else []
    return [system.swept[1] for system in swept if system.swept is not None]


def choose_systems(chosen: argparse.Namespace, config_of: ConfigOf) -> list[System]:
    """The columns that the arguments ask for.

    Raises:
        ConfigError: If one is unknown.
    """
    from nest_engine.evaluation.systems import ablation, sweep, systems_of

    if hasattr(chosen, "mode"):
        raise ConfigError("nest-engine eval compares modes: give --modes instead of --mode")
    systems = ablation(config_of) if chosen.ablate else systems_of(chosen.modes.split(","), config_of)
    spans = [system for system in systems if system.name in ("nest", "ra-nest")]
    for text in chosen.sweep:
        for base in spans or systems_of(["nest"], config_of):
            systems += sweep(text, base)
    names = [system.name for system in systems]
    if chosen.base is not None and chosen.base not in names:
        raise ConfigError(f"--base {chosen.base!r} is not among what is compared: {', '.join(names)}")
    return systems


def _collection(
    task: Task, given: list[Passage] | None, systems: list[System], words: int
) -> tuple[Task, list[Passage]]:
    """What is searched: the passages that were given, else those that the task brings or is made of."""
    from nest_engine.evaluation.targets import article_passages

    passages = given if given is not None else [*task.passages, *article_passages(task.articles, words)]
    if given and task.passages:
        # A paragraph has another id in the collection: its text tells which one it is.
        ids = {passage.text: passage.id for passage in given}
        texts = {passage.id: passage.text for passage in task.passages}
        task = replace(task, questions=tuple(
            replace(q, passage_ids=tuple(ids[texts[i]] for i in q.passage_ids if texts[i] in ids))
            for q in task.questions
        ))  # fmt: skip
    if not passages and any(system.extractive or system.config.uses_passages for system in systems):
        raise ConfigError("nothing to search: give --passages or --docs (or --modes lm for the model alone)")
    return task, passages


@dataclass(frozen=True)
class _Work:
    """An evaluation, ready to run."""

    task: Task
    passages: list[Passage]
    engine: NestEngine
    source: PassageSource | None
    collection: str
    answers: AnswerFile
    without_gold: bool = False
    wording: Wording = "question"

    def measure(self, systems: list[System], perplexity: bool, bar: Callable[[str, int], Any]) -> Measured:
        """Do everything that the task and the arguments ask for."""
        from nest_engine.evaluation.runner import Measured

        measured = Measured(list(systems))
        if self.task.questions:
            self._answer(systems, measured, bar)
        if self.task.choices or self.task.articles or perplexity:
            self._predict(systems, perplexity, measured, bar)
        return measured

    def fit(
        self, config: NestConfig, mus: Sequence[float | None], bar: Callable[[str, int], Any]
    ) -> tuple[Fit, TokenParts, int | None]:
        """What predicts the task's texts best, the parts that say so, and the size of the datastores."""
        from statistics import median

        from nest_engine.evaluation.calibration import fit

        scorer, texts = self._scorer(), self._texts()
        fits: list[tuple[Fit, TokenParts]] = []
        with bar("predicting", len(mus) * len(texts)) as report:
            for mu in mus:
                parts = _gather_all(scorer, config.replace(mu=mu), texts, report)
                fits.append((fit(parts, config.replace(mu=mu)), parts))
        best, parts = min(fits, key=lambda pair: pair[0].loss)
        sizes = [scorer.entries(config, text) for text in texts[:_SIZED]]
        return best, parts, int(median(sizes)) or None

    def _texts(self) -> list[Target]:
        """What is predicted to fit the mixture: sentences with answers, or articles from what is not in them."""
        from nest_engine.evaluation import targets

        if self.task.articles:
            return list(targets.article_targets(self.engine, self.task.articles, targets.VARIANTS[1], self.passages))
        made = self._answer_sentences()
        if not made:
            raise ConfigError("no question names a passage that holds its answer (passage_id): nothing to fit to")
        return made

    def _answer_sentences(self) -> list[Target]:
        from nest_engine.evaluation.targets import sentence_targets

        by_id = {passage.id: passage for passage in self.passages}
        return list(sentence_targets(self.engine, self.task.questions, by_id))

    def _scorer(self) -> Scorer:
        from nest_engine.evaluation.perplexity import Scorer

        return Scorer(self.engine, self.source, self.collection, self.answers)

    def asker(self, bar: Callable[[str, int], Any]) -> Callable[[Sequence[System]], Measured]:
        """A function that asks systems all questions and tells what was measured of all systems so far."""
        from nest_engine.evaluation.runner import Measured

        measured = Measured([])

        def ask(systems: Sequence[System]) -> Measured:
            measured.systems += systems
            self._answer(list(systems), measured, bar)
            return measured

        return ask

    def _answer(self, systems: list[System], measured: Measured, bar: Callable[[str, int], Any]) -> None:
        from nest_engine.evaluation.runner import Runner
        from nest_engine.retrieval.source import ListSource

        source = self.source or ListSource([])
        runner = Runner(
            self.engine, source, self.collection, self.answers, without_gold=self.without_gold, wording=self.wording
        )
        with bar("answering", len(systems) * len(self.task.questions)) as report:
            runner.run(systems, self.task.questions, measured, report)

    def _predict(
        self, systems: list[System], perplexity: bool, measured: Measured, bar: Callable[[str, int], Any]
    ) -> None:
        from nest_engine.evaluation import targets
        from nest_engine.evaluation.prediction import choose, predict

        scorer = self._scorer()
        models = [system for system in systems if not system.extractive]
        if self.task.choices:
            with bar("choosing", len(models) * len(self.task.choices)) as report:
                choose(scorer, self.engine, models, self.task.choices, measured, report)
        for variant in targets.VARIANTS if self.task.articles else ():
            made = list(targets.article_targets(self.engine, self.task.articles, variant, self.passages))
            with bar(f"predicting, {variant.name}", len(models) * len(made)) as report:
                predict(scorer, models, made, variant.name, measured, report)
        if perplexity and self.task.questions:
            made = self._answer_sentences()
            with bar("predicting answer sentences", len(models) * len(made)) as report:
                predict(scorer, models, made, "answer sentence", measured, report)


def _gather_all(
    scorer: Scorer, config: NestConfig, texts: Sequence[Target], report: Callable[[int], None] | None
) -> TokenParts:
    """The parts of all texts that can be read, one behind the other."""
    from nest_engine.errors import NestError
    from nest_engine.evaluation.perplexity import TokenParts

    parts = []
    for text in texts:
        try:
            parts.append(scorer.parts(config, text, "calibration"))
        except NestError as error:
            logger.warning("%s: %s", text.id, error)
        if report is not None:
            report(1)
    if not parts:
        raise ConfigError("nothing to calibrate on: none of the texts could be read, see the warnings")
    return TokenParts.join(parts)


def _protocol(work: _Work, chosen: argparse.Namespace) -> dict[str, Any]:
    """What the figures depend on, beside the settings of each system; nothing about whose machine it was."""
    from nest_engine.evaluation.reports import engine_facts

    return {
        **engine_facts(work.engine),
        "task": work.task.name,
        "split": chosen.split,
        "items": len(work.task.items),
        "passages": len(work.passages),
        **({"wording": work.wording} if work.wording != "question" else {}),
        **({"without": "passages that hold the answer"} if work.without_gold else {}),
        "source": type(work.source).__name__ if work.source is not None else "none",
        "answer_tokens": work.engine.config.max_new_tokens,
    }
