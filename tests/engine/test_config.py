"""Every setting is checked, and its error names the setting and its range."""

from __future__ import annotations

import dataclasses
import math

import pytest

from nest_engine import NestConfig
from nest_engine.config import _RANGES, MODE_PRESETS, PRESETS
from nest_engine.errors import ConfigError, NestError

MODES = ("lm", "ra", "knn-lm", "nest", "ra-nest", "lossless")
INF, NAN = math.inf, math.nan

BAD = {
    "mode": ["", "NEST", "rag", None, 3],
    "top_passages": [0, -1, 2.5, "5", None, True],
    "prompt_passages": [0, -3, None],
    "passages_in_prompt": [0, 1, "yes"],
    "min_relevance": [NAN, "0.3", True],
    "key_layer": ["", "last", -1, 1.5, None, True, "12"],
    "key_transform": ["", "whiten", None],
    "key_format": ["", "float64", "bfloat16", None],
    "neighbors": [0, -1, 1.0, None],
    "mu": [0, -0.1, INF, NAN, "1"],
    "alpha": [NAN, INF, -INF, None, "0.3"],
    "tau": [0, 0.0, -0.1, NAN, INF, None],
    "knn_weight": [-0.1, 1.1, NAN, None],
    "calibrated_entries": [0, -5, 1.5, "9"],
    "delta": [-0.1, 1.1, NAN, None],
    "span_tokens": [0, -1, 6.4, None],
    "gamma": [0, 0.0, -1e-3, 1.01, 5, NAN, None],
    "draft_chunk": [0, -1, 2.0],
    "max_new_tokens": [0, -1, 10.0, None],
    "temperature": [-0.1, INF, NAN, None, "hot"],
    "top_k": [0, -1, 1.5],
    "top_p": [0, -0.1, 1.1, NAN, None],
    "seed": [-1, 0.5, None],
    "stop": [[""], [None], [3], 5, ["a", ""]],
    "min_citation_words": [-1, 1.5, None],
    "min_match_words": [-1, 1.5, None],
}
GOOD = {
    "mode": MODES,
    "top_passages": [1, 40, 10_000],
    "passages_in_prompt": [None, True, False],
    "min_relevance": [None, -INF, 0, 0.4, 1, INF],
    "key_layer": ["ffn", "penultimate", 0, 20],
    "key_transform": ["none", "standardize", "pca"],
    "key_format": ["float16", "float32"],
    "mu": [None, 1e-6, 1, 50.0],
    "alpha": [-1, 0, 0.3, 1, 2],
    "tau": [1e-9, 0.1, 10],
    "knn_weight": [0, 0.7, 1],
    "delta": [0, 0.5, 1],
    "gamma": [1e-12, 5e-4, 0.5, 1, 1.0],
    "draft_chunk": [None, 1, 64, 1000],
    "temperature": [0, 0.0, 0.7, 3],
    "top_k": [None, 1, 50],
    "top_p": [1e-6, 0.9, 1],
    "seed": [0, 1, 2**64, 2**200],
    "stop": [(), [], ["END"], ("a", "b"), "END", None, "。"],
    "min_citation_words": [0, 3],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in BAD.items() for value in values])
def test_bad_values(name, value):
    with pytest.raises(ConfigError, match=rf"^{name} must be .+, not ") as caught:
        NestConfig(**{name: value})
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, NestError)
    with pytest.raises(ConfigError, match=name):
        NestConfig().replace(**{name: value})


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in GOOD.items() for value in values])
def test_good_values(name, value):
    config = NestConfig(**{name: value})
    if name != "stop":
        assert getattr(config, name) == value
    assert config == NestConfig().replace(**{name: value})


def test_every_setting_is_checked_and_described():
    fields = dataclasses.fields(NestConfig)
    assert {f.name for f in fields} == set(_RANGES)
    assert all(f.metadata["help"] for f in fields)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("mode", "'lossless'"), ("gamma", "above 0 and at most 1"), ("tau", "above 0"), ("top_passages", "at least 1"),
        ("key_layer", "'penultimate'"), ("top_p", "at most 1"), ("mu", "above 0"),
    ],
)  # fmt: skip
def test_the_message_names_the_range_and_the_value(name, hint):
    with pytest.raises(ConfigError) as caught:
        NestConfig(**{name: -7.5})
    assert hint in str(caught.value)
    assert "-7.5" in str(caught.value)


def test_unknown_settings():
    with pytest.raises(ConfigError, match=r"no such setting: gama, tempo; there are .*gamma"):
        NestConfig().replace(gama=0.5, tempo=1, mode="nest")


def test_the_papers_defaults():
    config = NestConfig()
    assert (config.alpha, config.tau, config.delta, config.gamma) == (0.3, 0.1, 0.5, 5e-4)
    assert (config.span_tokens, config.neighbors, config.top_passages, config.prompt_passages) == (64, 1024, 40, 3)
    assert config.knn_weight == 0.7
    assert config.mu is None
    assert not config.sampling


def test_stop_strings():
    assert NestConfig(stop="END").stop == ("END",)
    assert NestConfig(stop=["a", "b"]).stop == ("a", "b")
    assert NestConfig(stop=None).stop == ()


def test_it_cannot_be_changed():
    config = NestConfig()
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.gamma = 0.5
    changed = config.replace(gamma=0.5)
    assert (config.gamma, changed.gamma) == (5e-4, 0.5)
    assert hash(config) == hash(NestConfig())


@pytest.mark.parametrize(
    ("mode", "spans", "keys", "reads"),
    [
        ("lm", False, False, False),
        ("ra", False, False, True),
        ("knn-lm", False, True, False),
        ("nest", True, True, False),
        ("ra-nest", True, True, True),
        ("lossless", True, None, False),
    ],
)
def test_the_table_of_modes(mode, spans, keys, reads):
    config = NestConfig(mode=mode)
    assert config.uses_spans == spans
    assert config.reads_passages == reads
    if keys is not None:
        assert config.uses_keys == keys
    assert config.uses_passages == (mode != "lm")


def test_lossless_with_passages_in_the_prompt_or_without():
    assert NestConfig(mode="lossless", passages_in_prompt=True).reads_passages
    assert not NestConfig(mode="ra", passages_in_prompt=False).reads_passages
    assert NestConfig(mode="lm", passages_in_prompt=True).uses_passages


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("mode", MODES)
def test_presets(name, mode):
    assert NestConfig.preset(name, mode=mode).mode == mode
    assert isinstance(NestConfig.preset(name), NestConfig)


@pytest.mark.parametrize(
    ("name", "gamma", "alpha"),
    [
        ("paper-7b", 5e-4, 0.3), ("paper-13b", 5e-3, 0.3), ("paper-70b", 5e-2, 0.3), ("paper-ra-nest", 0.5, 0.3),
        ("paper-legal", 5e-4, 0.2), ("smollm2-135m-instruct", None, None),
    ],
)  # fmt: skip
def test_published_settings(name, gamma, alpha):
    config = NestConfig.preset(name)
    if gamma is not None:
        assert (config.gamma, config.alpha) == (gamma, alpha)
        assert (config.tau, config.delta, config.span_tokens, config.neighbors) == (0.1, 0.5, 64, 1024)
    assert config.mode == ("ra-nest" if name == "paper-ra-nest" else "nest")


def test_changes_go_before_a_preset():
    assert NestConfig.preset("paper-7b", gamma=0.25).gamma == 0.25
    with pytest.raises(ConfigError, match="gamma must be"):
        NestConfig.preset("paper-7b", gamma=2)
    with pytest.raises(ConfigError, match="no such setting"):
        NestConfig.preset("paper-7b", gama=0.25)


def test_a_preset_can_differ_by_mode(monkeypatch):
    monkeypatch.setitem(MODE_PRESETS, ("paper-7b", "knn-lm"), {"alpha": 0.9})
    assert NestConfig.preset("paper-7b", mode="knn-lm").alpha == 0.9
    assert NestConfig.preset("paper-7b").alpha == 0.3
    assert NestConfig.preset("paper-7b", mode="knn-lm", alpha=0.1).alpha == 0.1


def test_an_unknown_preset():
    with pytest.raises(ConfigError, match=r"no preset 'paper-8b'; there are .*paper-7b"):
        NestConfig.preset("paper-8b")
