"""Keywords that users of other LLMs know, as settings of `NestConfig`."""

from __future__ import annotations

import dataclasses
from typing import Any

from nest_engine.config import NestConfig
from nest_engine.errors import ConfigError

_ALIASES = {
    "max_tokens": "max_new_tokens",
    "num_output": "max_new_tokens",
    "stop_sequences": "stop",
    "stop_strings": "stop",
    "random_seed": "seed",
}
_NAMES = frozenset(field.name for field in dataclasses.fields(NestConfig))


def read_settings(keywords: dict[str, Any]) -> dict[str, Any]:
    """Keywords as settings of `NestConfig`.

    Args:
        keywords: Settings by their own names or by those of other LLMs. `do_sample=False` is a
            temperature of 0; `do_sample=True` without a temperature one of 1, as in transformers.

    Raises:
        ConfigError: If a keyword is none of them.
    """
    renamed = {_ALIASES.get(name, name): value for name, value in keywords.items()}
    do_sample = renamed.pop("do_sample", None)
    if do_sample is False:
        renamed["temperature"] = 0.0
    elif do_sample:
        renamed.setdefault("temperature", 1.0)
    unknown = sorted(set(renamed) - _NAMES)
    if unknown:
        raise ConfigError(
            f"no such setting: {', '.join(unknown)}. For penalties and the like pass logits_processors=[...] "
            f"in the call; the settings are {', '.join(sorted(_NAMES))}"
        )
    return renamed


def read_call_settings(keywords: dict[str, Any]) -> dict[str, Any]:
    """The settings of one call. A keyword that is None is not set, as LlamaIndex passes many so.

    Raises:
        ConfigError: If a keyword is no setting.
    """
    return read_settings({name: value for name, value in keywords.items() if value is not None})
