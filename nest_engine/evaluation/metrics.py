"""What an answer is worth: every metric as an amount and a count, to be summed over answers."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from nest_engine.datastore.sentences import sentence_bounds
from nest_engine.errors import ConfigError
from nest_engine.evaluation.answers import Answer
from nest_engine.evaluation.tasks import Question
from nest_engine.words import word_units

Ratio = tuple[float, float]
"""An amount and a count: a metric over many answers is the sum of amounts over the sum of counts."""

HEAD_TOKENS = 20
REPEATS = 3
REPEATED_WORDS = 4

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalize(text: str) -> str:
    """Lowercase, without ASCII punctuation, English articles and further spaces: SQuAD's normalization."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def contains(text: str, answer: str) -> bool:
    """Whether a normalized text holds a normalized answer as whole words.

    In scripts without spaces a word's borders cannot be seen: there any place will do.
    """
    text, answer = normalize(text), normalize(answer)
    if not answer:
        return False
    if any(unit.halves == 1 for unit in word_units(answer)):
        return answer in text
    return re.search(rf"(?<!\w){re.escape(answer)}(?!\w)", text) is not None


def recall(text: str, answers: Iterable[str]) -> float:
    """1 if any of the answers occurs in the text, else 0."""
    return float(any(contains(text, answer) for answer in answers))


def exact_match(text: str, answers: Iterable[str]) -> float:
    """1 if the text is one of the answers, both normalized, else 0."""
    return float(normalize(text) in {normalize(answer) for answer in answers})


def f1(text: str, answers: Iterable[str]) -> float:
    """SQuAD's F1 of words in common, against the answer that suits best."""
    return max((_f1(_f1_words(text), _f1_words(answer)) for answer in answers), default=0.0)


def _f1_words(text: str) -> list[str]:
    """Normalized words; each character by itself in scripts without spaces, as in MLQA."""
    text = normalize(text)
    if all(unit.halves == 2 for unit in word_units(text)):
        return text.split()
    return [text[unit.start : unit.end] for unit in word_units(text)]


def _f1(words: Sequence[str], gold: Sequence[str]) -> float:
    common = sum((Counter(words) & Counter(gold)).values())
    if not words or not gold or not common:
        return float(list(words) == list(gold))
    precision, share = common / len(words), common / len(gold)
    return 2 * precision * share / (precision + share)


class _Words:
    """Words for rouge-score in any script; its own tokenizer knows ASCII letters and digits only."""

    def tokenize(self, text: str) -> list[str]:
        """Split into lowercase words."""
        text = text.lower()
        return [text[unit.start : unit.end] for unit in word_units(text)]


def require_libraries() -> None:
    """Fail before the work and not after it where rouge-score or sacrebleu is missing.

    Raises:
        ConfigError: If one is missing; the message says what to install.
    """
    rouge("a", ["a"])
    bleu("a", "a")


@cache
def _rouge_scorer(own_words: bool) -> Any:
    try:
        from rouge_score.rouge_scorer import RougeScorer
    except ImportError as error:
        raise ConfigError("ROUGE needs rouge-score: pip install 'nest-rag[eval]'") from error
    return RougeScorer(["rouge1", "rouge2", "rougeL"], tokenizer=_Words() if own_words else None)


def rouge(text: str, answers: Sequence[str]) -> dict[str, float]:
    """ROUGE-1, -2 and -L: F-measures from 0 to 1, each against the answer that suits best."""
    scorer = _rouge_scorer(not all(answer.isascii() for answer in answers))
    scores = scorer.score_multi(list(answers), text)
    return {name: float(score.fmeasure) for name, score in scores.items()}


def bleu(text: str, answer: str) -> float:
    """BLEU from 0 to 100 with sacrebleu's smoothing, as TruthfulQA takes it."""
    try:
        import sacrebleu
    except ImportError as error:
        raise ConfigError("BLEU needs sacrebleu: pip install 'nest-rag[eval]'") from error
    score = sacrebleu.corpus_bleu(
        [text], [[answer]], smooth_method="exp", tokenize="intl", use_effective_order=False, force=True
    )
    return float(score.score)


def truthfulness(text: str, question: Question) -> dict[str, float]:
    """Nearness to the nearest right answer minus that to the nearest wrong one, in points from -100 to 100."""
    right, wrong = rouge(text, question.answers), rouge(text, question.wrong_answers)
    deltas = {f"delta_{name}": 100 * (right[name] - wrong[name]) for name in right}
    best = [max(bleu(text, answer) for answer in side) for side in (question.answers, question.wrong_answers)]
    return {"delta_bleu": best[0] - best[1], **deltas}


def loops(text: str) -> bool:
    """Whether some four words in a row occur three times or more."""
    words = [text[unit.start : unit.end].lower() for unit in word_units(text)]
    grams = Counter(tuple(words[i : i + REPEATED_WORDS]) for i in range(len(words) - REPEATED_WORDS + 1))
    return max(grams.values(), default=0) >= REPEATS


def stops_mid_sentence(text: str) -> bool:
    """Whether a text is not empty and does not end where a sentence does."""
    text = text.rstrip()
    return bool(text) and sentence_bounds(text)[-1:] != [len(text)]


def measure(answer: Answer, question: Question) -> dict[str, Ratio]:
    """All metrics of one answer.

    What compares with gold answers counts only where there are some, citation metrics only
    where the passages that hold the answer are known, and deltas only for questions with wrong answers.
    """
    ratios: dict[str, Ratio] = {
        **(_answer_ratios(answer, question) if question.answers else {}),
        **_citation_ratios(answer, set(question.passage_ids)),
        "attribution": (answer.attributed, answer.tokens),
        "mean_run": (sum(answer.runs), len(answer.runs)),
        "cited_answers": (float(bool(answer.citations)), 1),
        "ended": (float(answer.finish == "end"), 1),
        "mid_sentence": (float(stops_mid_sentence(answer.text)), 1),
        "loops": (float(loops(answer.text)), 1),
        "tokens": (answer.tokens, 1),
        "tokens/s": (answer.tokens, answer.seconds),
        # The first token belongs to the prefill.
        "decode tokens/s": (max(answer.tokens - 1, 0), answer.decode_seconds),
    }
    return ratios


def _answer_ratios(answer: Answer, question: Question) -> dict[str, Ratio]:
    """How near is the text to the gold answers?"""
    return {
        "recall": (recall(answer.text, question.answers), 1),
        "recall@20": (recall(answer.head, question.answers), 1),
        "em": (exact_match(answer.text, question.answers), 1),
        "f1": (f1(answer.text, question.answers), 1),
        **_once(rouge(answer.text, question.answers)),
        **(_once(truthfulness(answer.text, question)) if question.wrong_answers else {}),
    }


def _citation_ratios(answer: Answer, gold: set[str]) -> dict[str, Ratio]:
    """Do citations, the first of them, and the best passage found, name a passage that holds the answer?"""
    if not gold:
        return {}
    right = [citation.passage_id in gold for citation in answer.citations]
    return {
        "citation_precision": (sum(right), len(right)),
        "first_citation": (float(right[0]) if right else 0.0, float(bool(right))),
        "citation_recall": (float(any(right)), 1),
        "retrieval_top1": (float(bool(answer.found) and answer.found[0] in gold), float(bool(answer.found))),
        "retrieval_all": (float(not gold.isdisjoint(answer.found)), float(bool(answer.found))),
    }


def _once(values: Mapping[str, float]) -> dict[str, Ratio]:
    return {name: (value, 1) for name, value in values.items()}
