"""Turn a GGUF file into an ordinary Hugging Face model folder.

transformers can load GGUF files itself, but takes half a minute for a small model each
time, loses parts of the tokenizer, and marks the model as quantized. The conversion is
done once; the folder then loads like any other.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nest_engine.errors import ModelNotFoundError, UnsupportedModelError

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

# Pre-tokenizers (GGUF key `tokenizer.ggml.pre`) that split every digit off before the GPT-2
# pattern is applied. The GGUF loader of transformers drops this step, so "\n\n1." would
# become other tokens than those the model was trained on.
_DIGIT_SPLITTERS = frozenset({"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone"})
# Tokens that end a turn or a document, whichever of them the model's vocabulary has.
_END_TOKENS = ("<|im_end|>", "<|eot_id|>", "<|end_of_text|>", "<|endoftext|>", "</s>")


def convert_gguf(file: Path, target: Path, *, progress: bool = True) -> None:
    """Convert a GGUF file to float32 safetensors with tokenizer and generation settings.

    Weights are stored in float32: that holds the dequantized values exactly.

    Args:
        file: The GGUF file.
        target: Folder to write into; made if needed. It may be left half written on
            errors, so give a temporary one and move it when this returns.
        progress: Show progress bars on stderr.

    Raises:
        ModelNotFoundError: If the file does not exist.
        UnsupportedModelError: If the packages that read GGUF are missing, or transformers
            cannot read this file.
    """
    if not file.is_file():
        raise ModelNotFoundError(f"no GGUF file at {file}: check the path")
    _require_readers()
    with _progress_bars(progress):
        tokenizer = _load("AutoTokenizer", file)
        model = _load("AutoModelForCausalLM", file)
        _restore_pre_tokenizer(tokenizer, _metadata(file, "tokenizer.ggml.pre"))
        tokenizer.model_max_length = model.config.max_position_embeddings
        tokenizer.save_pretrained(str(target))
        _save_model(model, tokenizer, target)


def _require_readers() -> None:
    """Check for the packages that reading GGUF needs, before any long work."""
    missing = [name for name in ("gguf", "accelerate") if importlib.util.find_spec(name) is None]
    if missing:
        raise UnsupportedModelError(
            f'reading a GGUF file needs {" and ".join(missing)}: run pip install "nest-rag[demo]"'
        )


def _load(auto_class: str, file: Path) -> Any:
    """Load a model or a tokenizer from a GGUF file, with transformers' errors made readable."""
    import torch
    import transformers

    options: dict[str, Any] = {"dtype": torch.float32} if auto_class == "AutoModelForCausalLM" else {}
    try:
        return getattr(transformers, auto_class).from_pretrained(str(file.parent), gguf_file=file.name, **options)
    except (OSError, ValueError, KeyError, IndexError, TypeError, RuntimeError, ImportError) as error:
        raise UnsupportedModelError(
            f"transformers cannot read {file.name}: {error}; use a safetensors version of this model, "
            "or a GGUF of an architecture that transformers supports"
        ) from error


def _metadata(file: Path, key: str) -> Any:
    """One value of the GGUF header, or None."""
    gguf: Any = importlib.import_module("gguf")
    field = gguf.GGUFReader(str(file)).fields.get(key)
    return None if field is None else field.contents()


def _restore_pre_tokenizer(tokenizer: PreTrainedTokenizerBase, kind: object) -> None:
    """Put back the digit splitting that the GGUF loader drops."""
    from tokenizers import pre_tokenizers

    if kind not in _DIGIT_SPLITTERS:
        return
    backend: Any = tokenizer.backend_tokenizer
    digits = pre_tokenizers.Digits(individual_digits=True)
    backend.pre_tokenizer = pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])


def _save_model(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, target: Path) -> None:
    """Save the weights as an ordinary, unquantized model."""
    from transformers import GenerationConfig

    model.is_quantized = False  # type: ignore[assignment]  # set by the loader; save_pretrained refuses it
    for holder, name in (
        (model.config, "quantization_config"),
        (model, "hf_quantizer"),
        (model, "quantization_method"),
    ):
        if hasattr(holder, name):
            delattr(holder, name)
    model.config.name_or_path = ""  # the name in the header says nothing to users
    model.generation_config = GenerationConfig(
        bos_token_id=tokenizer.bos_token_id, eos_token_id=_end_ids(tokenizer), pad_token_id=tokenizer.pad_token_id
    )
    model.save_pretrained(str(target))


def _end_ids(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Ids of the tokens that end an answer, the tokenizer's own first."""
    vocabulary = tokenizer.get_vocab()
    found = [vocabulary[token] for token in _END_TOKENS if token in vocabulary]
    first = [] if tokenizer.eos_token_id is None else [int(tokenizer.eos_token_id)]
    return list(dict.fromkeys(first + found))


@contextlib.contextmanager
def _progress_bars(show: bool) -> Iterator[None]:
    """Silence the progress bars of transformers while `show` is false."""
    if show:
        yield
        return
    from transformers.utils import logging as hf_logging

    reader: Any = importlib.import_module("transformers.modeling_gguf_pytorch_utils")
    had_bars, bar = hf_logging.is_progress_bar_enabled(), getattr(reader, "tqdm", None)
    hf_logging.disable_progress_bar()
    reader.tqdm = lambda items, **_: items  # this one bar ignores the library's own switch
    try:
        yield
    finally:
        reader.tqdm = bar
        if had_bars:
            hf_logging.enable_progress_bar()
