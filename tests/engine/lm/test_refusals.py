"""Models that NEST cannot run on are refused at load, with a message that says why and what to do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import transformers
from transformers import AutoModelForCausalLM

from nest_engine import NestConfig, NestEngine
from nest_engine.errors import ConfigError, ModelNotFoundError, NestError, UnsupportedModelError
from nest_engine.lm.loading import load_model, wrap_model
from nest_engine.lm.tokenizer import Tokenizer
from tests.tiny import save_tiny, tiny_model, tiny_tokenizer

TOKEN_IDS = {"bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 0}


def load(folder: Path, **arguments):
    return load_model(folder, progress=False, **arguments)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("tiny-llama"))


def save(model, folder: Path) -> Path:
    model.save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


def t5():
    config = transformers.T5Config(
        vocab_size=560, d_model=16, d_ff=16, d_kv=8, num_layers=2, num_heads=2, decoder_start_token_id=0
    )
    return transformers.T5ForConditionalGeneration(config)


def bart():
    config = transformers.BartConfig(
        vocab_size=560, d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=16, decoder_ffn_dim=16, **TOKEN_IDS,
    )  # fmt: skip
    return transformers.BartForConditionalGeneration(config)


def mamba():
    config = transformers.MambaConfig(vocab_size=560, hidden_size=16, num_hidden_layers=2, state_size=4, **TOKEN_IDS)
    return transformers.MambaForCausalLM(config)


def falcon_mamba():
    config = transformers.FalconMambaConfig(
        vocab_size=560, hidden_size=16, num_hidden_layers=2, state_size=4, **TOKEN_IDS
    )
    return transformers.FalconMambaForCausalLM(config)


def rwkv():
    config = transformers.RwkvConfig(
        vocab_size=560, context_length=64, hidden_size=16, attention_hidden_size=16, num_hidden_layers=2,
        intermediate_size=32, **TOKEN_IDS,
    )  # fmt: skip
    return transformers.RwkvForCausalLM(config)


def recurrent_gemma():
    config = transformers.RecurrentGemmaConfig(
        vocab_size=560, hidden_size=16, num_hidden_layers=3, num_attention_heads=2, num_key_value_heads=1,
        intermediate_size=32, lru_width=16, attention_window_size=16, **TOKEN_IDS,
    )  # fmt: skip
    return transformers.RecurrentGemmaForCausalLM(config)


def qwen3_next():
    config = transformers.Qwen3NextConfig(
        vocab_size=560, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, head_dim=8,
        intermediate_size=32, moe_intermediate_size=16, shared_expert_intermediate_size=16, num_experts=2,
        num_experts_per_tok=1, linear_key_head_dim=8, linear_value_head_dim=8, linear_num_key_heads=2,
        linear_num_value_heads=2, layer_types=["linear_attention", "full_attention"], **TOKEN_IDS,
    )  # fmt: skip
    return transformers.Qwen3NextForCausalLM(config)


ENCODER_DECODERS = {"t5": t5, "bart": bart}
RECURRENT = {"mamba": mamba, "falcon-mamba": falcon_mamba, "recurrent-gemma": recurrent_gemma, "qwen3-next": qwen3_next}
if hasattr(transformers, "RwkvForCausalLM"):
    RECURRENT["rwkv"] = rwkv


@pytest.mark.parametrize("name", ENCODER_DECODERS)
def test_an_encoder_decoder_is_refused_before_it_is_loaded(tmp_path, monkeypatch, name):
    save(ENCODER_DECODERS[name](), tmp_path)
    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", lambda *_, **__: pytest.fail("loaded"))
    with pytest.raises(UnsupportedModelError, match=r"encoder-decoder.*decoder-only"):
        load(tmp_path)


@pytest.mark.parametrize("name", ENCODER_DECODERS)
def test_an_encoder_decoder_that_is_loaded_already_is_refused(name):
    with pytest.raises(UnsupportedModelError, match=r"encoder-decoder.*decoder-only"):
        wrap_model(ENCODER_DECODERS[name](), tiny_tokenizer())


@pytest.mark.parametrize("name", RECURRENT)
def test_a_model_that_cannot_go_back_is_refused(tmp_path, name):
    with pytest.raises(UnsupportedModelError, match="recurrent state") as caught:
        wrap_model(RECURRENT[name](), tiny_tokenizer())
    assert "attention layers" in str(caught.value)


def test_a_recurrent_model_in_a_folder_is_refused_at_load(tmp_path):
    save(mamba(), tmp_path)
    with pytest.raises(UnsupportedModelError, match="recurrent state"):
        NestEngine.from_pretrained(tmp_path)


def test_a_tokenizer_without_offsets_is_refused():
    class Slow:
        all_special_ids = ()

    with pytest.raises(UnsupportedModelError, match=r"Slow is a slow tokenizer.*tokenizer\.json"):
        Tokenizer(Slow())
    with pytest.raises(UnsupportedModelError, match="slow tokenizer"):
        wrap_model(tiny_model(), Slow())


@pytest.mark.parametrize(
    "name",
    [
        "/nowhere/model", "./no-such-model", "~/no-such-model", "no-such/model", "no-such-model", "a/b/c",
        "/nowhere/model.gguf", "model.gguf", "",
    ],
)  # fmt: skip
def test_a_model_that_is_not_there(name):
    with pytest.raises(ModelNotFoundError) as caught:
        NestEngine.from_pretrained(name)
    message = str(caught.value)
    assert repr(name) in message
    assert "smollm2-135m-instruct" in message
    assert ".gguf" in message


def test_an_empty_folder_is_no_model(tmp_path):
    with pytest.raises(NestError, match=str(tmp_path)):
        load(tmp_path)


def test_a_folder_without_weights(tmp_path, folder):
    for file in folder.iterdir():
        if file.suffix == ".json":
            (tmp_path / file.name).write_bytes(file.read_bytes())
    with pytest.raises(NestError, match=str(tmp_path)):
        load(tmp_path)


def test_a_folder_without_tokenizer(tmp_path):
    tiny_model().save_pretrained(tmp_path)
    with pytest.raises(NestError, match=str(tmp_path)):
        load(tmp_path)


def test_a_folder_with_damaged_configuration(tmp_path):
    (tmp_path / "config.json").write_text("{not json")
    with pytest.raises(NestError, match=str(tmp_path)):
        load(tmp_path)


def test_a_folder_with_truncated_weights(tmp_path, folder):
    for file in folder.iterdir():
        data = file.read_bytes()
        (tmp_path / file.name).write_bytes(data[: len(data) // 2] if file.suffix == ".safetensors" else data)
    with pytest.raises(NestError, match=str(tmp_path)):
        load(tmp_path)


def test_a_model_that_is_no_language_model(tmp_path):
    config = transformers.ViTConfig(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
    transformers.ViTModel(config).save_pretrained(tmp_path)
    tiny_tokenizer().save_pretrained(tmp_path)
    with pytest.raises(UnsupportedModelError, match="no causal language model"):
        load(tmp_path)


def test_an_architecture_of_its_own_code(tmp_path, folder):
    """A model that needs its own code to run is refused, and the code is not run."""
    save_tiny(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config |= {
        "model_type": "evil",
        "auto_map": {"AutoConfig": "evil.EvilConfig", "AutoModelForCausalLM": "evil.Evil"},
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "evil.py").write_text("raise SystemExit('code was run')")
    with pytest.raises(UnsupportedModelError):
        load(tmp_path)


def test_remote_code_is_refused(folder):
    with pytest.raises(ConfigError, match="trust_remote_code is off"):
        load(folder, model_arguments={"trust_remote_code": True})


def test_remote_code_off_is_fine(folder):
    assert load(folder, model_arguments={"trust_remote_code": False}).lm.key_dim == 32


def test_device_and_device_map_contradict(folder):
    with pytest.raises(ConfigError, match="device or device_map, not both"):
        NestEngine.from_pretrained(folder, device="cpu", device_map="auto")


@pytest.mark.parametrize("dtype", ["float99", "nn", "Tensor"])
def test_an_unknown_dtype(folder, dtype):
    with pytest.raises(ConfigError, match=r"float32, bfloat16, float16 or auto"):
        load(folder, dtype=dtype)


def test_dtypes(folder):
    assert load(folder).lm._model.dtype == torch.float32
    assert load(folder, dtype="auto").lm._model.dtype == torch.float64
    assert load(folder, dtype="bfloat16").lm._model.dtype == torch.bfloat16
    assert load(folder, dtype=torch.float16).lm._model.dtype == torch.float16
    assert load(folder, device_map="cpu", dtype="float64").lm._model.dtype == torch.float64


@pytest.mark.parametrize("key_layer", [3, 99])
def test_a_layer_that_is_not_there(folder, key_layer):
    with pytest.raises(ConfigError, match="layers 0 to 2"):
        NestEngine.from_pretrained(folder, config=NestConfig(key_layer=key_layer))


def test_penultimate_needs_two_layers():
    with pytest.raises(ConfigError, match=r"at least 2 layers.*'ffn'"):
        wrap_model(tiny_model(num_hidden_layers=1), tiny_tokenizer(), key_layer="penultimate")


def test_a_feed_forward_network_under_an_unknown_name():
    model = tiny_model()
    for layer in model.model.layers:
        layer.strange, layer.mlp = layer.mlp, None
        del layer.mlp
        layer.forward = None
    with pytest.raises(UnsupportedModelError, match="key_layer='penultimate'"):
        wrap_model(model, tiny_tokenizer())


def test_a_model_without_a_list_of_layers():
    model = tiny_model()
    model.config.num_hidden_layers = 5
    with pytest.raises(UnsupportedModelError, match="no list of 5 decoder layers"):
        wrap_model(model, tiny_tokenizer())


def test_a_folder_loads_and_answers(folder):
    engine = NestEngine.from_pretrained(str(folder), config=NestConfig(max_new_tokens=4, mode="lm"), dtype="float64")
    assert engine.generate("Hello").stats.tokens > 0
