"""Answers in a terminal: streamed text, citation numbers where copies end, sources, facts."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import TextIO

from nest_engine.citations.citation import Citation
from nest_engine.generation import Generation, GenerationPiece
from nest_engine.rendering.view import view_generation

Write = Callable[[str, str], None]
"""Takes text and the name of a style of rich ("" for none)."""

_QUOTE_CHARACTERS = 200
# Escape sequences in a document must not reach the terminal; each becomes one visible character, so places stay.
# So does what reorders a line: overrides of the writing direction.
_OVERRIDES = [*range(0x202A, 0x202F), *range(0x2066, 0x206A)]
_CONTROLS = {code: "\ufffd" for code in [*range(0x20), *range(0x7F, 0xA0), *_OVERRIDES] if code not in (0x09, 0x0A)}


def make_writer(stream: TextIO) -> Write:
    """Return a function that writes to `stream`: in color on a terminal, plainly elsewhere.

    Colors need rich; without it the text is the same.

    Args:
        stream: Where to write.
    """
    if stream.isatty():
        try:
            from rich.console import Console
            from rich.text import Text
        except ImportError:
            pass
        else:
            console = Console(file=stream, soft_wrap=True, highlight=False, markup=False, emoji=False)
            return lambda text, style: console.print(Text(safe(text), style), end="")

    def write(text: str, style: str) -> None:
        stream.write(safe(text))
        stream.flush()

    return write


def safe(text: str) -> str:
    """Return `text` with control characters made visible, at the same length (CRLF loses the CR)."""
    return text.replace("\r\n", "\n").translate(_CONTROLS)


class AnswerPrinter:
    """Prints an answer while it is made, with `[1]` behind each copied range."""

    def __init__(self, write: Write) -> None:
        """Print with `write`."""
        self._write = write
        self._printed = 0
        self._held = ""
        self._marks: list[tuple[int, int]] = []

    def add(self, piece: GenerationPiece) -> None:
        """Print a piece. White space at its end waits: a citation may turn out to end before it."""
        self._marks += [(citation.end, citation.number) for citation in piece.citations]
        text = self._held + piece.text
        body = text if piece.generation is not None else text.rstrip()
        self._held = text[len(body) :]
        self._print(body)

    def _print(self, body: str) -> None:
        for end, number in sorted(self._marks):
            # A copy that ended before what is printed already gets its number late rather than not at all.
            cut = max(end - self._printed, 0)
            if cut > len(body):
                break
            self._write(body[:cut], "")
            self._write(f"[{number}]", "bold cyan")
            self._marks.remove((end, number))
            self._printed += cut
            body = body[cut:]
        if body:
            self._write(body, "")
            self._printed += len(body)


def print_sources(generation: Generation, write: Write) -> None:
    """List the documents that were copied from, each with what was copied and where it stands."""
    if not generation.citations:
        write("Nothing was copied from the documents.\n", "dim")
        return
    write("Copied from\n", "bold")
    shown: set[int] = set()
    for citation in sorted(generation.citations, key=lambda c: (c.number, c.start)):
        if citation.number not in shown:
            shown.add(citation.number)
            write(f"  [{citation.number}] ", "bold cyan")
            write(f"{citation.title or citation.document_id}\n", "bold")
        write(f"      {_place(citation)}: ", "dim")
        write(f"“{quote(citation.text)}”\n", "italic")


def _place(citation: Citation) -> str:
    """Return where the copied text stands, in characters from the document's or passage's start."""
    if citation.document_start is not None:
        end = citation.document_start + len(citation.text)
        return f"{citation.document_id}, characters {citation.document_start}-{end}"
    return f"{citation.passage_id}, characters {citation.source_start}-{citation.source_end}"


def quote(text: str, limit: int = _QUOTE_CHARACTERS) -> str:
    """Return `text` in one line of at most `limit` characters; what is left out becomes an ellipsis in the middle."""
    line = re.sub(r"\s+", " ", text)
    if len(line) <= limit:
        return line
    half = (limit - 3) // 2
    return f"{line[:half].rstrip()} … {line[-half:].lstrip()}"


def print_facts(generation: Generation, write: Write) -> None:
    """Print one line of statistics."""
    facts = view_generation(generation).facts
    write(" · ".join(facts.to_lines() if facts else []) + "\n", "dim")


def print_answer(pieces: Iterable[GenerationPiece], write: Write) -> Generation | None:
    """Print an answer as it comes, then its sources and one line of facts.

    Args:
        pieces: From `NestEngine.stream`.
        write: From `make_writer`.

    Returns:
        The whole answer; None where the stream was stopped before its end.
    """
    printer = AnswerPrinter(write)
    generation = None
    for piece in pieces:
        printer.add(piece)
        if piece.generation is not None:
            write("\n\n", "")
            print_sources(piece.generation, write)
            print_facts(piece.generation, write)
            generation = piece.generation
    return generation
