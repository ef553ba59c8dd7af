"""A streamed answer in a notebook: the marked answer grows in place."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable
from typing import Any

from nest_engine.citations.citation import Citation
from nest_engine.errors import ConfigError
from nest_engine.generation import Generation, GenerationPiece
from nest_engine.rendering.html import to_html
from nest_engine.rendering.view import View, make_view, view_generation

_SECONDS = 0.1  # between two pictures; a browser draws no faster than it is pleasant to read


def display_stream(pieces: Iterable[GenerationPiece], *, seconds: float = _SECONDS) -> Generation:
    """Show an answer in a notebook while it is made.

    Args:
        pieces: From `NestEngine.stream`.
        seconds: Least time between two pictures, in seconds.

    Returns:
        The whole answer.

    Raises:
        ConfigError: If IPython is missing.
    """
    try:
        from IPython.display import display
    except ImportError as error:
        raise ConfigError("display_stream shows answers in notebooks and needs IPython: pip install ipython") from error

    picture = GrowingAnswer()
    show: Any = display  # IPython has no types for it
    handle = show(picture, display_id=f"nest-{secrets.token_hex(8)}")
    shown = time.monotonic()
    for piece in pieces:
        picture.add(piece)
        # Outside of notebooks there is nothing that could be updated.
        if handle is not None and (piece.generation is not None or time.monotonic() - shown >= seconds):
            handle.update(picture)
            shown = time.monotonic()
    if picture.generation is None:
        raise RuntimeError("a stream ended without its last piece")
    return picture.generation


class GrowingAnswer:
    """An answer that notebooks can show at any time while it grows.

    Attributes:
        text: The answer so far.
        citations: Its final citations so far.
        generation: The whole, once it is complete.
    """

    def __init__(self) -> None:
        """Begin an empty answer."""
        self.text = ""
        self.citations: list[Citation] = []
        self.generation: Generation | None = None
        self._uid = f"nest-{secrets.token_hex(4)}"

    def add(self, piece: GenerationPiece) -> None:
        """Take a piece."""
        self.text += piece.text
        self.citations += piece.citations
        self.generation = piece.generation

    def view(self) -> View:
        """What is shown of it now."""
        if self.generation is not None:
            return view_generation(self.generation)
        return make_view(self.text, self.citations, is_complete=False)

    def _repr_html_(self) -> str:
        return to_html(self.view(), uid=self._uid)

    def __repr__(self) -> str:
        """The text alone, where nothing else can be shown."""
        return self.text
