"""What the page asks for: documents in, the plain model's and NEST's answers out."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from nest_engine.documents import Document, read_document, split_document
from nest_engine.engine import NestEngine
from nest_engine.errors import ConfigError, PromptError
from nest_engine.generation import Generation
from nest_engine.passages import Passage
from nest_engine.retrieval.source import PassageSource

T = TypeVar("T")

SourceMaker = Callable[[list[Passage]], PassageSource]

_KEPT = 8
"""Indexes and plain answers that are kept, so that moving a slider asks for neither again."""


@dataclass(frozen=True)
class Texts:
    """What a visitor answers from, besides the documents that the page was started with.

    Attributes:
        files: Files to read.
        pasted: A text, possibly empty.
        title: What the text is called.
    """

    files: tuple[Path, ...] = ()
    pasted: str = ""
    title: str = "Pasted text"


class Bench:
    """Answers one question with several settings. It keeps what they share."""

    def __init__(
        self, engine: NestEngine, make_source: SourceMaker, passages: Sequence[Passage] = (), passage_words: int = 150
    ) -> None:
        """Answer with an engine.

        Args:
            engine: The engine.
            make_source: Makes what passages are searched in.
            passages: Answered from besides a visitor's own texts.
            passage_words: Longest passage made of a visitor's texts, in words.
        """
        self.engine = engine
        self.passages = tuple(passages)
        self._make_source = make_source
        self._passage_words = passage_words
        self._sources: OrderedDict[Any, PassageSource] = OrderedDict()
        self._plain: OrderedDict[Any, Generation] = OrderedDict()

    def plain(self, question: str) -> Generation:
        """The model's answer without any document.

        Raises:
            PromptError: If the question is empty.
        """
        _check(question)
        return _keep(self._plain, question, lambda: self.engine.generate(question, mode="lm"))

    def ask(self, question: str, texts: Texts, **settings: Any) -> Generation:
        """The answer from the documents, with its trace.

        Args:
            question: The question.
            texts: The visitor's texts.
            **settings: Those of `NestConfig` that differ from the engine's.

        Raises:
            NestError: If the question is empty, there is nothing to answer from, a file cannot be read or a
                setting is out of its range.
        """
        _check(question)
        passages = [*self.passages, *self._read(texts)]
        if not passages:
            raise ConfigError("nothing to answer from: upload a file or paste a text")
        key = tuple((passage.document_id, passage.id, passage.text) for passage in passages)
        source = _keep(self._sources, key, lambda: self._make_source(passages))
        return self.engine.generate(question, source=source, trace=True, **settings)

    def _read(self, texts: Texts) -> list[Passage]:
        documents = [_uploaded(path) for path in texts.files]
        if texts.pasted.strip():
            documents.append(Document(texts.pasted, texts.title))
        return [passage for document in documents for passage in split_document(document, self._passage_words)]


def _uploaded(path: Path) -> Document:
    """A file by its name: where the page keeps it in the meantime says nothing to its visitor."""
    return replace(read_document(path), id=path.name, metadata={})


def _check(question: str) -> None:
    if not question.strip():
        raise PromptError("ask a question first")


def _keep(kept: OrderedDict[Any, T], key: Any, make: Callable[[], T]) -> T:
    """What was made for a key, made now if need be; the oldest are forgotten."""
    if key not in kept:
        kept[key] = make()
        while len(kept) > _KEPT:
            kept.popitem(last=False)
    kept.move_to_end(key)
    return kept[key]
