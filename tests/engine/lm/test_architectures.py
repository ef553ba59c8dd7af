"""Every architecture: the key tap, the cache, the encoder, and equality with transformers' own decoding."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from nest_engine import NestConfig
from nest_engine.datastore.codec import FloatCodec
from nest_engine.datastore.encoded import EncodedPassage
from nest_engine.datastore.token_index import TokenIndex
from nest_engine.datastore.transform import Identity
from nest_engine.decoding.loop import DecodeLoop
from nest_engine.lm.tap import find_feed_forward, find_layers
from nest_engine.lm.transformers_model import TransformersModel
from tests.engine.runs import open_index
from tests.texts import CHINESE, LIGHTHOUSE, passages
from tests.tiny import ARCHITECTURES, MIXTURES, SLIDING, WINDOW, greedy, tiny_engine, tiny_loaded, tiny_model

MODES = ("lm", "ra", "knn-lm", "nest", "ra-nest", "lossless")
NEW_TOKENS = 40


@pytest.fixture(scope="module", params=ARCHITECTURES)
def engine(request):
    """An engine of each architecture."""
    return tiny_engine(request.param, config=NestConfig(max_new_tokens=NEW_TOKENS))


@pytest.fixture
def lm(engine) -> TransformersModel:
    return engine.model.lm


@pytest.fixture
def prompt(engine) -> list[int]:
    return engine.model.tokenizer.encode("When was the lighthouse at Cape Morwen built? " + CHINESE[:12]).ids


def hidden_states(model, tokens: list[int]) -> list[torch.Tensor]:
    with torch.no_grad():
        output = model(input_ids=torch.tensor([tokens]), output_hidden_states=True, use_cache=False)
    return [state[0] for state in output.hidden_states]


def queries(lm: TransformersModel, tokens: list[int]) -> torch.Tensor:
    return lm.open().read(tokens).queries


def rms_norm(x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    return weight * x / (x.square().mean(-1, keepdim=True) + epsilon).sqrt()


def layer_norm(x: torch.Tensor, module: torch.nn.LayerNorm) -> torch.Tensor:
    centered = x - x.mean(-1, keepdim=True)
    return module.weight * centered / (centered.square().mean(-1, keepdim=True) + module.eps).sqrt() + module.bias


def equal(left: torch.Tensor, right: torch.Tensor) -> bool:
    return left.shape == right.shape and torch.allclose(left, right, rtol=1e-9, atol=1e-10)


# --- the tap, by hand -------------------------------------------------------------------------


def causal_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """float [heads, n, dim] each; written out."""
    scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    hidden = torch.ones_like(scores, dtype=torch.bool).triu(1)
    return torch.softmax(scores.masked_fill(hidden, -torch.inf), -1) @ v


def llama_feed_forward_input(layer, x: torch.Tensor, config) -> torch.Tensor:
    """Attention of a Llama layer from its weights, the residual, and the second norm."""
    n, heads, groups = len(x), config.num_attention_heads, config.num_key_value_heads
    size = config.hidden_size // heads
    normed = rms_norm(x, layer.input_layernorm.weight, config.rms_norm_eps)

    def split(weight: torch.Tensor, count: int) -> torch.Tensor:
        return (normed @ weight.T).view(n, count, size).transpose(0, 1)

    angles = torch.arange(n)[:, None] / 10_000 ** (torch.arange(0, size, 2) / size)
    cos, sin = torch.cat([angles, angles], -1).cos().double(), torch.cat([angles, angles], -1).sin().double()

    def rotate(h: torch.Tensor) -> torch.Tensor:
        left, right = h[..., : size // 2], h[..., size // 2 :]
        return h * cos + torch.cat([-right, left], -1) * sin

    attention = layer.self_attn
    q = rotate(split(attention.q_proj.weight, heads))
    k = rotate(split(attention.k_proj.weight, groups)).repeat_interleave(heads // groups, 0)
    v = split(attention.v_proj.weight, groups).repeat_interleave(heads // groups, 0)
    mixed = causal_attention(q, k, v).transpose(0, 1).reshape(n, -1)
    residual = x + mixed @ attention.o_proj.weight.T
    return rms_norm(residual, layer.post_attention_layernorm.weight, config.rms_norm_eps)


def gpt2_feed_forward_input(layer, x: torch.Tensor, config) -> torch.Tensor:
    n, heads = len(x), config.n_head
    qkv = layer_norm(x, layer.ln_1) @ layer.attn.c_attn.weight + layer.attn.c_attn.bias
    q, k, v = (part.view(n, heads, -1).transpose(0, 1) for part in qkv.chunk(3, -1))
    mixed = causal_attention(q, k, v).transpose(0, 1).reshape(n, -1)
    residual = x + mixed @ layer.attn.c_proj.weight + layer.attn.c_proj.bias
    return layer_norm(residual, layer.ln_2)


BY_HAND = {"llama": llama_feed_forward_input, "gpt2": gpt2_feed_forward_input}


@torch.no_grad()
@pytest.mark.parametrize("key_layer", ["ffn", 0, 1])
@pytest.mark.parametrize("architecture", BY_HAND)
def test_keys_are_the_feed_forward_input_computed_by_hand(architecture, key_layer):
    loaded = tiny_loaded(architecture, key_layer=key_layer)
    tokens = loaded.tokenizer.encode(LIGHTHOUSE[:80]).ids
    model = loaded.lm._model
    number = 2 if key_layer == "ffn" else key_layer
    layers = model.transformer.h if architecture == "gpt2" else model.model.layers
    by_hand = BY_HAND[architecture](layers[number], hidden_states(model, tokens)[number], model.config)
    # The rotary table of the model is in float32.
    assert torch.allclose(queries(loaded.lm, tokens), by_hand, rtol=1e-4, atol=1e-4)
    wrong = BY_HAND[architecture](layers[1 - number % 2], hidden_states(model, tokens)[1 - number % 2], model.config)
    assert not torch.allclose(queries(loaded.lm, tokens), wrong, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_penultimate_is_the_output_of_the_last_but_one_layer(architecture):
    loaded = tiny_loaded(architecture, key_layer="penultimate")
    tokens = loaded.tokenizer.encode(LIGHTHOUSE[:60]).ids
    assert equal(queries(loaded.lm, tokens), hidden_states(loaded.lm._model, tokens)[-2])


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_tapped_module_belongs_to_the_last_layer(architecture):
    """What the tapped module does with its input, and the rest of the layer, ends in the last hidden state."""
    loaded = tiny_loaded(architecture)
    model, tokens = loaded.lm._model, loaded.tokenizer.encode(LIGHTHOUSE[:60]).ids
    layers = find_layers(model, model.config.num_hidden_layers)
    assert loaded.lm._tap.module is find_feed_forward(layers[2], "")
    before = queries(loaded.lm, tokens)
    with torch.no_grad():  # the last layer's own output cannot change its feed-forward network's input ...
        for parameter in loaded.lm._tap.module.parameters():
            parameter.mul_(0.5)
    assert equal(queries(loaded.lm, tokens), before)
    with torch.no_grad():  # ... and that of the layer before does
        for parameter in find_feed_forward(layers[1], "").parameters():
            parameter.mul_(0.5)
    assert not equal(queries(loaded.lm, tokens), before)


# --- equality with transformers ---------------------------------------------------------------


def test_every_mode_without_passages_is_greedy_generation(engine, lm, prompt):
    expected = greedy(lm, prompt, NEW_TOKENS)
    assert len(set(expected)) > 3, "a model that says one thing only tests little"
    for mode in MODES if engine.model.name in ("tiny-llama", "tiny-mistral") else ("lm", "nest"):
        loop = DecodeLoop(lm, prompt, None, engine.config.replace(mode=mode))
        assert [e.token for e in loop.run()] == expected, mode
        assert loop.reader.counts.lm_calls == len(expected) + (loop.finish == "end")


def test_lossless_is_greedy_generation(engine, lm, prompt):
    config = engine.config.replace(mode="lossless")
    texts = passages("lighthouse", "bread", "chinese")
    index = open_index(engine, texts, config)
    loop = DecodeLoop(lm, prompt, index, config)
    assert [e.token for e in loop.run()] == greedy(lm, prompt, NEW_TOKENS)


def test_lossless_accepts_a_passage_that_says_what_the_model_would(engine, lm, prompt):
    """Drafts come true here, so the cache is filled and cropped by whole spans, across a window's edge too."""

    expected = greedy(lm, prompt, NEW_TOKENS)
    broken = [*expected[:25], expected[25] + 1, *expected[26:]]
    states = queries(lm, [*prompt, *broken])[len(prompt) - 1 : -1]
    codec = FloatCodec("float32")
    encoded = EncodedPassage(
        np.array(broken, dtype=np.int32), np.arange(1, len(broken) + 1, dtype=np.int32), codec.encode(states), 0
    )
    accepted = set()
    for chunk in (1, 2, 7, 64):
        config = engine.config.replace(mode="lossless", draft_chunk=chunk, key_format="float32")
        index = TokenIndex([encoded], Identity(), device=lm.device, dtype=lm.dtype, codec=codec)
        loop = DecodeLoop(lm, prompt, index, config)
        assert [e.token for e in loop.run()] == expected, f"draft_chunk={chunk}"
        accepted.add(loop.reader.counts.accepted)
    assert max(accepted) > 20


def test_readings_do_not_depend_on_how_tokens_are_cut_up(lm, prompt):
    tokens = [*prompt, *greedy(lm, prompt, 20)]
    whole = lm.open().read(tokens)
    for size in (1, 5, WINDOW, WINDOW + 1):
        context, logits, keys = lm.open(), [], []
        for start in range(0, len(tokens), size):
            reading = context.read(tokens[start : start + size])
            logits.append(reading.logits)
            keys.append(reading.queries)
        assert context.length == len(tokens)
        assert equal(torch.cat(logits), whole.logits), f"pieces of {size}"
        assert equal(torch.cat(keys), whole.queries), f"pieces of {size}"


def test_crop_and_read_again_equals_a_fresh_read(lm, prompt):
    """Wrong guesses are forgotten, however many, and on both sides of a sliding window's edge."""
    tokens = [*prompt, *greedy(lm, prompt, 20)]
    whole = lm.open().read(tokens)
    for at in (1, WINDOW - 2, WINDOW - 1, WINDOW, WINDOW + 1, len(tokens) - 1):
        for wrong in (1, WINDOW, 2 * WINDOW + 3):
            context = lm.open()
            context.read(tokens[:at])
            context.read([5 + i for i in range(wrong)])
            context.crop(at)
            assert context.length == at
            again = context.read(tokens[at:])
            assert equal(again.logits, whole.logits[at:]), f"{wrong} wrong tokens behind {at}"
            assert equal(again.queries, whole.queries[at:])


def test_crop_to_the_middle_of_a_reading(lm, prompt):
    tokens = [*prompt, *greedy(lm, prompt, 20)]
    whole = lm.open().read(tokens)
    context = lm.open()
    context.read(tokens[:10])
    context.read([*tokens[10:17], 7, 8, 9])  # the first seven were right
    context.crop(17)
    assert equal(context.read(tokens[17:]).logits, whole.logits[17:])


def test_only_the_last_row_when_asked(lm, prompt):
    whole, last = lm.open().read(prompt), lm.open().read(prompt, last_only=True)
    assert equal(last.logits, whole.logits[-1:])
    assert equal(last.queries, whole.queries[-1:])


@pytest.mark.parametrize("architecture", SLIDING)
def test_the_sliding_window_matters(architecture):
    """Else the tests above would say nothing about it: without the window the model says something else."""
    loaded = tiny_loaded(architecture)
    wide = tiny_loaded(architecture, sliding_window=500)
    tokens = loaded.tokenizer.encode(LIGHTHOUSE[:90]).ids
    assert len(tokens) > 2 * WINDOW
    left, right = loaded.lm.open().read(tokens).logits, wide.lm.open().read(tokens).logits
    assert equal(left[:WINDOW], right[:WINDOW])
    assert not equal(left[2 * WINDOW :], right[2 * WINDOW :])


# --- the encoder ------------------------------------------------------------------------------


def test_encoded_keys_are_the_queries_of_a_plain_read(engine, lm):
    tokenizer = engine.model.tokenizer
    sequences = [tokenizer.encode(text.text).ids for text in passages()] + [[7], [8, 9]]
    encoded = lm.encode(sequences)
    for sequence, keys in zip(sequences, encoded, strict=True):
        assert keys.shape == (len(sequence), lm.key_dim)
        assert equal(keys, queries(lm, sequence))


def test_encoding_computes_no_head_and_nothing_behind_the_tap(lm):
    called = []
    hooks = [
        module.register_forward_hook(lambda module, args, output: called.append(module))
        for module in (lm._model.get_output_embeddings(), lm._tap.module)
    ]
    try:
        lm.encode([[5, 6, 7], [8, 9]])
        assert called == []
        lm.open().read([5, 6, 7])
        assert len(called) >= 2
    finally:
        for hook in hooks:
            hook.remove()


def test_encoding_stops_at_a_middle_layer():
    loaded = tiny_loaded("llama", key_layer=0)
    later = []
    for layer in loaded.lm._model.model.layers[1:]:
        layer.register_forward_pre_hook(lambda module, args: later.append(module))
    loaded.lm.encode([[5, 6, 7]])
    assert later == []


def test_encoding_leaves_the_model_usable(lm, prompt):
    before = lm.open().read(prompt)
    lm.encode([prompt])
    assert equal(lm.open().read(prompt).logits, before.logits)


@pytest.mark.parametrize("architecture", MIXTURES)
def test_the_router_sees_what_the_tap_sees(architecture):
    """A mixture of experts is one feed-forward network: the tap is before its router."""
    loaded = tiny_loaded(architecture)
    assert type(loaded.lm._tap.module).__name__.endswith("SparseMoeBlock")


def test_a_model_in_training_mode_is_put_into_evaluation_mode():
    model = tiny_model("gpt2", resid_pdrop=0.5, embd_pdrop=0.5, attn_pdrop=0.5).train()
    lm = TransformersModel(model)
    assert equal(lm.open().read([5, 6, 7]).logits, lm.open().read([5, 6, 7]).logits)


def test_low_precision_readings_are_in_float32():
    lm = TransformersModel(tiny_model("llama").to(torch.bfloat16))
    reading = lm.open().read([5, 6, 7])
    assert reading.logits.dtype == reading.queries.dtype == lm.dtype == torch.float32


@pytest.mark.parametrize("architecture", ["llama", "opt", "gpt2"])
def test_context_window_and_end_tokens(architecture):
    loaded = tiny_loaded(architecture, max_position_embeddings=77)
    assert loaded.lm.context_window == 77
    assert loaded.lm.end_ids == {2}
    loaded.lm._model.generation_config.eos_token_id = [2, 0]
    assert loaded.lm.end_ids == {0, 2}


def test_a_peft_adapter_is_seen_through():
    from peft import LoraConfig, get_peft_model

    plain = tiny_loaded("llama")
    adapted = get_peft_model(tiny_model("llama"), LoraConfig(target_modules=["q_proj"], init_lora_weights=False))
    lm = TransformersModel(adapted.double())
    tokens = plain.tokenizer.encode(LIGHTHOUSE[:60]).ids
    assert not equal(queries(lm, tokens), queries(plain.lm, tokens))
    assert equal(queries(lm, tokens), lm.encode([tokens])[0])
    assert lm.open().read(tokens, last_only=True).logits.shape[0] == 1
    with adapted.disable_adapter():
        assert equal(queries(lm, tokens), queries(plain.lm, tokens))
