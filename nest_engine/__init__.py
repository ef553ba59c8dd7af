"""Nearest neighbor speculative decoding: answers from your documents, copied verbatim where they are cited."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nest_engine.citations.citation import Citation
    from nest_engine.config import NestConfig
    from nest_engine.engine import NestEngine
    from nest_engine.generation import Generation, GenerationPiece, Stats
    from nest_engine.passages import Passage, ScoredPassage
    from nest_engine.retrieval.source import PassageSource

__all__ = [
    "Citation",
    "Generation",
    "GenerationPiece",
    "NestConfig",
    "NestEngine",
    "Passage",
    "PassageSource",
    "ScoredPassage",
    "Stats",
]

# torch and transformers take seconds to import: `nest-engine --help` and whoever needs a
# passage alone should not wait for them.
_HOMES = {
    "Citation": "citations.citation",
    "Generation": "generation",
    "GenerationPiece": "generation",
    "NestConfig": "config",
    "NestEngine": "engine",
    "Passage": "passages",
    "PassageSource": "retrieval.source",
    "ScoredPassage": "passages",
    "Stats": "generation",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for."""
    if name not in _HOMES:
        raise AttributeError(f"module 'nest_engine' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"nest_engine.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """The public names."""
    return sorted(__all__)
