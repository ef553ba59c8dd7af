"""Offsets are exact, and no text ever becomes a control token."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nest_engine.lm.tokenizer import Tokenizer
from tests.texts import CONTROL, LIGATURES, TEXTS
from tests.tiny import TOKENIZERS, tiny_tokenizer

LOOK_ALIKES = [
    "<|im_end|>", "<|im_start|>", "<|im_start|>system\n", "<|endoftext|>", "<s>", "</s>", "<unk>", "<pad>", "<0x0A>",
    "<|im_end|><|im_end|>", "a<|im_end|>b", " <|im_end|> ", "</s></s>", "x</s>", "<<s>>", "<|im_<|im_end|>end|>",
]  # fmt: skip
EXACT = ("bytes", "metaspace", "unigram")
"""Tokenizers that can spell every text."""
UNIGRAM = Tokenizer(tiny_tokenizer("unigram"))

any_text = st.text(st.characters(exclude_categories=("Cs",)), max_size=30) | st.lists(
    st.sampled_from([*LOOK_ALIKES, *"aé安\u0301\u200d \n\t\r<>|", "👩‍🚀", "🇪🇸", "  "]), max_size=10
).map("".join)


@pytest.fixture(scope="module", params=TOKENIZERS)
def tokenizer(request) -> Tokenizer:
    return Tokenizer(tiny_tokenizer(request.param))


@pytest.fixture(scope="module", params=EXACT)
def exact(request) -> Tokenizer:
    return UNIGRAM if request.param == "unigram" else Tokenizer(tiny_tokenizer(request.param))


def assert_ends(tokenizer: Tokenizer, text: str) -> None:
    tokens = tokenizer.encode(text)
    assert len(tokens.ids) == len(tokens.ends)
    assert tokens.ends == sorted(tokens.ends)
    assert all(0 <= end <= len(text) for end in tokens.ends)


@pytest.mark.parametrize("name", TEXTS)
def test_ends_rise_and_cover_the_text(exact, name):
    assert_ends(exact, TEXTS[name])
    assert exact.encode(TEXTS[name]).ends[-1] == len(TEXTS[name])


@pytest.mark.parametrize("name", TEXTS)
def test_the_first_tokens_spell_the_text_up_to_their_end(exact, name):
    """What is complete after a token is exactly what the tokens up to it spell, incomplete characters aside."""
    text, tokens = TEXTS[name], exact.encode(TEXTS[name])
    lead = len(text) - len(exact.decode(tokens.ids))  # the decoder strips one space at the start
    if lead not in (0, 1) or text[lead:] != exact.decode(tokens.ids):
        assert name == "control"  # Unigram reads `<s>` as two texts, with a space before the second
        return
    checked = 0
    for number, end in enumerate(tokens.ends, 1):
        spelled = exact.decode(tokens.ids[:number])
        if "\ufffd" not in spelled:
            checked += 1
            assert spelled.startswith(text[lead:end])
            # (The library's Unigram gives the bytes of a run of characters one range, so that only its end is known.)
            assert spelled == text[lead:end] or exact is UNIGRAM
    assert checked > len(tokens.ids) / 5


@given(any_text)
@settings(max_examples=150, deadline=None)
def test_any_text_comes_back_from_bytes(text):
    tokenizer = Tokenizer(tiny_tokenizer("bytes"))
    tokens = tokenizer.encode(text)
    assert tokenizer.decode(tokens.ids) == text
    assert_ends(tokenizer, text)
    assert not text.strip() or tokens.ends[-1] == len(text)


@pytest.mark.parametrize("name", [*TOKENIZERS, "unknown"])
@given(text=any_text)
@settings(max_examples=80, deadline=None)
def test_no_text_gives_a_control_token(name, text):
    tokenizer = Tokenizer(tiny_tokenizer(name))
    assert not tokenizer.control_ids & set(tokenizer.encode(text).ids)
    assert_ends(tokenizer, text)


@pytest.mark.parametrize("text", [*LOOK_ALIKES, CONTROL])
def test_look_alikes_are_plain_text(exact, text):
    tokens = exact.encode(text)
    assert not exact.control_ids & set(tokens.ids)
    if "<0x0A>" not in text or exact is not UNIGRAM:
        # (The library's Unigram finds a byte's piece in text; that is a piece of text all the same.)
        assert exact.decode(tokens.ids).replace(" ", "") == text.replace(" ", "")
    assert tokens.ends[-1] == len(text)


def test_the_stock_tokenizer_would_have_made_them_control_tokens():
    """Else the tests above would say nothing."""
    for name in TOKENIZERS:
        stock = tiny_tokenizer(name)
        ids = stock("a<|im_end|>b", add_special_tokens=False)["input_ids"]
        assert stock.convert_tokens_to_ids("<|im_end|>") in ids


def test_a_vocabulary_that_holds_control_tokens_as_pieces():
    """A SentencePiece vocabulary has pieces `</s>` and `<unk>`: without the added tokens its model still finds them."""
    tokenizer = Tokenizer(tiny_tokenizer("unigram"))
    raw = tokenizer._plain.encode("x</s>", add_special_tokens=False)
    assert set(raw.ids) & tokenizer.control_ids, "the trap is gone"
    assert not set(tokenizer.encode("x</s>").ids) & tokenizer.control_ids
    assert [tokenizer.encode("a </s> b </s> c").ends[-1]] == [15]


def test_several_tokens_of_one_character_complete_it_with_the_last():
    tokenizer = Tokenizer(tiny_tokenizer("bytes"))
    tokens = tokenizer.encode("a🎻b")
    assert len(tokens.ids) > 3
    assert tokens.ends[0] == 1
    assert set(tokens.ends[1:-2]) <= {1}
    assert tokens.ends[-2:] == [2, 3]


def test_a_token_with_the_first_byte_of_a_character_does_not_complete_it():
    """A merge can join an ASCII character with a part of the next one."""
    state = {
        "type": "BPE", "vocab": {"a": 0, "Ã": 1, "©": 2, "aÃ": 3, "b": 4}, "merges": [["a", "Ã"]],
        "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
        "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
    }  # fmt: skip
    stock = tiny_tokenizer("bytes")
    serialized = json.loads(stock.backend_tokenizer.to_str())
    serialized["model"], serialized["added_tokens"] = state, []
    from tokenizers import Tokenizer as Backend
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(PreTrainedTokenizerFast(tokenizer_object=Backend.from_str(json.dumps(serialized))))
    tokens = tokenizer.encode("aéb")
    assert tokens.ids == [3, 2, 4]
    assert tokens.ends == [1, 2, 3]


def test_normalized_characters_keep_their_place():
    tokenizer = Tokenizer(tiny_tokenizer("normalizing"))
    text = "  The ﬁrst OFFICE  "
    tokens = tokenizer.encode(text)
    assert tokenizer.decode(tokens.ids) == "the first office"
    assert_ends(tokenizer, text)
    at = next(i for i, end in enumerate(tokens.ends) if end >= text.index("ﬁ") + 1)
    assert tokens.ends[at - 1] <= text.index("ﬁ")
    assert tokens.ends[-1] == len(text.rstrip())
    assert_ends(tokenizer, LIGATURES)


def test_empty_text(tokenizer):
    assert tokenizer.encode("").ids == []
    assert tokenizer.encode("").ends == []
    assert tokenizer.decode([]) == ""


@pytest.mark.parametrize("text", ["\ud800", "a\udfffb", "x\udc00\ud800"])
def test_lone_surrogates_are_read_as_replacement_characters(tokenizer, text):
    assert_ends(tokenizer, text)
    if tokenizer.fingerprint == Tokenizer(tiny_tokenizer("bytes")).fingerprint:
        replaced = "".join("\ufffd" if "\ud800" <= c <= "\udfff" else c for c in text)
        assert tokenizer.decode(tokenizer.encode(text).ids) == replaced
        assert tokenizer.encode(text).ends[-1] == len(text)


def test_characters_that_the_vocabulary_lacks_are_left_out():
    """A tokenizer without byte fallback knows them as `<unk>` only, which is no text that could be copied."""
    tokenizer = Tokenizer(tiny_tokenizer("unknown"))
    tokens = tokenizer.encode("a mill 安塞尔 by the sea")
    assert not tokenizer.control_ids & set(tokens.ids)
    assert tokenizer.decode(tokens.ids).split() == ["a", "mill", "by", "the", "sea"]
    assert tokens.ends[-1] == len("a mill 安塞尔 by the sea")
    assert tokenizer.encode("安塞尔").ids in ([], tokenizer.encode(" ").ids)


def test_prefix():
    assert Tokenizer(tiny_tokenizer("bytes")).prefix == []
    metaspace = tiny_tokenizer("metaspace")
    assert Tokenizer(metaspace).prefix == [metaspace.bos_token_id]


def test_text_is_read_without_the_prefix(tokenizer):
    assert not set(tokenizer.prefix) & set(tokenizer.encode("Hello").ids)


def test_long_text_is_not_cut():
    stock = tiny_tokenizer("bytes")
    stock.backend_tokenizer.enable_truncation(8)
    stock.backend_tokenizer.enable_padding(length=12)
    tokenizer = Tokenizer(stock)
    text = TEXTS["lighthouse"]
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_added_tokens_of_white_space_stay():
    """Some tokenizers have added tokens for runs of spaces; they spell ordinary text."""
    stock = tiny_tokenizer("bytes")
    stock.add_tokens(["        ", "<extra>"])
    tokenizer = Tokenizer(stock)
    spaces, extra = stock.convert_tokens_to_ids(["        ", "<extra>"])
    assert spaces in tokenizer.encode("a        b").ids
    assert spaces not in tokenizer.control_ids
    assert extra in tokenizer.control_ids
    assert extra not in tokenizer.encode("a<extra>b").ids
    assert extra in tokenizer.encode_template("a<extra>b")


def test_templates_have_control_tokens(tokenizer):
    stock = tokenizer._tokenizer
    assert stock.convert_tokens_to_ids("<|im_end|>") in tokenizer.encode_template("a<|im_end|>")


def test_decoding_leaves_control_tokens_out_and_cleans_nothing_up(tokenizer):
    end = tokenizer._tokenizer.convert_tokens_to_ids("<|im_end|>")
    ids = tokenizer.encode("well , do n't !").ids
    assert tokenizer.decode([*ids, end]) == "well , do n't !"


def test_the_fingerprint_tells_tokenizers_apart():
    found = {Tokenizer(tiny_tokenizer(name)).fingerprint for name in TOKENIZERS}
    assert len(found) == len(TOKENIZERS)
    assert Tokenizer(tiny_tokenizer()).fingerprint == Tokenizer(tiny_tokenizer()).fingerprint


@pytest.mark.demo_model
@pytest.mark.parametrize("name", TEXTS)
def test_the_demo_models_tokenizer(demo_engine, name):
    tokenizer, text = demo_engine.model.tokenizer, TEXTS[name]
    tokens = tokenizer.encode(text)
    assert tokenizer.decode(tokens.ids) == text
    assert not tokenizer.control_ids & set(tokens.ids)
    assert tokens.ends[-1] == len(text)
    assert_ends(tokenizer, text)


@pytest.mark.shared_data
@pytest.mark.parametrize("language", ["en", "es", "zh"])
def test_public_passages(shared_data, exact, language):
    lines = (shared_data / f"xquad.{language}.passages.jsonl").read_text(encoding="utf-8").splitlines()
    for line in lines[::12]:
        text = json.loads(line)["text"]
        tokens = exact.encode(text)
        assert tokens.ends == sorted(tokens.ends)
        assert tokens.ends[-1] == len(text)
        assert exact.decode(tokens.ids) in (text, text.removeprefix(" "))
