"""What is compared: modes, baselines without a model, the steps of the method, and swept settings."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from nest_engine.config import Mode, NestConfig
from nest_engine.errors import ConfigError

EXTRACTIVE = ("top passage", "best sentence")
"""Baselines without a model: see `extractive`."""

_NAMES = {"n": "span_tokens", "b": "top_passages", "r": "neighbors"}
"""The paper's names of settings that have another one here."""

_INVISIBLE = ("draft_chunk",)
"""Settings that cannot change an answer."""


@dataclass(frozen=True)
class System:
    """A column of the results.

    Attributes:
        name: Its name.
        config: Its settings; for a baseline without a model those it searches passages with.
        extractive: Whether it is a baseline without a model.
        swept: The setting and the value that make it a point of a sweep.
    """

    name: str
    config: NestConfig
    extractive: bool = False
    swept: tuple[str, Any] | None = None

    def fingerprint(self, *parts: str) -> str:
        """Digest of the settings and of whatever else its answers depend on, 16 hex digits."""
        settings = {k: v for k, v in dataclasses.asdict(self.config).items() if k not in _INVISIBLE}
        text = json.dumps([settings, self.name if self.extractive else None, *parts], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


ConfigOf = Callable[[Mode], NestConfig]
"""The settings to use in a mode."""


def systems_of(names: Sequence[str], config_of: ConfigOf) -> list[System]:
    """Systems by name: modes, `lossless ra` (with passages in the prompt) and the extractive baselines.

    Args:
        names: The names.
        config_of: Gives each mode's settings.

    Raises:
        ConfigError: If there is no such system.
    """
    return [_system(name.strip(), config_of) for name in dict.fromkeys(names)]


def _system(name: str, config_of: ConfigOf) -> System:
    if name in EXTRACTIVE:
        return System(name, config_of("nest"), extractive=True)
    mode = name.removesuffix(" ra") if name.startswith("lossless") else name
    for known in get_args(Mode):
        if mode == known:
            config = config_of(known)
            return System(name, config if mode == name else config.replace(passages_in_prompt=True))
    known_names = ", ".join([*get_args(Mode), "lossless ra", *EXTRACTIVE])
    raise ConfigError(f"nothing to evaluate is called {name!r}; there are {known_names}")


def ablation(config_of: ConfigOf) -> list[System]:
    """The ladder of the paper's table 3: each step adds a part of the method to the one before.

    Without spans: delta is 0, and lambda is never so small. Without verification: gamma is the
    smallest number there is, so that a span runs to its passage's end.

    Args:
        config_of: Gives each mode's settings.
    """
    nest = config_of("nest")
    return [
        System("knn-lm, fixed weight", config_of("knn-lm")),
        System("+ relative confidence", nest.replace(delta=0.0)),
        System("+ span selection", nest.replace(gamma=sys.float_info.min)),
        System("+ relaxed verification", nest),
    ]


def sweep(text: str, base: System) -> list[System]:
    """Copies of a system, each with another value of one setting.

    Args:
        text: `NAME=v1,v2,...`, such as `gamma=5e-4,5e-2`; `n`, `b` and `r` are the paper's names
            of `span_tokens`, `top_passages` and `neighbors`.
        base: What is copied.

    Raises:
        ConfigError: If the text is malformed, or a name or value is unknown.
    """
    name, equals, values = text.partition("=")
    name = setting_name(name)
    parsed = [setting_value(value.strip()) for value in values.split(",") if value.strip()]
    if not equals or not parsed:
        raise ConfigError(f"--sweep {text!r}: give a setting and its values, as in --sweep gamma=5e-4,5e-2")
    return [
        System(f"{base.name} {name}={value}", base.config.replace(**{name: value}), swept=(name, value))
        for value in dict.fromkeys(parsed)
    ]


def setting_name(text: str) -> str:
    """A setting's name as `NestConfig` has it, from that name, a flag's, or the paper's."""
    name = text.strip().replace("-", "_")
    return _NAMES.get(name, name)


def setting_value(text: str) -> Any:
    """A number where it is one, None for `none`, a truth value for `true` and `false`, else the text."""
    words = {"none": None, "true": True, "false": False}
    if text.lower() in words:
        return words[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
