"""Hidden characters are made visible, spelling stays, and no character moves."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nest_engine.rendering.characters import DROPPED, character_end, one_line, shorten, visible
from tests.texts import TEXTS


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\r\nb", f"a{DROPPED}\nb"),
        ("a\rb\x0bc\u2028d", "a\nb\nc\nd"),
        ("\x1b[31m\x00\x9b", "�[31m��"),
        ("\u202egnp.exe\u202c \u2066x\u2069", "�gnp.exe� �x�"),
        ("pay\u200bpal zero\u200dwidth \ufeff", "pay�pal zero�width �"),
        ("tags\U000e0041\U000e0042", "tags��"),
        ("a\ufe0f\ufe0f", "a��"),
        ("x\u200fy \ud800", "x�y �"),
        ("blank\u3164\u115f", "blank��"),
    ],
)
def test_what_hides_is_shown(text, shown):
    assert visible(text) == shown


@pytest.mark.parametrize(
    "text",
    [
        "👨‍👩‍👧‍👦 👩🏽‍🚀 ❤️ 1️⃣ 🏴󠁧󠁢󠁥󠁮󠁧󠁿",
        "می‌خواهم",
        "क्‍ष",
        "สวัส\u200bดี",
        "אב\u200f, \u200eab",
        "Donau\u00addampf",
        "tab\tand\nline",
        "\u0600١",
    ],
)
def test_spelling_stays(text):
    assert visible(text) == text


def test_the_test_texts_are_hardly_changed():
    for name, text in TEXTS.items():
        if name not in ("crlf", "spaces"):
            assert visible(text) == text


@given(st.text())
def test_ranges_stay(text):
    shown = visible(text)
    assert len(shown) == len(text)
    shown.encode("utf-8")
    assert not set(shown) & set("\r\x1b\u202e\u202d\u2066\ufeff")


@given(st.text("a e\u0301👨\u200d👩🏽\ufe0f\n"), st.integers(0, 12))
def test_characters_end_behind_a_place(text, at):
    end = character_end(text, at)
    assert end == at or at < end <= len(text)


@pytest.mark.parametrize(
    ("text", "at", "end"), [("cafe\u0301 x", 4, 5), ("x 👨‍👩‍👧", 3, 7), ("plain", 2, 2), ("é", 0, 0)]
)
def test_marks_wait_for_the_accent(text, at, end):
    assert character_end(text, at) == end


def test_lines_and_short_forms():
    assert one_line("  a\r\n\tb\u202e ") == "a b�"
    assert shorten("short", 10) == ("short", "")
    assert shorten("abcdefghij", 4) == ("ab", "ij")
