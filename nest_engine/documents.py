"""Read documents from files: plain text, Markdown, HTML and PDF.

Nothing in a document is executed or fetched. What is read becomes plain text, and all
offsets of passages and citations refer to that text.
"""

from __future__ import annotations

import codecs
import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from nest_engine.errors import ConfigError, DocumentError
from nest_engine.jsonl import Question, read_passages, read_questions
from nest_engine.passages import content_id
from nest_engine.splitting import split_document

if TYPE_CHECKING:
    from bs4 import BeautifulSoup, Tag

__all__ = [
    "Document",
    "Question",
    "read_document",
    "read_documents",
    "read_passages",
    "read_questions",
    "split_document",
]

logger = logging.getLogger(__name__)

MAX_BYTES = 50_000_000
"""Files larger than this are refused by default."""

MAX_CHARACTERS = 100_000_000
"""A PDF with more text is refused: a small file can be made to hold any amount."""


@dataclass(frozen=True)
class Document:
    """A whole text, before it is split into passages.

    Attributes:
        text: The document's text, never stripped: offsets refer to it.
        title: Its title, possibly empty.
        id: Its id; by default made from title and text.
        page_starts: Where each page starts, in code points; empty where there are no pages.
        metadata: Anything the caller wants to find again in the metadata of the passages.
    """

    text: str
    title: str = ""
    id: str = ""
    page_starts: tuple[int, ...] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict, hash=False, compare=False)

    def __post_init__(self) -> None:
        """Fill in the id."""
        if not self.id:
            object.__setattr__(self, "id", content_id(self.title, self.text))


def read_documents(
    paths: str | Path | Iterable[str | Path],
    *,
    encoding: str | None = None,
    max_bytes: int = MAX_BYTES,
    on_error: Literal["raise", "skip"] = "raise",
) -> list[Document]:
    """Read files, and all files of known kinds in folders and their sub-folders.

    In folders, hidden files, files of other kinds and empty files are passed over; a path that
    is reached twice is read once.

    Args:
        paths: One or more files or folders. Folders are read in the order of their file names.
        encoding: The encoding of text files; by default it is detected, UTF-8 first.
        max_bytes: Files larger than this are an error.
        on_error: "skip" logs a warning and goes on where a file cannot be read.

    Raises:
        ConfigError: If `on_error` is something else.
        DocumentError: If a path does not exist, a file cannot be read, or nothing is found.
    """
    if on_error not in ("raise", "skip"):
        raise ConfigError(f'on_error must be "raise" or "skip", not {on_error!r}')
    listed = [Path(path) for path in ([paths] if isinstance(paths, str | Path) else paths)]
    documents: dict[Path, Document] = {}
    for path, named in _files(listed):
        key = path.resolve()
        if key in documents:
            continue
        try:
            documents[key] = read_document(path, encoding=encoding, max_bytes=max_bytes)
        except _EmptyDocumentError as error:
            if named and on_error == "raise":
                raise
            logger.warning("skipped: %s", error)
        except DocumentError as error:
            if on_error == "raise":
                raise
            logger.warning("skipped: %s", error)
    if not documents:
        places = ", ".join(map(str, listed)) or "an empty list of paths"
        raise DocumentError(f"no documents in {places}: the kinds that can be read are {', '.join(_READERS)}")
    return list(documents.values())


def read_document(path: str | Path, *, encoding: str | None = None, max_bytes: int = MAX_BYTES) -> Document:
    """Read one file; its kind is told by its suffix.

    The title is the document's own (HTML title, PDF metadata, Markdown front matter), else its
    first top heading, else the file's name. The id is the path as given.

    Args:
        path: The file.
        encoding: The encoding of text files; by default it is detected, UTF-8 first.
        max_bytes: Files larger than this are an error.

    Raises:
        DocumentError: If the file is missing, too large, of an unknown kind, damaged or without text.
    """
    path = Path(path)
    reader = _READERS.get(path.suffix.lower())
    if reader is None:
        raise DocumentError(f"{path}: unknown kind of file; convert it to one of {', '.join(_READERS)}")
    content = reader(_File(path, _load(path, max_bytes), encoding))
    if not content.text.strip():
        raise _EmptyDocumentError(f"{path}: no text in it; {content.advice or 'remove it from the list'}")
    return Document(
        text=content.text,
        title=_one_line(content.title) or path.stem,
        id=path.as_posix(),
        page_starts=content.page_starts,
        metadata={"path": str(path)},
    )


class _EmptyDocumentError(DocumentError):
    """A document without text."""


@dataclass(frozen=True)
class _File:
    path: Path
    data: bytes
    encoding: str | None


@dataclass(frozen=True)
class _Content:
    text: str
    title: str = ""
    page_starts: tuple[int, ...] = ()
    advice: str = ""


def _files(paths: list[Path]) -> Iterator[tuple[Path, bool]]:
    """Yield the files, each with whether it was named by the caller rather than found in a folder."""
    for path in paths:
        if not path.is_dir():
            yield path, True
            continue
        for folder, subfolders, names in os.walk(path):
            subfolders[:] = sorted(name for name in subfolders if not name.startswith("."))
            for name in sorted(names):
                if not name.startswith(".") and Path(name).suffix.lower() in _READERS:
                    yield Path(folder, name), False


def _load(path: Path, max_bytes: int) -> bytes:
    try:
        # Devices and pipes could be read without end.
        if path.exists() and not path.is_file():
            raise DocumentError(f"{path}: not a file or folder")
        size = path.stat().st_size
        if size > max_bytes:
            raise DocumentError(
                f"{path}: {size / 1e6:.1f} MB, more than the limit of {max_bytes / 1e6:.1f} MB;"
                " split the file, or raise max_bytes"
            )
        return path.read_bytes()
    except OSError as error:
        raise DocumentError(f"{path}: cannot be read ({error.strerror or error}); check the path") from error


def _read_text(file: _File) -> _Content:
    return _Content(_decode(file))


def _read_markdown(file: _File) -> _Content:
    try:
        from markdown_it import MarkdownIt
    except ImportError as error:
        raise _missing_library(file, "markdown-it-py") from error
    text, title = _without_front_matter(_decode(file))
    html = MarkdownIt("commonmark").enable(["table", "strikethrough"]).render(text)
    content = _html_content(file, html)
    return _Content(content.text, title or content.title)


def _read_html(file: _File) -> _Content:
    return _html_content(file, file.data, file.encoding)


def _read_pdf(file: _File) -> _Content:
    try:
        from pypdf import PdfReader
    except ImportError as error:
        raise _missing_library(file, "pypdf") from error
    try:
        reader = PdfReader(BytesIO(file.data))
        if reader.is_encrypted and not reader.decrypt(""):
            raise DocumentError(f"{file.path}: protected by a password; save a copy without it")
        pages = _pdf_pages(file, reader.pages)
        title = str((reader.metadata and reader.metadata.title) or "")
    except DocumentError:
        raise
    except Exception as error:  # Damaged files make the library fail in every way there is.
        message = f"{file.path}: damaged or not a PDF ({type(error).__name__}: {error}); open it and save it again"
        raise DocumentError(message) from error
    text, starts = _join_pages(pages)
    scan = "it is probably a scan: run text recognition (OCR) on it first"
    return _Content(text, "" if _is_leftover(title) else title, starts, scan)


def _pdf_pages(file: _File, pages: Iterable[Any]) -> list[str]:
    """The text of each page, up to a limit on all of them."""
    texts: list[str] = []
    length = 0
    for page in pages:
        texts.append(page.extract_text())
        length += len(texts[-1]) + 2
        if length > MAX_CHARACTERS:
            raise DocumentError(f"{file.path}: more than {MAX_CHARACTERS:,} characters of text; split the file")
    return texts


_READERS: dict[str, Callable[[_File], _Content]] = {
    ".txt": _read_text,
    ".text": _read_text,
    ".rst": _read_text,
    ".md": _read_markdown,
    ".markdown": _read_markdown,
    ".html": _read_html,
    ".htm": _read_html,
    ".xhtml": _read_html,
    ".pdf": _read_pdf,
}

_BYTE_ORDER_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),  # before UTF-16, whose mark is its beginning
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


def _decode(file: _File) -> str:
    """Decode a text file: the caller's encoding, a byte order mark, UTF-8, or a guess, in this order."""
    marked = next((name for mark, name in _BYTE_ORDER_MARKS if file.data.startswith(mark)), None)
    encoding = file.encoding or marked or "utf-8"
    try:
        text = file.data.decode(encoding)
    except LookupError as error:
        raise DocumentError(f"{file.path}: Python knows no encoding named {encoding!r}") from error
    except UnicodeDecodeError as error:
        if encoding != "utf-8" or file.encoding:
            raise DocumentError(f"{file.path}: not valid {encoding} ({error.reason}); save it as UTF-8") from error
        text = _guess(file)
    if "\0" in text:
        raise DocumentError(f"{file.path}: holds NUL characters, so it is no text file; save it as UTF-8 text")
    return text


def _guess(file: _File) -> str:
    try:
        from charset_normalizer import from_bytes
    except ImportError as error:
        raise _missing_library(file, "charset-normalizer, or save it as UTF-8,") from error
    best = from_bytes(file.data).best()
    if best is None:
        raise DocumentError(f"{file.path}: neither UTF-8 nor a known encoding; save it as UTF-8")
    logger.warning("%s: not UTF-8, read as %s; save it as UTF-8, or name its encoding", file.path, best.encoding)
    return file.data.decode(best.encoding)


def _without_front_matter(text: str) -> tuple[str, str]:
    """Return Markdown without its front matter, and the title named there ("" where there is none)."""
    matter = re.match(r"---[ \t]*\r?\n(.*?\r?\n)?(---|\.\.\.)[ \t]*(\r?\n|$)", text, re.DOTALL)
    if not matter:
        return text, ""
    title = re.search(r"^title:[ \t]*(['\"]?)(.*?)\1[ \t]*\r?$", matter[1] or "", re.MULTILINE)
    return text[matter.end() :], title[2] if title else ""


# Elements whose content is no text of the document.
_DROPPED = frozenset({
    "audio", "button", "canvas", "datalist", "head", "iframe", "math", "nav", "noscript", "object", "script", "select",
    "style", "svg", "template", "video",
})  # fmt: skip
_INLINE = frozenset({
    "a", "abbr", "acronym", "b", "bdi", "bdo", "big", "cite", "code", "data", "del", "dfn", "em", "font", "i", "img",
    "input", "ins", "kbd", "label", "mark", "q", "rp", "rt", "ruby", "s", "samp", "small", "span", "strike", "strong",
    "sub", "sup", "time", "tt", "u", "var", "wbr",
})  # fmt: skip
_CELLS = frozenset({"td", "th"})


def _html_content(file: _File, html: str | bytes, encoding: str | None = None) -> _Content:
    try:
        from bs4 import BeautifulSoup
    except ImportError as error:
        raise _missing_library(file, "beautifulsoup4") from error
    try:
        soup = BeautifulSoup(html, "html.parser", from_encoding=encoding if isinstance(html, bytes) else None)
    except (ValueError, AssertionError, LookupError, RecursionError) as error:
        raise DocumentError(f"{file.path}: damaged HTML ({error}); open it in a browser and save it again") from error
    if "\0" in str(html[:4096]):
        raise DocumentError(f"{file.path}: holds NUL characters, so it is no HTML file")
    return _Content("\n\n".join(_html_blocks(soup)), _html_title(soup))


def _html_title(soup: BeautifulSoup) -> str:
    for name in ("title", "h1"):
        tag = soup.find(name)
        if tag and tag.get_text().strip():
            return tag.get_text()
    return ""


def _html_blocks(root: Tag) -> Iterator[str]:
    """Yield the text of each paragraph, heading, list item and table row, in order."""
    block: list[str] = []
    for text in _html_texts(root):
        if text is not None:
            block.append(text)
            continue
        paragraph = re.sub(r" ?\n ?", "\n", re.sub(r" {2,}", " ", "".join(block))).strip().strip(_KEPT_LINE)
        if paragraph:
            yield paragraph.replace(_KEPT_SPACE, " ").replace(_KEPT_LINE, "\n")
        block = []


# Stand for white space inside <pre>, so that it is not merged; private-use characters no real text holds.
_KEPT_SPACE, _KEPT_LINE = "\U0010fffd", "\U0010fffc"


def _html_texts(root: Tag) -> Iterator[str | None]:
    """Yield the pieces of text in order, and None at the borders of blocks.

    Walks with a list instead of by recursion: documents may be nested more deeply than Python's stack.
    """
    from bs4.element import NavigableString, Tag

    todo: list[tuple[Any, bool]] = [(None, False), (root, False)]
    while todo:
        node, kept = todo.pop()
        if node is None or type(node) is str:
            yield node
        elif type(node) is NavigableString:
            yield _keep(str(node)) if kept else re.sub(r"\s+", " ", node)
        elif isinstance(node, Tag) and node.name == "br":
            yield "\n"
        elif isinstance(node, Tag) and node.name not in _DROPPED:
            kept = kept or node.name == "pre"
            around = _around(node.name)
            todo += [(mark, False) for mark in around]
            todo += [(child, kept) for child in reversed(node.contents)]
            todo += [(mark, False) for mark in around]


def _around(name: str) -> tuple[str | None, ...]:
    """Return what stands before and after the content of an element."""
    if name in _CELLS:
        return (" ",)
    return () if name in _INLINE else (None,)


def _keep(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\n", _KEPT_LINE).replace(" ", _KEPT_SPACE)


def _join_pages(pages: list[str]) -> tuple[str, tuple[int, ...]]:
    """Join pages by blank lines; return the text and where each page starts."""
    starts, length = [], 0
    for page in pages:
        starts.append(length)
        length += len(page) + 2
    # Half of a surrogate pair, from a damaged font table, cannot be encoded by any tokenizer.
    return re.sub(r"[\ud800-\udfff]", "\ufffd", "\n\n".join(pages)), tuple(starts)


def _is_leftover(title: str) -> bool:
    """Tell whether a PDF's title was left there by the program that made it."""
    return bool(
        re.search(r"^(untitled|microsoft word|powerpoint)|\.(docx?|tex|dvi|pptx?|indd|pdf)$", title, re.IGNORECASE)
    )


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _missing_library(file: _File, name: str) -> DocumentError:
    return DocumentError(
        f"{file.path}: reading it needs {name} which is not installed: pip install 'nest-rag[documents]'"
    )
