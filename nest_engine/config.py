"""Every setting of the method in one frozen, validated object, and the named presets."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self, get_args

from nest_engine.errors import ConfigError

Mode = Literal["lm", "ra", "knn-lm", "nest", "ra-nest", "lossless"]
"""What is combined: see the table of modes in the README."""

KeyTransform = Literal["none", "standardize", "pca"]
KeyFormat = Literal["float16", "float32", "int8", "pca"]
Datastore = Literal["passages", "global"]
SpanStart = Literal["neighbor", "sentence"]

SETTINGS_VERSION = 1
"""Version of the settings files that `nest-engine calibrate` writes."""


def _setting(default: Any, help: str, unit: str = "") -> Any:
    """A field whose help and unit the command line and the docs read from its metadata."""
    return field(default=default, metadata={"help": help, "unit": unit})


@dataclass(frozen=True, kw_only=True)
class NestConfig:
    """Settings of one generation. Equation numbers are those of arXiv:2405.19325.

    The defaults are the paper's for a 7B model. `NestConfig.preset` gives other measured
    sets, and `replace` a changed copy.

    Raises:
        ConfigError: If a value is out of its range; the message names the setting and the range.
    """

    mode: Mode = _setting("nest", "what is combined: lm, ra, knn-lm, nest, ra-nest or lossless")

    top_passages: int = _setting(40, "passages searched for a prompt (the paper's b)", "passages")
    prompt_passages: int = _setting(3, "passages put into the prompt in the ra modes", "passages")
    passages_in_prompt: bool | None = _setting(
        None, "put passages into the prompt; None: only in the ra modes. For lossless either is useful"
    )
    min_relevance: float | None = _setting(
        None, "drop passages below this relevance; None: the source's own default; -inf: keep all"
    )

    key_layer: str | int = _setting(
        "ffn", "what keys are: 'ffn' (input of the last feed-forward block), 'penultimate', or a layer's number"
    )
    key_transform: KeyTransform = _setting("none", "transform of keys and queries: none, standardize or pca")
    key_format: KeyFormat = _setting("float16", "storage format of keys: float16, float32, int8 or pca")
    datastore: Datastore = _setting(
        "passages", "what is searched at every step: the retrieved passages, or all of a collection ('global')"
    )
    refresh_every: int | None = _setting(
        None, "search passages again, with the latest text, after this much of an answer; None: never", "tokens"
    )
    neighbors: int = _setting(1024, "nearest entries per search (the paper's r)", "entries")
    mu: float | None = _setting(None, "sharpness of p_kNN in Eq. 2; None: 1 / sqrt(key dimension)")

    alpha: float = _setting(0.3, "ratio at which LM and retrieval weigh the same (Eq. 4)")
    tau: float = _setting(0.1, "softness of the weight's change around alpha (Eq. 4)")
    knn_weight: float = _setting(0.7, "fixed weight of the LM in knn-lm mode (Eq. 3)")
    calibrated_entries: int | None = _setting(
        None,
        "size of the datastores that alpha and tau were fitted on: others bring a warning; None: no warning",
        "entries",
    )

    delta: float = _setting(0.5, "a span starts only where lambda is at most this (Eq. 5)")
    span_tokens: int = _setting(64, "longest draft (the paper's n)", "tokens")
    span_start: SpanStart = _setting(
        "neighbor",
        "where spans start: at the nearest neighbor with the chosen token as value (Eq. 5), or, where a sentence "
        "begins, at the retrieved sentence that shares most with the question ('sentence')",
    )
    gamma: float = _setting(5e-4, "leniency of the verification: smaller accepts more (Eq. 7)")
    end_probability: float | None = _setting(
        None, "p_LM of the end token at which a copied sentence ends the answer; None: where it is the likeliest"
    )
    whole_sentences: bool = _setting(
        False, "end behind a copied sentence rather than begin to copy another that the token limit would cut"
    )
    draft_chunk: int | None = _setting(
        None, "draft tokens per forward pass, never visible in the output; None: adapts", "tokens"
    )

    max_new_tokens: int = _setting(256, "longest answer", "tokens")
    temperature: float = _setting(0.0, "0: greedy; above: sampling at this temperature")
    top_k: int | None = _setting(None, "sample from the k likeliest tokens only", "tokens")
    top_p: float = _setting(1.0, "sample from the likeliest tokens that hold this probability")
    seed: int = _setting(0, "seed of the sampling")
    stop: tuple[str, ...] = _setting((), "strings that end the answer; they are not part of it")

    min_citation_words: int = _setting(3, "shorter copies are counted but not shown as citations", "words")
    min_match_words: int = _setting(
        6, "in ra and lossless: what the model wrote itself is cited where it repeats this much; 0: never", "words"
    )

    def __post_init__(self) -> None:
        """Validate every setting."""
        if isinstance(self.stop, str):
            object.__setattr__(self, "stop", (self.stop,))
        if self.stop is None or isinstance(self.stop, Iterable):
            object.__setattr__(self, "stop", tuple(self.stop or ()))
        for name, (accepts, text) in _RANGES.items():
            value = getattr(self, name)
            try:
                good = accepts(value)
            except TypeError:
                good = False
            if not good:
                raise ConfigError(f"{name} must be {text}, not {value!r}")

    @property
    def sampling(self) -> bool:
        """Whether tokens are drawn (temperature above 0) and not the likeliest ones."""
        return self.temperature > 0

    @property
    def uses_spans(self) -> bool:
        """Whether drafts are copied from passages."""
        return self.mode in ("nest", "ra-nest", "lossless")

    @property
    def uses_keys(self) -> bool:
        """Whether passages are encoded into keys. Lossless drafts from their tokens alone."""
        return self.mode in ("knn-lm", "nest", "ra-nest")

    @property
    def reads_passages(self) -> bool:
        """Whether passages stand in the prompt."""
        if self.passages_in_prompt is not None:
            return self.passages_in_prompt
        return self.mode in ("ra", "ra-nest")

    @property
    def starts_at_sentences(self) -> bool:
        """Whether spans start at ranked sentences, in this mode."""
        return self.span_start == "sentence" and self.uses_keys and self.uses_spans

    @property
    def passages_wanted(self) -> int:
        """How many passages a source is asked for, in this mode."""
        return self.top_passages if self.uses_keys or self.uses_spans else self.prompt_passages

    @property
    def traces_own_words(self) -> bool:
        """Whether what the model wrote by itself is traced back to the passages."""
        return self.min_match_words > 0 and self.mode in ("ra", "lossless")

    @property
    def uses_passages(self) -> bool:
        """Whether passages are searched for at all."""
        return self.uses_keys or self.uses_spans or self.reads_passages

    def replace(self, **changes: Any) -> Self:
        """Return a copy with some settings changed.

        Raises:
            ConfigError: If a setting does not exist or a value is out of range.
        """
        names = {f.name for f in dataclasses.fields(self)}
        unknown = sorted(set(changes) - names)
        if unknown:
            raise ConfigError(f"no such setting: {', '.join(unknown)}; there are {', '.join(sorted(names))}")
        return dataclasses.replace(self, **changes)

    @classmethod
    def load(cls, path: str | Path, **changes: Any) -> Self:
        """Read settings from a file that `nest-engine calibrate` has written.

        Args:
            path: The file.
            **changes: Settings that differ from the file.

        Raises:
            ConfigError: If the file cannot be read, or a setting in it is unknown or out of range.
        """
        try:
            document = json.loads(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            raise ConfigError(f"{path}: cannot be read ({error.strerror or error}); check the path") from error
        except ValueError as error:
            raise ConfigError(f"{path}: not JSON ({error}); nest-engine calibrate writes such files") from error
        if not isinstance(document, dict) or not isinstance(document.get("settings"), dict):
            raise ConfigError(
                f'{path}: no settings file: it has no "settings"; nest-engine calibrate writes such files'
            )
        if document.get("nest_settings") != SETTINGS_VERSION:
            raise ConfigError(
                f"{path}: of version {document.get('nest_settings')!r}, not {SETTINGS_VERSION}; calibrate again"
            )
        try:
            return cls().replace(**{**document["settings"], **changes})
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from error

    @classmethod
    def preset(cls, name: str, **changes: Any) -> Self:
        """Return a named set of settings, with `changes` on top.

        Args:
            name: A key of `PRESETS`: the paper's settings (`"paper-7b"`, ...) or a model's.
            **changes: Settings that differ from the preset.

        Raises:
            ConfigError: If there is no such preset.
        """
        if name not in PRESETS:
            raise ConfigError(f"no preset {name!r}; there are {', '.join(sorted(PRESETS))}")
        mode = changes.get("mode", cls.mode)
        return cls().replace(**{**PRESETS[name], **MODE_PRESETS.get((name, mode), {}), **changes})


def _whole(value: Any, low: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= low


def _real(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and not math.isnan(value)


def _count(low: int) -> tuple[Callable[[Any], bool], str]:
    return lambda v: _whole(v, low), f"a whole number, at least {low}"


def _optional_count(low: int) -> tuple[Callable[[Any], bool], str]:
    return lambda v: v is None or _whole(v, low), f"None or a whole number, at least {low}"


def _choice(literal: Any) -> tuple[Callable[[Any], bool], str]:
    return lambda v: v in get_args(literal), "one of " + ", ".join(map(repr, get_args(literal)))


def _share(what: str) -> tuple[Callable[[Any], bool], str]:
    return lambda v: _real(v) and 0 <= v <= 1, f"{what} from 0 to 1"


_RANGES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "mode": _choice(Mode),
    "top_passages": _count(1),
    "prompt_passages": _count(1),
    "passages_in_prompt": (lambda v: v is None or isinstance(v, bool), "None, True or False"),
    "min_relevance": (lambda v: v is None or _real(v), "None or a number (-inf keeps every passage)"),
    "key_layer": (
        lambda v: v in ("ffn", "penultimate") or _whole(v, 0),
        "'ffn', 'penultimate' or the number of a layer, counted from 0",
    ),
    "key_transform": _choice(KeyTransform),
    "key_format": _choice(KeyFormat),
    "datastore": _choice(Datastore),
    "refresh_every": _optional_count(1),
    "neighbors": _count(1),
    "mu": (lambda v: v is None or (_real(v) and 0 < v < math.inf), "None or a number above 0"),
    "alpha": (lambda v: _real(v) and math.isfinite(v), "a finite number (useful: 0 to 1)"),
    "tau": (lambda v: _real(v) and 0 < v < math.inf, "a number above 0 (the paper: 0.1)"),
    "knn_weight": _share("a weight"),
    "calibrated_entries": _optional_count(1),
    "delta": _share("a threshold"),
    "span_tokens": _count(1),
    "span_start": _choice(SpanStart),
    "gamma": (lambda v: _real(v) and 0 < v <= 1, "above 0 and at most 1"),
    "end_probability": (lambda v: v is None or (_real(v) and 0 < v <= 1), "None, or above 0 and at most 1"),
    "whole_sentences": (lambda v: isinstance(v, bool), "True or False"),
    "draft_chunk": _optional_count(1),
    "max_new_tokens": _count(1),
    "temperature": (lambda v: _real(v) and 0 <= v < math.inf, "0 (greedy) or a number above"),
    "top_k": _optional_count(1),
    "top_p": (lambda v: _real(v) and 0 < v <= 1, "above 0 and at most 1"),
    "seed": _count(0),
    "stop": (lambda v: all(isinstance(s, str) and s for s in v), "a list of non-empty strings"),
    "min_citation_words": _count(0),
    "min_match_words": _count(0),
}

_PAPER: dict[str, Any] = {"alpha": 0.3, "tau": 0.1, "delta": 0.5, "span_tokens": 64, "neighbors": 1024}

PRESETS: dict[str, dict[str, Any]] = {
    "paper-7b": {**_PAPER, "gamma": 5e-4},
    "paper-13b": {**_PAPER, "gamma": 5e-3},
    "paper-70b": {**_PAPER, "gamma": 5e-2},
    "paper-ra-nest": {**_PAPER, "gamma": 5e-1, "mode": "ra-nest"},
    "paper-legal": {**_PAPER, "alpha": 0.2, "gamma": 5e-4},
    # docs/quality.md tells how these were chosen, and what others did.
    "smollm2-135m-instruct": {
        **_PAPER,
        "gamma": 1e-2,
        "top_passages": 5,
        "end_probability": 0.02,
        "span_start": "sentence",
        "whole_sentences": True,
    },
}
"""Named settings: the paper's (section 8 of its appendix) and those measured for a model."""

MODE_PRESETS: dict[tuple[str, str], dict[str, Any]] = {}
"""Settings of a preset that differ in one mode, by (preset, mode)."""
