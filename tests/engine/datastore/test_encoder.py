"""Keys of passages: the hidden states of a plain read before every token of the text, rounded once."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from nest_engine import Passage
from nest_engine.datastore import encoder as encoder_module
from nest_engine.datastore.codec import FloatCodec
from nest_engine.datastore.encoded import address
from nest_engine.datastore.encoder import PassageEncoder
from nest_engine.errors import KeyFormatError
from tests.texts import CONTROL, TEXTS, passages
from tests.tiny import TOKENIZERS, tiny_engine, tiny_loaded


@pytest.fixture(scope="module", params=TOKENIZERS)
def loaded(request):
    return tiny_loaded("llama", request.param)


def encode(loaded, texts, key_format="float32"):
    return PassageEncoder(loaded.lm, loaded.tokenizer, FloatCodec(key_format)).encode(texts)


def by_hand(loaded, passage: Passage) -> tuple[list[int], list[int], torch.Tensor]:
    """The context, the text's tokens, and a plain read of both."""
    context = loaded.tokenizer.prefix + loaded.tokenizer.encode(f"{passage.title}\n").ids
    text = loaded.tokenizer.encode(passage.text).ids
    return context, text, loaded.lm.open().read(context + text).queries


@pytest.mark.parametrize("title", ["", "The lighthouse", "  odd\n title <|im_end|>"])
def test_keys_are_what_a_plain_read_says_before_each_token(loaded, title):
    texts = [Passage(text, title=title) for text in TEXTS.values()]
    for passage, encoded in zip(texts, encode(loaded, texts), strict=True):
        context, ids, states = by_hand(loaded, passage)
        assert encoded.token_ids.tolist() == ids
        assert encoded.ends.tolist() == loaded.tokenizer.encode(passage.text).ends
        # The state at the very first position is no key. (A normalizer can leave nothing of the context.)
        assert encoded.first == max(0, 2 - len(context))
        # Entry e has the state behind the token before its value.
        expected = states[len(context) - 1 + encoded.first : -1].float().numpy()
        assert np.allclose(encoded.keys.values, expected, rtol=1e-6, atol=1e-6)
        assert len(encoded.keys) == len(ids) - encoded.first


def test_the_first_position_of_a_sequence_gives_no_key():
    """It is an attention sink; with a title, or a beginning-of-sequence token, it lies before the context's end."""
    bytes_, metaspace = tiny_loaded("llama", "bytes"), tiny_loaded("llama", "metaspace")
    assert bytes_.tokenizer.prefix == []
    assert [e.first for e in encode(bytes_, [Passage("text"), Passage("text", title="A title")])] == [1, 0]
    assert [e.first for e in encode(metaspace, [Passage("text"), Passage("text", title="A title")])] == [0, 0]


def test_no_value_lies_in_the_title(loaded):
    title, text = "Zanzibar", "The mill grinds rye."
    (encoded,) = encode(loaded, [Passage(text, title=title)])
    assert encoded.token_ids.tolist() == loaded.tokenizer.encode(text).ids


def test_the_title_changes_the_keys_and_not_the_tokens(loaded):
    texts = [Passage("The mill grinds rye.", title=title) for title in ("", "A", "B")]
    plain, titled, other = encode(loaded, texts)
    assert plain.token_ids.tolist() == titled.token_ids.tolist() == other.token_ids.tolist()
    assert not np.allclose(titled.keys.values[1:], other.keys.values[1:])


def test_passages_do_not_depend_on_each_other(loaded):
    """Batches hold passages of different lengths, padded; in float64 not a bit changes that float32 keeps."""
    texts = passages()
    together = encode(loaded, texts)
    alone = [encode(loaded, [passage])[0] for passage in texts]
    backwards = encode(loaded, texts[::-1])[::-1]
    for one, two, three in zip(together, alone, backwards, strict=True):
        assert np.allclose(one.keys.values, two.keys.values, rtol=1e-6, atol=1e-7)
        assert np.allclose(one.keys.values, three.keys.values, rtol=1e-6, atol=1e-7)


def test_control_tokens_in_a_passage_are_plain_text(loaded):
    encoded = encode(loaded, [Passage(CONTROL, title=CONTROL)])[0]
    assert not loaded.tokenizer.control_ids & set(encoded.token_ids.tolist())


@pytest.mark.parametrize("key_format", ["float16", "float32"])
def test_keys_are_rounded_to_their_format(key_format):
    loaded = tiny_loaded()
    (encoded,) = encode(loaded, passages("river"), key_format)
    assert encoded.keys.values.dtype == np.dtype(key_format)
    exact = tiny_loaded().lm.encode([by_hand(loaded, passages("river")[0])[0] + encoded.token_ids.tolist()])[0]
    expected = exact[-1 - len(encoded.keys) : -1].to(getattr(torch, key_format)).numpy()
    assert np.array_equal(encoded.keys.values, expected)


def test_stored_and_fresh_keys_are_the_same_numbers():
    engine = tiny_engine()
    fresh = engine.encode(passages("river", "emoji"))
    stored = engine.encode(passages("river", "emoji"))
    again = tiny_engine().encode(passages("emoji", "river"))[::-1]
    for one, two, three in zip(fresh, stored, again, strict=True):
        assert one is two
        assert np.array_equal(one.keys.values, three.keys.values)


def test_a_key_that_is_not_finite_is_refused():
    loaded = tiny_loaded()
    layer = loaded.lm._model.model.layers[2]
    with torch.no_grad():
        layer.post_attention_layernorm.weight.mul_(1e6)
    encode(loaded, passages("river"), "float32")
    with pytest.raises(KeyFormatError, match=r"passage river is not finite in float16.*key_format='float32'"):
        encode(loaded, passages("river"), "float16")


# --- long passages ----------------------------------------------------------------------------


def test_a_passage_longer_than_the_window_is_read_in_windows(monkeypatch):
    """It stays one passage; each token has one entry, and a key with at least the overlap as its context."""
    loaded = tiny_loaded("llama", max_position_embeddings=64)
    monkeypatch.setattr(encoder_module, "_OVERLAP", 16)
    passage = Passage(" ".join(TEXTS[n] for n in ("lighthouse", "bread", "river")), title="Long", id="long")
    (encoded,) = encode(loaded, [passage])
    ids = loaded.tokenizer.encode(passage.text).ids
    assert len(ids) > 5 * 64
    assert encoded.token_ids.tolist() == ids
    assert encoded.first == 0
    assert len(encoded.keys) == len(ids)
    context = loaded.tokenizer.encode("Long\n").ids
    room = 64 - len(context)
    whole = tiny_loaded("llama").lm.open().read(context + ids[:room]).queries
    assert np.allclose(encoded.keys.values[:room], whole[len(context) - 1 : -1], rtol=1e-5, atol=1e-5)
    # The second window begins 16 tokens before the first one's end.
    second = context + ids[room - 16 : room - 16 + room]
    states = tiny_loaded("llama").lm.open().read(second).queries[len(context) + 16 - 1 : -1]
    assert np.allclose(encoded.keys.values[room : room + len(states)], states, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("length", [60, 61, 62, 63, 64, 65, 90, 111, 112, 113, 160])
def test_windows_leave_no_token_out(monkeypatch, length):
    loaded = tiny_loaded("llama", max_position_embeddings=64)
    monkeypatch.setattr(encoder_module, "_OVERLAP", 16)
    ids = loaded.tokenizer.encode(TEXTS["lighthouse"] + TEXTS["bread"]).ids[:length]
    (encoded,) = encode(loaded, [Passage(loaded.tokenizer.decode(ids), title="T")])
    assert len(encoded.keys) == len(encoded.token_ids)


def test_a_title_that_fills_the_window():
    loaded = tiny_loaded("llama", max_position_embeddings=16)
    with pytest.raises(KeyFormatError, match="title of passage p alone fills"):
        encode(loaded, [Passage("text", title="a very long title " * 20, id="p")])


def test_the_engine_answers_from_a_passage_longer_than_its_window():
    engine = tiny_engine("llama", max_position_embeddings=128)
    passage = Passage(" ".join(TEXTS[n] for n in ("lighthouse", "bread", "river")))
    config = engine.config.replace(max_new_tokens=30, gamma=1e-6, delta=1.0, min_citation_words=0)
    answer = engine.generate("Mill?", passages=[passage], config=config)
    assert answer.stats.attributed_tokens > 0
    for citation in answer.citations:
        assert passage.text[citation.source_start : citation.source_end] == citation.text


# --- addresses --------------------------------------------------------------------------------


def test_an_address_depends_on_title_text_model_and_format_alone():
    passage = Passage("text", title="title", id="a", document_id="d", offset=3, metadata={"x": 1})
    same = Passage("text", title="title", id="b", document_id="e", offset=4)
    assert address(passage, "model", "float16") == address(same, "model", "float16")
    others = {
        address(Passage("text!", title="title"), "model", "float16"),
        address(Passage("text", title="title!"), "model", "float16"),
        address(Passage("etext", title="titl"), "model", "float16"),
        address(passage, "other", "float16"),
        address(passage, "model", "float32"),
        address(passage, "model", "float16"),
    }
    assert len(others) == 6


def test_the_engine_does_not_mix_key_formats_or_titles():
    engine = tiny_engine()
    half = engine.encode(passages("river"), engine.config)[0]
    single = engine.encode(passages("river"), engine.config.replace(key_format="float32"))[0]
    assert half.keys.values.dtype != single.keys.values.dtype


def test_lone_surrogates_have_an_address():
    assert len(address(Passage("a\ud800b"), "model", "float16")) == 64
    assert tiny_engine().encode([Passage("a\ud800b")])[0].token_ids.size > 0


def test_tokens_alone_need_no_fingerprint(monkeypatch):
    """Lossless mode drafts from tokens and never encodes: a 7B model's fingerprint takes seconds."""
    engine = tiny_engine()
    monkeypatch.setattr(type(engine.model.lm), "fingerprint", property(lambda self: pytest.fail("asked for")))
    answer = engine.generate("Which mill?", passages=passages("river"), mode="lossless", max_new_tokens=5)
    assert answer.stats.tokens == 5
