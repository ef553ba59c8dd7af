"""Sentences that a question asks for come first, whatever their language; the rest is left out."""

from __future__ import annotations

import numpy as np
import pytest

from nest_engine import Passage
from nest_engine.datastore.relevance import rank_sentences


def rank(query: str, *texts: str, numbers: list[int] | None = None) -> list[str]:
    """The ranked sentences as text; every character is a token."""
    passages = [Passage(text) for text in texts]
    ends = [np.arange(1, len(text) + 1, dtype=np.int32) for text in texts]
    numbers = numbers or list(range(len(texts)))
    found = rank_sentences(passages, ends, numbers, query)
    return [texts[numbers.index(s.passage)][s.start : s.end].strip() for s in found]


LIGHTHOUSE = "The lighthouse stands on a rock. It was built in 1871 of granite. The keeper sells tickets."
FERRY = "The ferry leaves every two hours. Its tickets are sold on board by the captain."


@pytest.mark.parametrize(
    ("query", "first"),
    [
        ("When was it built?", "It was built in 1871 of granite."),
        ("Who sells tickets for the lighthouse?", "The keeper sells tickets."),
        ("How often does the ferry leave?", "The ferry leaves every two hours."),
        ("BUILT of GRANITE", "It was built in 1871 of granite."),
    ],
)
def test_the_sentence_that_answers_comes_first(query, first):
    assert rank(query, LIGHTHOUSE, FERRY)[0] == first


def test_other_scripts():
    assert rank("灯塔是什么时候建成的？", "灯塔在海边。灯塔建成于1871年，什么时候都亮。渡轮每两小时一班。")[
        0
    ].startswith("灯塔建成")
    assert rank("¿Cuándo se construyó el faro?", "El mar es azul. El faro se construyo en 1871.")[0].startswith(
        "El faro"
    )


def test_what_shares_nothing_is_left_out():
    assert rank("penguins", LIGHTHOUSE, FERRY) == []
    assert rank("", LIGHTHOUSE) == []
    assert rank("anything") == []
    assert "The ferry leaves every two hours." not in rank("What is the granite built on?", LIGHTHOUSE, FERRY)


def test_equally_good_ones_keep_the_order_of_the_passages():
    assert rank("moon", "The moon rises.", "A moon rises.") == ["The moon rises.", "A moon rises."]


def test_numbers_of_places_are_kept():
    assert rank("ferry hours", LIGHTHOUSE, FERRY, numbers=[7, 3])[0] == "The ferry leaves every two hours."
