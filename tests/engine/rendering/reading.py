"""Reads the HTML of an answer back, as a browser without styles would."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser

TAGS = {"a", "bdi", "details", "div", "li", "mark", "ol", "p", "span", "style", "summary", "sup", "ul"}
ATTRIBUTES = {
    "aria-describedby", "aria-hidden", "aria-label", "aria-labelledby", "class", "dir", "hidden", "href", "id", "rel",
    "role", "target", "title",
}  # fmt: skip
_VOID = {"meta"}


@dataclass
class Read:
    """What was found in the HTML.

    Attributes:
        text: The answer: what `nest-text` shows without numbers and cards.
        marks: The texts of its marks.
        numbers: Its numbers, in order.
        shown: All that is shown, without styles and cards.
        cards: All that the cards say.
        tags: All tags.
        attributes: All attributes, with their values.
    """

    text: str = ""
    marks: list[str] = field(default_factory=list)
    numbers: list[str] = field(default_factory=list)
    shown: str = ""
    cards: str = ""
    tags: set[str] = field(default_factory=set)
    attributes: list[tuple[str, str]] = field(default_factory=list)

    def values(self, name: str) -> list[str]:
        return [value for key, value in self.attributes if key == name]


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.read = Read()
        self._open: list[tuple[str, set[str]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.read.tags.add(tag)
        self.read.attributes += [(name, value or "") for name, value in attrs]
        given = dict(attrs)
        names = set((given.get("class") or "").split()) | ({"hidden"} if "hidden" in given else set())
        if tag not in _VOID:
            self._open.append((tag, names))
        if tag == "mark" and self._within("nest-text") and not self._within("hidden"):
            self.read.marks.append("")

    def handle_endtag(self, tag: str) -> None:
        assert self._open, f"</{tag}> ends nothing"
        assert self._open.pop()[0] == tag

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1][0] == "style":
            return
        if self._within("hidden"):
            self.read.cards += data
            return
        self.read.shown += data
        if self._within("nest-number"):
            self.read.numbers.append(data)
        elif self._within("nest-text"):
            self.read.text += data
            if any(tag == "mark" for tag, _ in self._open):
                self.read.marks[-1] += data

    def handle_comment(self, data: str) -> None:
        raise AssertionError(f"a comment: {data!r}")

    def close(self) -> None:
        super().close()
        assert not self._open, f"left open: {self._open}"

    def _within(self, name: str) -> bool:
        return any(name in names for _, names in self._open)


def read_html(html: str) -> Read:
    """Read a piece of HTML, and check that it is well formed."""
    reader = _Reader()
    reader.feed(html)
    reader.close()
    return reader.read


def check_inert(read: Read) -> None:
    """Nothing but known tags, attributes and links: nothing from a document became markup."""
    assert read.tags <= TAGS
    assert {name for name, _ in read.attributes} <= ATTRIBUTES
    ids = read.values("id")
    assert len(ids) == len(set(ids))
    for link in read.values("href"):
        assert link[1:] in ids if link.startswith("#") else link.startswith(("http://", "https://"))
        assert link.isascii()
        assert not set(link) & set("\"'<> \\") - {"'"}
    for name in read.values("class"):
        assert all(part.startswith("nest-") for part in name.split())
