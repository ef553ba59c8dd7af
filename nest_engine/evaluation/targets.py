"""Texts to predict: continuations of articles, sentences that hold answers, choices."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from nest_engine.documents import Document, split_document
from nest_engine.engine import NestEngine
from nest_engine.evaluation.extractive import split_sentences
from nest_engine.evaluation.metrics import contains
from nest_engine.evaluation.perplexity import Target
from nest_engine.evaluation.tasks import Choice, Question
from nest_engine.evaluation.wikitext import Article
from nest_engine.lm.prompts import join_passages
from nest_engine.passages import Passage

logger = logging.getLogger(__name__)

PREFIX_TOKENS = 128
TARGET_TOKENS = 256


@dataclass(frozen=True)
class Variant:
    """What may be retrieved for the continuation of an article.

    Attributes:
        name: Its name.
        same_article: Whether passages of the article itself may.
        overlapping: Whether those that share text with the target may.
    """

    name: str
    same_article: bool
    overlapping: bool


VARIANTS = (
    Variant("other articles", same_article=False, overlapping=False),
    Variant("all articles, without the target's passages", same_article=True, overlapping=False),
    Variant("all articles", same_article=True, overlapping=True),
)


def article_passages(articles: Sequence[Article], words: int) -> list[Passage]:
    """The articles as a collection, split into passages of at most `words` words."""
    documents = [Document(text=article.text, title=article.title, id=article.id) for article in articles]
    return [passage for document in documents for passage in split_document(document, words)]


def article_targets(
    engine: NestEngine, articles: Sequence[Article], variant: Variant, passages: Sequence[Passage]
) -> Iterator[Target]:
    """For each article that is long enough, the 256 tokens behind its first 128.

    The prompt is the prefix by itself, without a chat template: what is asked for is the text
    that goes on, not an answer. Passages in the prompt stand before it.

    Args:
        engine: Its tokenizer is used.
        articles: The articles.
        variant: What may be retrieved.
        passages: The collection that is searched.
    """
    for article in articles:
        text = engine.model.tokenizer.encode(article.text)
        ids, ends = text.ids, [0, *text.ends]
        if len(ids) < PREFIX_TOKENS + TARGET_TOKENS:
            logger.info("article %s (%s) is too short to predict", article.id, article.title)
            continue
        stop = PREFIX_TOKENS + TARGET_TOKENS
        ranges = [(ends[i], ends[i + 1]) for i in range(PREFIX_TOKENS, stop)]
        yield Target(
            id=article.id,
            query=article.text[: ends[PREFIX_TOKENS]].strip(),
            prompt=_raw_prompt(engine, ids[:PREFIX_TOKENS]),
            token_ids=tuple(ids[PREFIX_TOKENS:stop]),
            counted=tuple(not any(_overlap(r, unknown) for unknown in article.unknown) for r in ranges),
            allows=_allow(article, variant, (ends[PREFIX_TOKENS], ends[stop])),
            spare=sum(passage.document_id == article.id for passage in passages),
        )


def _raw_prompt(engine: NestEngine, prefix: Sequence[int]) -> Callable[[Sequence[Passage]], list[int]]:
    tokenizer = engine.model.tokenizer

    def prompt(passages: Sequence[Passage]) -> list[int]:
        background = tokenizer.encode(join_passages(passages) + "\n\n").ids if passages else []
        return [*tokenizer.prefix, *background, *prefix]

    return prompt


def _allow(article: Article, variant: Variant, target: tuple[int, int]) -> Callable[[Passage], bool]:
    def allows(passage: Passage) -> bool:
        if passage.document_id != article.id:
            return True
        start = passage.offset or 0
        return variant.same_article and (
            variant.overlapping or not _overlap((start, start + len(passage.text)), target)
        )

    return allows


def _overlap(left: tuple[int, int], right: tuple[int, int]) -> bool:
    """Whether two half-open ranges share a character."""
    return max(left[0], right[0]) < min(left[1], right[1])


def answer_sentence(question: Question, passages: Mapping[str, Passage]) -> str | None:
    """The first sentence, of the passages that hold a question's answer, with one of the answers in it."""
    for passage in (passages[i] for i in question.passage_ids if i in passages):
        for start, end in split_sentences(passage.text):
            sentence = passage.text[start:end]
            if any(contains(sentence, answer) for answer in question.answers):
                return sentence
    return None


def sentence_targets(
    engine: NestEngine, questions: Sequence[Question], passages: Mapping[str, Passage]
) -> Iterator[Target]:
    """The sentences that hold the answers, each behind its question's prompt.

    Args:
        engine: Words and tokenizes the prompts.
        questions: The questions; those without such a sentence are left out.
        passages: The collection by id.
    """
    for question in questions:
        sentence = answer_sentence(question, passages)
        if sentence is not None:
            yield _behind_question(engine, question.id, question.text, sentence)


def choice_targets(engine: NestEngine, choice: Choice) -> list[Target]:
    """The choices of a question, each behind the question's prompt."""
    return [
        _behind_question(engine, f"{choice.id}/{number}", choice.text, text)
        for number, text in enumerate(choice.choices)
    ]


def _behind_question(engine: NestEngine, target_id: str, question: str, text: str) -> Target:
    # Behind "Answer:" a word begins with its space; behind the header of a chat turn it does not.
    lead = "" if engine.model.tokenizer.has_chat_template else " "
    ids = tuple(engine.model.tokenizer.encode(lead + text).ids)

    def prompt(passages: Sequence[Passage]) -> list[int]:
        return engine.build_prompt(question, passages=passages)

    return Target(target_id, question, prompt, ids, (True,) * len(ids))
