"""Nearest neighbor speculative decoding: answers from your documents, copied verbatim where they are cited."""

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
