"""Tiny random models and tokenizers: every rule of the engine can be tried on them in milliseconds.

The models are in float64, where equal means equal, and their weights are large enough that
logits are far from flat. The tokenizers are trained on a few own texts.
"""

from __future__ import annotations

import copy
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import takewhile
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from nest_engine import NestConfig, NestEngine
from nest_engine.lm.loading import LoadedModel, wrap_model
from nest_engine.lm.transformers_model import TransformersModel
from tests.texts import TEXTS

CHATML = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a test model.<|im_end|>\n' }}{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""Turns between control tokens, and a system message where there is none: as SmolLM2 has it."""

STRICT = (
    "{{ bos_token }}{% for message in messages %}{% if message['role'] == 'system' %}"
    "{{ raise_exception('System role not supported') }}{% endif %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Roles must alternate user/assistant') }}{% endif %}"
    "{{ '[' + message['role'] + '] ' + message['content'] | trim + eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '[assistant]' }}{% endif %}"
)
"""No system message, and turns must alternate: as Gemma and Mistral have it."""

WINDOW = 12
"""Tokens in the sliding window of the models that have one."""

_SMALL: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
}
_BUILDERS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "mistral": ("Mistral", {"sliding_window": WINDOW}),
    "qwen2": ("Qwen2", {}),
    "qwen2-window": ("Qwen2", {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1}),
    "qwen3": ("Qwen3", {"head_dim": 8}),
    "gemma": ("Gemma", {"head_dim": 8}),
    "gemma3": (
        "Gemma3",
        {
            "head_dim": 8,
            "sliding_window": WINDOW,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "query_pre_attn_scalar": 8,
        },
    ),
    "phi": ("Phi", {"partial_rotary_factor": 0.5}),
    "gpt2": ("GPT2", {}),
    "gpt-neox": ("GPTNeoX", {}),
    "opt": ("OPT", {"ffn_dim": 48, "word_embed_proj_dim": 32}),
    "mixtral": ("Mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None}),
    "qwen2-moe": (
        "Qwen2Moe",
        {
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 24,
            "shared_expert_intermediate_size": 24,
        },
    ),
}
ARCHITECTURES: tuple[str, ...] = tuple(_BUILDERS)
"""Names that `tiny_model` takes."""

SLIDING: tuple[str, ...] = ("mistral", "qwen2-window", "gemma3")
"""Those of them with a sliding window of `WINDOW` tokens in some or all layers."""

MIXTURES: tuple[str, ...] = ("mixtral", "qwen2-moe")
"""Those with several experts in a layer."""

TOKENIZERS: tuple[str, ...] = ("bytes", "metaspace", "unigram", "normalizing")
"""Names that `tiny_tokenizer` takes, besides `"unknown"`, whose vocabulary lacks most characters."""


def tiny_model(
    architecture: str = "llama",
    tokenizer: str = "bytes",
    *,
    seed: int = 0,
    wider: int = 0,
    **changes: Any,
) -> PreTrainedModel:
    """A random model of an architecture, in float64, of its own: change it as you like.

    Args:
        architecture: One of `ARCHITECTURES`.
        tokenizer: The tokenizer whose vocabulary it has.
        seed: Seed of the weights.
        wider: Logits beyond the tokenizer's vocabulary.
        **changes: Changes of the configuration.
    """
    return copy.deepcopy(_build(architecture, tokenizer, seed, wider, json.dumps(changes, sort_keys=True)))


@lru_cache
def _build(architecture: str, tokenizer: str, seed: int, wider: int, changes: str) -> PreTrainedModel:
    prefix, special = _BUILDERS[architecture]
    words = _tokenizer(tokenizer)
    settings = {
        **_SMALL,
        **special,
        "vocab_size": len(words) + wider,
        "bos_token_id": words.bos_token_id,
        "eos_token_id": words.eos_token_id,
        "pad_token_id": words.pad_token_id,
        "tie_word_embeddings": False,
        **json.loads(changes),
    }
    if architecture == "gpt2":
        settings |= {"n_embd": 32, "n_head": 4, "n_layer": settings["num_hidden_layers"], "n_inner": 48}
        settings |= {"n_positions": settings["max_position_embeddings"]}
        settings = {k: v for k, v in settings.items() if k not in _SMALL}
    name = f"{prefix}TextConfig" if architecture == "gemma3" else f"{prefix}Config"
    config = getattr(transformers, name)(**settings)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        kind = "GPT2LMHeadModel" if architecture == "gpt2" else f"{prefix}ForCausalLM"
        model: PreTrainedModel = getattr(transformers, kind)(config).double().eval()
        _randomize(model)
    if architecture in MIXTURES:
        model.set_experts_implementation("eager")  # the fast ones know no float64
    return model


@torch.no_grad()
def _randomize(model: PreTrainedModel) -> None:
    """Large weights instead of the initial ones, so that every part of the model matters."""
    head = model.get_output_embeddings().weight
    for parameter in model.parameters():
        if parameter is head:
            parameter.normal_(0, 3 / parameter.shape[-1] ** 0.5)
        elif parameter.dim() == 1:
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
        else:
            parameter.normal_(0, 1.5 / min(parameter.shape[-2:]) ** 0.5)
    model.get_input_embeddings().weight.normal_(0, 1)


def tiny_tokenizer(name: str = "bytes", *, chat_template: str | None = CHATML) -> PreTrainedTokenizerFast:
    """A tokenizer with `<|im_start|>` and `<|im_end|>` (the end token) as control tokens.

    Args:
        name: `"bytes"`: byte-level BPE as in GPT-2. `"metaspace"`: BPE as Llama 2 has it, with
            BOS, a space before the text and byte fallback. `"unigram"`: the same with a Unigram
            model. `"normalizing"`: byte-level, but NFKC, lowercase and stripped. `"unknown"`:
            Unigram without byte fallback, so that most characters are `<unk>`.
        chat_template: The chat template, if any.
    """
    tokenizer = copy.deepcopy(_tokenizer(name))
    tokenizer.chat_template = chat_template
    return tokenizer


@lru_cache
def _tokenizer(name: str) -> PreTrainedTokenizerFast:
    build = {
        "bytes": _bytes,
        "normalizing": _normalizing,
        "metaspace": _metaspace,
        "unigram": lambda: _unigram(fallback=True),
        "unknown": lambda: _unigram(fallback=False),
    }[name]
    byte_level = name in ("bytes", "normalizing")
    return PreTrainedTokenizerFast(
        tokenizer_object=build(),
        bos_token="<|endoftext|>" if byte_level else "<s>",
        eos_token="<|im_end|>",
        unk_token="<|endoftext|>" if byte_level else "<unk>",
        pad_token="<|endoftext|>" if byte_level else "</s>",
        additional_special_tokens=["<|im_start|>", "<|im_end|>"],
        clean_up_tokenization_spaces=False,
    )


def _bytes(normalizer: normalizers.Normalizer | None = None) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)
    trainer = trainers.BpeTrainer(
        vocab_size=560,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_training_texts(), trainer)
    return tokenizer


def _normalizing() -> Tokenizer:
    return _bytes(normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase(), normalizers.Strip()]))


def _metaspace() -> Tokenizer:
    vocabulary, merges = _metaspace_pieces()
    return _sentencepiece(
        models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True), byte_fallback=True
    )


def _unigram(*, fallback: bool) -> Tokenizer:
    vocabulary, _ = _metaspace_pieces()
    pieces = [(piece, -3 - 0.004 * number) for piece, number in vocabulary.items()]
    if not fallback:  # the control pieces, and those with ASCII characters only
        pieces = [(p, s) for p, s in pieces if vocabulary[p] < 3 or (p.replace("▁", "a").isascii() and "<0x" not in p)]
    return _sentencepiece(models.Unigram(pieces, unk_id=0, byte_fallback=fallback), byte_fallback=fallback)


@lru_cache
def _metaspace_pieces() -> tuple[dict[str, int], list[tuple[str, str]]]:
    """The vocabulary and merges of a BPE over words with a `▁` before them, with pieces for all bytes."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    counts = Counter("".join(_training_texts()))
    ascii_characters = ["▁", *(chr(code) for code in range(33, 127))]
    others = sorted(set(counts) - set(ascii_characters) - {" ", "\n", "\r", "\t"}, key=lambda c: (-counts[c], c))
    alphabet = [*ascii_characters, *others[: 160 - len(ascii_characters)]]
    trainer = trainers.BpeTrainer(
        vocab_size=500,
        special_tokens=["<unk>", "<s>", "</s>"],
        initial_alphabet=alphabet,
        limit_alphabet=len(alphabet),  # chosen here: the trainer breaks its ties another way in each process
        show_progress=False,
    )
    tokenizer.train_from_iterator(_training_texts(), trainer)
    model = json.loads(tokenizer.to_str())["model"]
    vocabulary: dict[str, int] = dict(sorted(model["vocab"].items(), key=lambda item: item[1]))
    for byte in range(256):
        vocabulary[f"<0x{byte:02X}>"] = len(vocabulary)
    return vocabulary, [tuple(merge) for merge in model["merges"]]


def _sentencepiece(model: models.Model, *, byte_fallback: bool) -> Tokenizer:
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    steps: list[decoders.Decoder] = [decoders.Replace("▁", " ")]
    steps += [decoders.ByteFallback()] if byte_fallback else []
    tokenizer.decoder = decoders.Sequence([*steps, decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    control = ["<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>"]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in control])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))]
    )
    return tokenizer


def _training_texts() -> list[str]:
    return [text for name, text in TEXTS.items() if name != "control"]


def tiny_loaded(
    architecture: str = "llama",
    tokenizer: str = "bytes",
    *,
    key_layer: str | int = "ffn",
    chat_template: str | None = CHATML,
    seed: int = 0,
    wider: int = 0,
    **changes: Any,
) -> LoadedModel:
    """A tiny model and its tokenizer, wrapped for the engine: see `tiny_model` and `tiny_tokenizer`."""
    model = tiny_model(architecture, tokenizer, seed=seed, wider=wider, **changes)
    words = tiny_tokenizer(tokenizer, chat_template=chat_template)
    return wrap_model(model, words, name=f"tiny-{architecture}", key_layer=key_layer)


def tiny_engine(
    architecture: str = "llama",
    tokenizer: str = "bytes",
    config: NestConfig | None = None,
    **arguments: Any,
) -> NestEngine:
    """An engine over a tiny random model, of its own; `arguments` are those of `tiny_loaded`."""
    config = config or NestConfig(max_new_tokens=40)
    return NestEngine(tiny_loaded(architecture, tokenizer, key_layer=config.key_layer, **arguments), config)


def save_tiny(folder: Path, architecture: str = "llama", tokenizer: str = "bytes", **arguments: Any) -> Path:
    """Write a tiny model and its tokenizer into a folder, as `from_pretrained` reads them."""
    tiny_model(architecture, tokenizer, **arguments).save_pretrained(folder)
    tiny_tokenizer(tokenizer).save_pretrained(folder)
    return folder


def greedy(lm: TransformersModel, prompt: Sequence[int], new_tokens: int, **arguments: Any) -> list[int]:
    """What transformers itself generates greedily behind a prompt, without the token that ends it."""
    return greedy_batch(lm, [prompt], new_tokens, **arguments)[0]


def greedy_batch(
    lm: TransformersModel, prompts: Sequence[Sequence[int]], new_tokens: int, **arguments: Any
) -> list[list[int]]:
    """The same for several prompts of one length."""
    settings: Mapping[str, Any] = {"do_sample": False, "max_new_tokens": new_tokens, "num_beams": 1, **arguments}
    tokens = torch.tensor([list(prompt) for prompt in prompts])
    mask = torch.ones_like(tokens)
    output = lm._model.generate(tokens, attention_mask=mask, pad_token_id=0, **settings)
    rows: list[list[int]] = output[:, tokens.shape[1] :].tolist()
    return [list(takewhile(lambda token: token not in lm.end_ids, row)) for row in rows]
