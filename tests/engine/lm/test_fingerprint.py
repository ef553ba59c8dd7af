"""The fingerprint tells apart whatever changes keys, and nothing else."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model, inject_adapter_in_model
from torch import nn

from nest_engine.lm.fingerprint import fingerprint_model
from nest_engine.lm.loading import load_model, wrap_model
from tests.tiny import save_tiny, tiny_loaded, tiny_model, tiny_tokenizer


def fingerprint(model, **arguments) -> str:
    return wrap_model(model, tiny_tokenizer(), **arguments).lm.fingerprint


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("tiny-llama"))


def load(folder: Path, **arguments) -> str:
    return load_model(folder, progress=False, **arguments).lm.fingerprint


def test_the_same_files_give_the_same_fingerprint(folder):
    assert load(folder) == load(folder)
    assert len(load(folder)) == 32


def test_a_copy_of_the_files_gives_the_same_fingerprint(folder, tmp_path):
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    assert load(folder) == load(tmp_path)


def test_decoding_does_not_change_it(folder):
    loaded = load_model(folder, progress=False)
    loaded.lm.open().read([5, 6, 7])
    loaded.lm.encode([[5, 6, 7]])
    assert loaded.lm.fingerprint == load(folder)


def test_where_the_weights_lie_does_not_matter(folder):
    plain = load(folder, dtype="float32")
    assert plain == load(folder) == load(folder, device="cpu")
    assert plain == load(folder, device_map="cpu", dtype="float32")
    assert plain == load(folder, device_map={"": "cpu"}, dtype="float32")


def test_offloaded_weights_do_not_matter(folder, tmp_path):
    """Layers that are kept on disk are read from there."""
    spread = {
        "model.embed_tokens": "cpu", "model.norm": "cpu", "lm_head": "cpu", "model.rotary_emb": "cpu",
        "model.layers.0": "cpu", "model.layers.1": "disk", "model.layers.2": "disk",
    }  # fmt: skip
    offloaded = load_model(
        folder, progress=False, device_map=spread, dtype="float32", model_arguments={"offload_folder": str(tmp_path)}
    )
    assert any(parameter.is_meta for parameter in offloaded.lm._model.parameters()), "nothing was offloaded"
    assert offloaded.lm.fingerprint == load(folder)


def test_dtype_matters(folder):
    found = {load(folder, dtype=dtype) for dtype in ("float32", "float64", "bfloat16", "float16")}
    assert len(found) == 4


def test_the_key_layer_matters():
    found = {fingerprint(tiny_model(), key_layer=layer) for layer in ("ffn", "penultimate", 0, 1)}
    assert len(found) == 4


def test_the_tokenizer_matters():
    model = tiny_model()
    other = tiny_tokenizer()
    other.add_tokens(["new"])
    assert wrap_model(model, tiny_tokenizer()).lm.fingerprint != wrap_model(model, other).lm.fingerprint


def test_the_seed_and_the_architecture_matter():
    found = {tiny_loaded(a, seed=s).lm.fingerprint for a in ("llama", "mistral", "qwen2") for s in (0, 1)}
    assert len(found) == 6


def test_a_setting_of_the_configuration_matters():
    plain, other = tiny_model(), tiny_model(rms_norm_eps=1e-5)
    assert fingerprint(plain) != fingerprint(other)


def test_fine_tuning_matters():
    """One step of training moves weights everywhere."""
    model = tiny_model()
    before = fingerprint(model)
    model.train()
    tokens = torch.tensor([[5, 6, 7, 8, 9]])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    model(input_ids=tokens, labels=tokens).loss.backward()
    optimizer.step()
    assert fingerprint(model) != before


@pytest.mark.parametrize("name", ["model.layers.1.self_attn.q_proj", "model.layers.2.mlp.down_proj", "lm_head"])
def test_fine_tuning_of_one_matrix_matters(name):
    model = tiny_model()
    before = fingerprint(model)
    with torch.no_grad():
        model.get_submodule(name).weight.add_(torch.randn_like(model.get_submodule(name).weight), alpha=1e-6)
    assert fingerprint(model) != before


def test_a_change_of_a_tenth_of_one_matrix_matters():
    model = tiny_model()
    before = fingerprint(model)
    weight = model.get_submodule("model.layers.1.mlp.up_proj").weight
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        weight.mul_(1 + 1e-4 * (torch.rand(weight.shape, generator=generator) < 0.1))
    assert fingerprint(model) != before


def test_a_low_rank_update_that_is_merged_matters():
    model = tiny_model()
    before = fingerprint(model)
    weight = model.model.layers[0].self_attn.v_proj.weight
    with torch.no_grad():
        weight.add_(torch.outer(torch.randn(weight.shape[0]), torch.randn(weight.shape[1])).double(), alpha=1e-4)
    assert fingerprint(model) != before


def test_swapped_layers_matter():
    model = tiny_model()
    before = fingerprint(model)
    layers = model.model.layers
    layers[0].mlp, layers[1].mlp = layers[1].mlp, layers[0].mlp
    assert fingerprint(model) != before


# --- adapters ---------------------------------------------------------------------------------


def lora(seed: int = 0, **changes):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        settings = {"r": 4, "target_modules": ["q_proj", "v_proj"], "init_lora_weights": False, **changes}
        return get_peft_model(tiny_model(), LoraConfig(**settings))


def test_an_adapter_matters():
    found = {
        "none": fingerprint(tiny_model()),
        "first": fingerprint(lora()),
        "other weights": fingerprint(lora(seed=1)),
        "other scale": fingerprint(lora(lora_alpha=32)),
        "other rank": fingerprint(lora(r=2)),
        "merged": fingerprint(lora().merge_and_unload()),
    }
    assert len(set(found.values())) == len(found)


def test_the_same_adapter_gives_the_same_fingerprint():
    assert fingerprint(lora()) == fingerprint(lora())


def test_an_adapter_that_is_switched_off_matters():
    model = lora()
    on = fingerprint(model)
    with model.disable_adapter():
        off = fingerprint(model)
    assert on != off
    assert fingerprint(model) == on


def test_the_active_one_of_two_adapters_matters():
    model = lora()
    with torch.random.fork_rng():
        torch.manual_seed(7)
        model.add_adapter("second", LoraConfig(r=4, target_modules=["q_proj"], init_lora_weights=False))
    model.set_adapter("default")
    first = fingerprint(model)
    model.set_adapter("second")
    assert fingerprint(model) != first
    model.set_adapter("default")
    assert fingerprint(model) == first


def test_an_adapter_that_is_merged_in_place_matters():
    """Merged weights are rounded otherwise than added ones, and unmerging does not restore every bit."""
    model = lora()
    before = fingerprint(model)
    model.merge_adapter()
    assert fingerprint(model) != before


def test_an_adapter_without_a_wrapper_around_the_model_matters():
    model = tiny_model()
    before = fingerprint(model)
    inject_adapter_in_model(LoraConfig(r=4, target_modules=["q_proj"], init_lora_weights=False), model)
    on = fingerprint(model)
    assert on != before
    for module in model.modules():
        if "merged_adapters" in vars(module):
            module.enable_adapters(False)
    assert fingerprint(model) not in (on, before)


def test_a_changed_adapter_is_noticed_by_the_engine():
    """The engine asks again with each call: keys of one adapter are never used for another."""
    loaded = wrap_model(lora(), tiny_tokenizer())
    on = loaded.lm.fingerprint
    with loaded.lm._model.disable_adapter():
        off = loaded.lm.fingerprint
    assert on != off
    assert loaded.lm.fingerprint == on


# --- quantization -----------------------------------------------------------------------------


def test_a_quantization_mark_in_the_configuration_matters():
    plain, marked = tiny_model(), tiny_model()
    marked.config.quantization_config = {"quant_method": "test", "bits": 4}
    other = tiny_model()
    other.config.quantization_config = {"quant_method": "test", "bits": 8}
    assert len({fingerprint_model(m) for m in (plain, marked, other)}) == 3


@pytest.mark.filterwarnings("ignore")  # an old way to quantize, and the only one without another package
def test_really_quantized_weights_matter():
    plain, quantized = tiny_model().float(), tiny_model().float()
    torch.ao.quantization.quantize_dynamic(quantized, {nn.Linear}, dtype=torch.qint8, inplace=True)
    first = fingerprint_model(quantized)
    assert first != fingerprint_model(plain)
    other = tiny_model(seed=1).float()
    other.load_state_dict({**other.state_dict(), "model.embed_tokens.weight": plain.model.embed_tokens.weight})
    torch.ao.quantization.quantize_dynamic(other, {nn.Linear}, dtype=torch.qint8, inplace=True)
    assert fingerprint_model(other) != first


def test_a_buffer_matters():
    """Quantized weights are often kept in buffers."""
    model = tiny_model()
    model.register_buffer("packed", torch.arange(1000, dtype=torch.uint8))
    before = fingerprint_model(model)
    model.packed += 1
    assert fingerprint_model(model) != before


# --- speed ------------------------------------------------------------------------------------


def test_7b_takes_seconds():
    """A 7B model has 291 tensors; the time does not grow with their size, so what two sizes cost tells it."""

    def cost(side: int, count: int = 40) -> float:
        model = nn.Sequential(*[nn.Linear(side, side, bias=False) for _ in range(count)])
        start = time.perf_counter()
        fingerprint_model(model)
        return (time.perf_counter() - start) / count

    cost(64)
    small, large = min(cost(64) for _ in range(3)), min(cost(512) for _ in range(3))
    assert 291 * max(small, large) < 3
    assert large < 10 * small + 1e-3, "the time grows with the size of the weights"
