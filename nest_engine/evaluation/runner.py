"""Asks every system every question, and measures the answers. A run that was broken off goes on."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from nest_engine.engine import NestEngine, search
from nest_engine.errors import NestError
from nest_engine.evaluation.answers import Answer, AnswerFile, Cited, Key
from nest_engine.evaluation.extractive import extract, first_tokens
from nest_engine.evaluation.metrics import HEAD_TOKENS, Ratio, measure
from nest_engine.evaluation.systems import System
from nest_engine.evaluation.tasks import Question
from nest_engine.generation import Generation
from nest_engine.lm.prompts import Task as Wording
from nest_engine.passages import Passage, ScoredPassage
from nest_engine.retrieval.source import PassageSource

logger = logging.getLogger(__name__)

Report = Callable[[int], None]
"""Takes the number of answers since the last call."""


@dataclass
class Measured:
    """What was measured of each system.

    Attributes:
        systems: The systems, in the order of the columns.
        ratios: By system and question id, each metric as an amount and a count.
        failed: Messages of questions that could not be answered, by system and question id.
        notes: Further figures by name, such as weights that were tuned.
    """

    systems: list[System]
    ratios: dict[str, dict[str, dict[str, Ratio]]] = field(default_factory=dict)
    failed: dict[str, dict[str, str]] = field(default_factory=dict)
    notes: dict[str, float] = field(default_factory=dict)

    def add(self, system: System, question: str, ratios: dict[str, Ratio]) -> None:
        """Add the metrics of a system on a question; those of another kind of task join them."""
        self.ratios.setdefault(system.name, {}).setdefault(question, {}).update(ratios)

    def note(self, system: System, name: str, value: float) -> None:
        """Add a system that came out of the measuring, with the figure that it came from."""
        if system.name not in {known.name for known in self.systems}:
            self.systems.append(system)
        self.notes[name] = value

    def fail(self, system: System, question: str, error: Exception) -> None:
        """Note that a system could not answer a question."""
        logger.warning("%s, question %s: %s", system.name, question, error)
        self.failed.setdefault(system.name, {})[question] = str(error)


@dataclass(frozen=True)
class _Without:
    """A source that does not find some passages."""

    source: PassageSource
    ids: frozenset[str]

    def search(self, query: str, k: int) -> list[ScoredPassage]:
        """The best `k` of the others."""
        found = self.source.search(query, k + len(self.ids))
        return [scored for scored in found if scored.passage.id not in self.ids][:k]


class Runner:
    """Runs systems with one engine over one collection of passages."""

    def __init__(
        self,
        engine: NestEngine,
        source: PassageSource,
        collection: str,
        answers: AnswerFile,
        *,
        without_gold: bool = False,
        wording: Wording = "question",
    ) -> None:
        """Prepare.

        Args:
            engine: Answers.
            source: Where passages come from.
            collection: Says what the source searches and how: a part of every settings digest.
            answers: Where answers are kept, and found again.
            without_gold: Take the passages that hold a question's answer out of what is found for it.
            wording: How questions are put to the model.
        """
        self._engine = engine
        self._source = source
        self._answers = answers
        self._without_gold = without_gold
        self._wording = wording
        unusual = [*(["without gold"] if without_gold else []), *([wording] if wording != "question" else [])]
        self._surroundings = (engine.model.lm.fingerprint, collection, *unusual)

    def run(
        self,
        systems: Sequence[System],
        questions: Sequence[Question],
        measured: Measured,
        report: Report | None = None,
    ) -> None:
        """Ask every system every question that it has not answered before.

        The order of the systems turns from question to question, so that none always runs
        behind the same other one. A question that fails is noted, and the run goes on.

        Args:
            systems: What to ask.
            questions: The questions.
            measured: Takes the metrics.
            report: Called after each answer.
        """
        for number, question in enumerate(questions):
            turn = number % len(systems)
            for system in [*systems[turn:], *systems[:turn]]:
                try:
                    measured.add(system, question.id, measure(self.answer(system, question), question))
                except NestError as error:
                    measured.fail(system, question.id, error)
                if report is not None:
                    report(1)

    def answer(self, system: System, question: Question) -> Answer:
        """A system's answer to a question, from the file where it is there."""
        # With the text in it: another file's question of the same id is another question.
        digest = hashlib.sha256(question.text.encode("utf-8", "surrogatepass")).hexdigest()
        key = Key(system.name, system.fingerprint(*self._surroundings, digest), question.id)
        known = self._answers.results.get(key)
        if known is not None:
            return Answer.from_row(known)
        answer = self._extract(system, question) if system.extractive else self._generate(system, question)
        self._answers.add(key, answer.row())
        return answer

    def _generate(self, system: System, question: Question) -> Answer:
        config = system.config
        if config.uses_keys and config.datastore == "passages":
            # Keys are kept: what is timed is the second question about a passage, not the first.
            self._engine.encode(self._search(question, config.top_passages), config)
        source = self._source_for(question)
        generation = self._engine.generate(question.text, source=source, config=config, task=self._wording)
        return self._judged(generation)

    def _judged(self, generation: Generation) -> Answer:
        stats = generation.stats
        return Answer(
            text=generation.text,
            head=self._head(generation.text),
            tokens=stats.tokens,
            attributed=stats.attributed_tokens,
            runs=stats.document_runs,
            citations=tuple(Cited(c.passage_id, c.kind) for c in generation.citations),
            found=tuple(scored.passage.id for scored in generation.passages),
            finish=generation.finish_reason,
            seconds=stats.seconds.total,
            decode_seconds=stats.seconds.decode,
        )

    def _extract(self, system: System, question: Question) -> Answer:
        found = self._search(question, system.config.top_passages)
        rest = extract(question.text, found, from_best_sentence=system.name == "best sentence")
        text = first_tokens(rest, self._engine.model.tokenizer, system.config.max_new_tokens)
        tokens = len(self._engine.model.tokenizer.encode(text).ids)
        return Answer(
            text=text,
            head=self._head(text),
            tokens=tokens,
            attributed=tokens,
            runs=(tokens,) if tokens else (),
            citations=tuple(Cited(passage.id, "copied") for passage in found[:1]),
            found=tuple(passage.id for passage in found),
            finish="end" if text == rest else "length",
        )  # no seconds: nothing is generated, and a speed would mean nothing

    def _search(self, question: Question, k: int) -> list[Passage]:
        return [scored.passage for scored in search(self._source_for(question), question.text, k)]

    def _source_for(self, question: Question) -> PassageSource:
        return _Without(self._source, frozenset(question.passage_ids)) if self._without_gold else self._source

    def _head(self, text: str) -> str:
        return first_tokens(text, self._engine.model.tokenizer, HEAD_TOKENS)


def digest_passages(passages: Sequence[Passage]) -> str:
    """Digest of a collection, 16 hex digits."""
    digest = hashlib.sha256()
    for passage in passages:
        for part in (passage.id, passage.title, passage.text):
            digest.update(hashlib.sha256(part.encode("utf-8", "surrogatepass")).digest())
    return digest.hexdigest()[:16]
