"""Where sentences end, in tokens."""

from __future__ import annotations

import numpy as np
import pytest

from nest_engine.datastore.sentences import sentence_ends
from nest_engine.lm.tokenizer import Tokenizer
from tests.texts import TEXTS
from tests.tiny import tiny_tokenizer


def ends_of(text: str) -> list[str]:
    """What stands before each end, with a token for each character."""
    marks = sentence_ends(text, np.arange(1, len(text) + 1, dtype=np.int32))
    assert marks.dtype == np.bool_
    assert len(marks) == len(text)
    return [text[: i + 1] for i in np.flatnonzero(marks)]


@pytest.mark.parametrize(
    ("text", "ends"),
    [
        ("One. Two.", ["One.", "One. Two."]),
        ("Really? Yes! Well…", ["Really?", "Really? Yes!", "Really? Yes! Well…"]),
        ('He said "no." Then left.', ['He said "no."', 'He said "no." Then left.']),
        ("(It rained.) So we stayed.", ["(It rained.)", "(It rained.) So we stayed."]),
        ("It costs 3.50 today", []),
        ("It costs 3.50.", ["It costs 3.50."]),
        ("See e.g. the map", ["See e.g."]),  # no list of abbreviations
        ("www.example.org is down", []),
        ("Wait... what", ["Wait..."]),
        ("水很冷。孩子们游泳。", ["水很冷。", "水很冷。孩子们游泳。"]),
        ("他说：“好。”然后走了！", ["他说：“好。”", "他说：“好。”然后走了！"]),
        ("¿Quién? Nadie.", ["¿Quién?", "¿Quién? Nadie."]),
        ("no end", []),
        ("One.\r\nTwo.\r\n", ["One.", "One.\r\nTwo."]),
        ("", []),
    ],
)
def test_ends(text, ends):
    assert ends_of(text) == ends


def test_the_token_that_completes_the_sentence_is_marked():
    """Of several tokens that end at the same character, the first: it completes it."""
    assert sentence_ends("Ab. C", np.array([2, 3, 3, 5], dtype=np.int32)).tolist() == [False, True, False, False]


def test_a_token_that_goes_on_behind_the_sentence_is_not_marked():
    assert not sentence_ends("Ab. C", np.array([2, 4, 5], dtype=np.int32)).any()


@pytest.mark.parametrize("name", ["lighthouse", "bread", "river", "spanish", "chinese"])
def test_real_tokens(name):
    text = TEXTS[name]
    ends = np.array(Tokenizer(tiny_tokenizer("bytes")).encode(text).ends, dtype=np.int32)
    marked = {int(end) for end in ends[sentence_ends(text, ends)]}
    assert len(text) in marked
    assert len(marked) >= 3
    assert all(text[end - 1] in '.!?。！？"' for end in marked)
