"""Run the engine's decode loop and show what it emitted, token by token."""

from __future__ import annotations

from collections.abc import Sequence

from nest_engine import NestConfig, NestEngine, Passage
from nest_engine.datastore.opener import OpenPassages
from nest_engine.datastore.token_index import TokenIndex
from nest_engine.decoding.loop import DecodeLoop, Emission
from tests.engine.reference import Emitted, Reference


def open_index(
    engine: NestEngine, passages: Sequence[Passage], config: NestConfig | None = None, query: str = ""
) -> TokenIndex | None:
    """The datastore that the engine would open for some passages."""
    return OpenPassages(engine._opener, config or engine.config).add(passages, query=query)


def run_loop(
    engine: NestEngine, prompt: list[int], passages: Sequence[Passage], query: str = "", **settings
) -> tuple[list[Emission], DecodeLoop]:
    """Emissions for a prompt of token ids, and the loop with its counts."""
    config = engine.config.replace(**settings)
    index = open_index(engine, passages, config, query)
    loop = DecodeLoop(engine.model.lm, prompt, index, config)
    return list(loop.run()), loop


def run_reference(
    engine: NestEngine, feed_forward, prompt: list[int], passages: Sequence[Passage], query: str = "", **settings
) -> list[Emitted]:
    """The same by the plain reference."""
    config = engine.config.replace(**settings)
    reference = Reference(
        engine.model.lm._model, engine.model.tokenizer._tokenizer, feed_forward, config, engine.model.tokenizer.prefix
    )
    return reference.generate(prompt, passages, query)


def tokens_and_places(run: Sequence[Emission | Emitted]) -> list[tuple[int, tuple[int, int] | None]]:
    """What has to be equal: the tokens, and where each one came from."""
    return [(e.token, _plain(e.place)) for e in run]


def _plain(place) -> tuple[int, int] | None:
    if place is None or isinstance(place, tuple):
        return place
    return (place.passage, place.position)
