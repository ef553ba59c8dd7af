"""A text that grows token by token is the text of all tokens, and only complete characters are given out."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nest_engine.lm.detokenizer import Detokenizer
from nest_engine.lm.tokenizer import Tokenizer
from tests.texts import TEXTS
from tests.tiny import TOKENIZERS, tiny_tokenizer


def tokenizer_of(name: str) -> Tokenizer:
    return Tokenizer(tiny_tokenizer(name))


BY_NAME = {name: tokenizer_of(name) for name in TOKENIZERS}


def write(tokenizer: Tokenizer, ids: list[int]) -> tuple[Detokenizer, list[str]]:
    detokenizer = Detokenizer(tokenizer)
    pieces = [detokenizer.add(token) for token in ids]
    pieces.append(detokenizer.flush())
    return detokenizer, pieces


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("kind", TOKENIZERS)
def test_pieces_add_up_to_the_text(kind, name):
    tokenizer = BY_NAME[kind]
    ids = tokenizer.encode(TEXTS[name]).ids
    detokenizer, pieces = write(tokenizer, ids)
    assert "".join(pieces) == detokenizer.text == tokenizer.decode(ids)
    assert "\ufffd" not in detokenizer.text
    assert not any("\ufffd" in piece for piece in pieces)


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("kind", ["bytes", "metaspace"])
def test_ends_are_those_of_the_tokenizer(kind, name):
    """A text that is written token by token is complete where the tokenizer says that it is, or one token later.

    A token may hold a whole character and a part of the next one.
    """
    tokenizer, text = BY_NAME[kind], TEXTS[name]
    tokens = tokenizer.encode(text)
    detokenizer, _ = write(tokenizer, tokens.ids)
    lead = len(text) - len(detokenizer.text)  # the space that the decoder strips at the start
    same = [end + lead == other for end, other in zip(detokenizer.ends, tokens.ends, strict=True)]
    assert all(end + lead <= max(lead, other) for end, other in zip(detokenizer.ends, tokens.ends, strict=True))
    assert sum(same) > 0.8 * len(same)
    assert same[-1]


@pytest.mark.parametrize("kind", ["bytes", "metaspace", "unigram"])
@given(data=st.data())
@settings(max_examples=100, deadline=None)
def test_pieces_of_texts_one_behind_the_other(kind, data):
    """As answers are: a slice of one text, tokens of the model's own, a slice of another text."""
    tokenizer = BY_NAME[kind]
    ids: list[int] = []
    for _ in range(data.draw(st.integers(1, 3))):
        text = tokenizer.encode(TEXTS[data.draw(st.sampled_from(sorted(TEXTS)))]).ids
        start = data.draw(st.integers(0, len(text) - 1))
        ids += text[start : start + data.draw(st.integers(1, 12))]
        ids += data.draw(st.lists(st.integers(5, 500), max_size=2))
    detokenizer, pieces = write(tokenizer, ids)
    assert "".join(pieces) == detokenizer.text
    whole = tokenizer.decode(ids)
    if kind == "bytes" or "\ufffd" not in whole:
        # (With byte fallback, one broken byte spoils the whole characters beside it when all is decoded at once.)
        assert detokenizer.text == whole
    assert len(detokenizer.ends) == len(ids)
    assert detokenizer.ends == sorted(detokenizer.ends)
    assert detokenizer.ends[-1] == len(detokenizer.text)


def test_a_character_comes_with_its_last_token():
    tokenizer = BY_NAME["bytes"]
    ids = tokenizer.encode("a🎻b").ids
    _, pieces = write(tokenizer, ids)
    assert "".join(pieces) == "a🎻b"
    assert pieces[0] == "a"
    assert [piece for piece in pieces if piece] == ["a", "🎻", "b"]


def test_an_incomplete_character_at_the_end_is_flushed_as_replacement():
    tokenizer = BY_NAME["bytes"]
    ids = tokenizer.encode("a🎻").ids[:-1]
    detokenizer, pieces = write(tokenizer, ids)
    assert pieces[0] == "a"
    assert set(pieces[1:-1]) == {""}
    assert set(pieces[-1]) == {"\ufffd"}
    assert detokenizer.text == tokenizer.decode(ids)


def test_a_broken_character_does_not_hold_the_text_back():
    """A byte that can never become a character is given out as soon as something stands behind it."""
    tokenizer = BY_NAME["bytes"]
    broken = tokenizer.encode("🎻").ids[0]
    ids = [broken, *tokenizer.encode("abc def").ids]
    _, pieces = write(tokenizer, ids)
    assert "".join(pieces) == tokenizer.decode(ids)
    assert pieces[1].endswith("a") or pieces[1].endswith("ab") or pieces[1].endswith("abc")


def test_many_broken_bytes_are_given_out_in_the_end():
    tokenizer = BY_NAME["bytes"]
    broken = tokenizer.encode("🎻").ids[-1]
    detokenizer = Detokenizer(tokenizer)
    pieces = [detokenizer.add(broken) for _ in range(12)]
    assert any(pieces[:8])


def test_a_real_replacement_character_is_kept():
    tokenizer = BY_NAME["bytes"]
    text = "before \ufffd after \ufffd"
    ids = tokenizer.encode(text).ids
    detokenizer, _ = write(tokenizer, ids)
    assert detokenizer.text == text


def test_the_space_before_a_word_is_kept_in_the_middle():
    """A SentencePiece tokenizer strips the space before the first word of what it decodes, and only that one."""
    tokenizer = BY_NAME["metaspace"]
    ids = tokenizer.encode("the river").ids + tokenizer.encode("the mill").ids
    _, pieces = write(tokenizer, ids)
    assert "".join(pieces) == "the river the mill"


def test_control_tokens_are_no_text():
    tokenizer = BY_NAME["bytes"]
    ids = [*tokenizer.encode("one").ids, 1, 2, *tokenizer.encode(" two").ids]
    detokenizer, _ = write(tokenizer, ids)
    assert detokenizer.text == "one two"


@pytest.mark.parametrize("kind", ["bytes", "metaspace"])
def test_leading_space_can_be_skipped(kind):
    tokenizer = BY_NAME[kind]
    ids = tokenizer.encode("\n  the river bends").ids
    detokenizer = Detokenizer(tokenizer, skip_leading_space=True)
    pieces = [*(detokenizer.add(token) for token in ids), detokenizer.flush()]
    assert "".join(pieces) == detokenizer.text == "the river bends"
    assert detokenizer.ends[-1] == len(detokenizer.text)
    blank = Detokenizer(tokenizer, skip_leading_space=True)
    assert "".join(map(blank.add, tokenizer.encode("  \n").ids)) + blank.flush() == blank.text == ""


def test_nothing():
    detokenizer, pieces = write(BY_NAME["bytes"], [])
    assert detokenizer.text == ""
    assert pieces == [""]
    assert detokenizer.ends == []
