"""Metrics against figures worked out by hand."""

import math

import pytest

from nest_engine.evaluation.answers import Answer, Cited
from nest_engine.evaluation.metrics import (
    bleu,
    contains,
    exact_match,
    f1,
    loops,
    measure,
    normalize,
    recall,
    rouge,
    stops_mid_sentence,
    truthfulness,
)
from nest_engine.evaluation.tasks import Question


def test_normalize():
    assert normalize("The  tide, it's AN old\nfriend!") == "tide its old friend"


@pytest.mark.parametrize(
    ("text", "answer", "found"),
    [
        ("They gave up just 308 points.", "308", True),
        ("They gave up just 1308 points.", "308", False),
        ("In fourteen days", "four", False),
        ("It was the Kawann-Short show", "kawann short", False),
        ("by Kawann Short, of course", "The Kawann Short", True),
        ("the 20–14 win", "20", True),
        ("黑豹队的防守丢了308分", "308分", True),
        ("anything", "the", False),
    ],
)
def test_contains_whole_words(text, answer, found):
    assert contains(text, answer) is found
    assert recall(text, ["nothing like it", answer]) == float(found)


def test_exact_match_and_f1():
    assert exact_match("The river Ansel.", ["river ansel"]) == 1
    assert exact_match("The river Ansel!", ["Ansel"]) == 0
    # 2 words in common, of 3 and of 2: precision 2/3, recall 1.
    assert f1("river Ansel flows", ["a b c", "the river Ansel"]) == pytest.approx(2 * (2 / 3) * 1 / (2 / 3 + 1))
    assert f1("nothing", ["river"]) == 0
    # A word counts as often as it occurs on both sides: 1 in common, of 3 and of 1.
    assert f1("x x x", ["x"]) == pytest.approx(2 * (1 / 3) / (1 / 3 + 1))
    assert f1("黑豹队", ["黑豹"]) == pytest.approx(0.8)


def test_rouge():
    # 1-grams: 2 of 3 and 2 of 4; 2-grams: 1 of 2 and 1 of 3; longest common subsequence: 2.
    scores = rouge("the cat sat", ["zebra", "the cat ran off"])
    assert scores["rouge1"] == pytest.approx(2 * (2 / 3) * (2 / 4) / (2 / 3 + 2 / 4))
    assert scores["rouge2"] == pytest.approx(2 * (1 / 2) * (1 / 3) / (1 / 2 + 1 / 3))
    assert scores["rougeL"] == pytest.approx(scores["rouge1"])


def test_rouge_in_scripts_without_ascii():
    assert rouge("黑豹", ["黑豹"])["rouge1"] == 1
    assert rouge("黑豹", ["野马"])["rouge1"] == 0


def test_bleu():
    # All n-grams of orders 1 to 4 match, brevity penalty exp(1 - 6/5).
    assert bleu("a b c d e", "a b c d e f") == pytest.approx(100 * math.exp(1 - 6 / 5))
    assert bleu("x", "a b") == 0


def test_truthfulness_is_the_best_right_minus_the_best_wrong():
    right, wrong = ("You digest them.", "Nothing at all happens to you."), ("They all grow in you.", "You die.")
    question = Question("1", "Seeds?", right, (), wrong)
    text = "Nothing at all happens to you."
    deltas = truthfulness(text, question)
    assert deltas["delta_bleu"] == pytest.approx(100 - max(bleu(text, w) for w in wrong))
    # The nearest wrong answer has "all" and "you" in common: two of six words, and of five.
    nearest = 2 * (2 / 6) * (2 / 5) / (2 / 6 + 2 / 5)
    assert deltas["delta_rouge1"] == pytest.approx(100 * (1 - nearest))
    assert truthfulness("They all grow in you.", question)["delta_bleu"] < -50


def test_loops():
    phrase = "the old mill was"
    assert loops(f"{phrase} big, {phrase} red, The OLD mill, was blue")
    assert not loops(f"{phrase} big, {phrase} red")
    assert not loops("the the the the the")
    assert loops("the the the the the the")


@pytest.mark.parametrize(
    ("text", "stops"),
    [
        ("It rose.", False),
        ('"It rose."\n', False),
        ("It rose, and", True),
        ("水涨。", False),
        ("水涨", True),
        (" ", False),
    ],
)
def test_stops_mid_sentence(text, stops):
    assert stops_mid_sentence(text) is stops


ANSWER = Answer(
    text="The tide rises twice. It falls twice, and",
    head="The tide rises",
    tokens=12,
    attributed=9,
    runs=(6, 3),
    citations=(Cited("p9", "copied"), Cited("p1", "copied"), Cited("p1", "copied")),
    found=("p1", "p9"),
    finish="length",
    seconds=2.0,
    decode_seconds=1.0,
)


def test_measure():
    ratios = measure(ANSWER, Question("q", "How often?", ("twice",), ("p1",)))
    assert ratios["recall"] == (1, 1)
    assert ratios["recall@20"] == (0, 1)
    assert ratios["attribution"] == (9, 12)
    assert ratios["mean_run"] == (9, 2)
    assert ratios["citation_precision"] == (2, 3)
    assert ratios["first_citation"] == (0, 1)
    assert ratios["citation_recall"] == (1, 1)
    assert ratios["retrieval_top1"] == (1, 1)
    assert ratios["ended"] == (0, 1)
    assert ratios["mid_sentence"] == (1, 1)
    assert ratios["tokens/s"] == (12, 2)
    assert ratios["decode tokens/s"] == (11, 1)
    assert "delta_bleu" not in ratios


def test_citations_are_judged_only_where_the_right_passage_is_known():
    assert "citation_precision" not in measure(ANSWER, Question("q", "How often?", ("twice",)))
    none = measure(Answer("Never.", "Never.", 2), Question("q", "How often?", ("twice",), ("p1",)))
    assert (none["citation_precision"], none["first_citation"], none["citation_recall"]) == ((0, 0), (0, 0), (0, 1))


def test_an_answer_survives_its_row():
    import json

    assert Answer.from_row(json.loads(json.dumps(ANSWER.row()))) == ANSWER
