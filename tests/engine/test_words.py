"""Words are counted alike in every script."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nest_engine.words import count_words, word_ends, word_units


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", 0),
        (" \t\n", 0),
        ("hello", 1),
        ("Hello, world!", 2),
        ("don't", 1),
        ("don’t stop", 2),
        ("l'été à Paris", 3),
        ("3.14 and 1,000,000", 3),
        ("one.Two", 1),
        ("end. Next", 2),
        ("state-of-the-art", 4),
        ("__init__ snake_case", 2),
        ("¿Cuántos años tenía él?", 4),
        ("cafe\u0301 noir", 2),
        ("Привет, мир", 2),
        ("안녕하세요 세계", 2),
        ("नमस्ते दुनिया", 2),
        ("مرحبا بالعالم", 2),
        ("👍🏽 😀 🇪🇸", 0),
        ("good 👍🏽 job", 2),
        ("— … !? «»", 0),
        ("黑豹队的防守", 3),
        ("黑豹队的防", 2),
        ("水", 0),
        ("黑豹队。防守", 2),
        ("ひらがなカタカナ漢字", 5),
        ("コーヒー時々", 3),
        ("สวัสดี", 2),
        ("用Python写代码", 3),
        ("136 次", 1),
    ],
)
def test_count(text, words):
    assert count_words(text) == words


def test_units_and_ends():
    text = "Ab 黑豹!"
    assert [(text[u.start : u.end], u.halves) for u in word_units(text)] == [("Ab", 2), ("黑", 1), ("豹", 1)]
    assert word_ends(text) == [2, 4, 5]


@given(st.text())
def test_units_are_ordered_and_apart(text):
    ends = [0]
    for unit in word_units(text):
        assert ends[-1] <= unit.start < unit.end <= len(text)
        ends.append(unit.end)


@given(st.text(), st.text())
def test_space_separates(left, right):
    together = count_words(left + " " + right)
    assert 0 <= together - count_words(left) - count_words(right) <= 1
