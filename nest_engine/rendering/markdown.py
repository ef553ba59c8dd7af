r"""An answer as Markdown with footnotes, as GitHub, Jupyter Book, Pandoc and many others read them.

All that Markdown would read as markup is escaped, so the text is shown as it stands.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from nest_engine.rendering.characters import DROPPED, character_end, one_line, shorten, visible
from nest_engine.rendering.link import host
from nest_engine.rendering.view import KIND_NOTES, Source, Span, View

_QUOTE = 200  # characters of a quote in a footnote
_ACTIVE = re.compile(r"[\\`*_{}\[\]<>#|~&$^]|!(?=\[|$)")
_LINE_START = re.compile(r"^([ \t]*)(?:([-+=:])|(\d{1,9})([.)]))?", re.MULTILINE)
# Behind a mark these would make it a link, or the definition of one, where footnotes are not known.
_BEHIND_MARK = re.compile(r"^[(:]")


def to_markdown(view: View, *, prefix: str = "") -> str:
    """Write an answer as Markdown.

    Args:
        view: The answer.
        prefix: What the labels of footnotes begin with, so that several answers can stand in one document:
            letters and digits.
    """
    parts = [_marked(view, prefix)]
    if view.is_complete:
        parts += [_note(source, view, prefix) for source in view.sources]
        parts += [] if view.spans else ["*Nothing was copied from the documents.*"]
    if view.facts is not None:
        parts.append(f"*{' · '.join(_inline(fact) for fact in view.facts.to_lines())}*")
    return "\n\n".join(part for part in parts if part) + "\n"


def to_markdown_document(answers: Iterable[tuple[str, View]]) -> str:
    """Write answers as one Markdown document.

    Args:
        answers: Questions and answers; a question may be empty.
    """
    listed = list(answers)
    parts = []
    for place, (question, view) in enumerate(listed, 1):
        heading = f"# {_inline(question)}\n\n" if question.strip() else ""
        parts.append(heading + to_markdown(view, prefix=f"{place}-" if len(listed) > 1 else ""))
    return "\n".join(parts)


def _marked(view: View, prefix: str) -> str:
    """The answer with a footnote's mark behind each span."""
    shown = visible(view.text)
    parts, at = [], 0
    for place, span in enumerate(view.spans):
        following = view.spans[place + 1].end if place + 1 < len(view.spans) else len(shown)
        end = max(min(character_end(view.text, span.end), following), at)
        parts += [shown[at:end], _mark(span.number, prefix)]
        at = end
    parts.append(shown[at:])
    return _join(parts)


def _mark(number: int, prefix: str) -> str:
    return f"[^{prefix}{number}]"


def _join(parts: list[str]) -> str:
    """Texts and marks in turn, the texts escaped; lines stay lines."""
    escaped = []
    for place, part in enumerate(parts):
        if place % 2:
            escaped.append(part)
            continue
        text = _escape(part, is_line_start=place == 0 or parts[place - 2].endswith("\n"))
        escaped.append(_BEHIND_MARK.sub(r"\\\g<0>", text) if place else text)
    # A newline alone would be a blank; blank lines would end the footnote's mark from its text.
    return re.sub(r"(?<=[^\n])\n(?=[^\n])", "\\\n", "".join(escaped).strip("\n"))


def _escape(shown: str, *, is_line_start: bool) -> str:
    text = _ACTIVE.sub(r"\\\g<0>", shown.replace(DROPPED, ""))
    first, rest = ("", text) if is_line_start else (text.split("\n", 1)[0], text[text.find("\n") :])
    if not is_line_start and "\n" not in text:
        return text
    return first + _LINE_START.sub(_escape_line_start, rest)


def _escape_line_start(match: re.Match[str]) -> str:
    """A line's beginning that makes no list, no heading and no code."""
    indent = match[1].replace("\t", "    ").replace(" ", "&nbsp;")
    if match[2]:
        return f"{indent}\\{match[2]}"
    return f"{indent}{match[3]}\\{match[4]}" if match[3] else indent


def _inline(text: str) -> str:
    """A text in one line, escaped."""
    return _ACTIVE.sub(r"\\\g<0>", one_line(text))


def _note(source: Source, view: View, prefix: str) -> str:
    """A footnote. It begins with words, so that it is no definition of a link where footnotes are not known."""
    spans = [view.spans[place] for place in source.spans]
    title = f"**{_inline(source.title)}**"
    if source.url:
        address = source.url.replace("(", "%28").replace(")", "%29")
        title = f"[{title}]({address}) ({_inline(host(source.url))})"
    quotes = "; ".join(_quote(span) for span in spans)
    kind = KIND_NOTES["copied" if any(span.kind == "copied" for span in spans) else "matched"]
    return f"{_mark(source.number, prefix)}: {kind} {title}: {quotes}"


def _quote(span: Span) -> str:
    head, rest = shorten(one_line(span.excerpt.quote), _QUOTE)
    words = f"{_inline(head)} … {_inline(rest)}" if rest else _inline(head)
    matched = ", the model’s own words" if span.kind == "matched" else ""
    return f"“{words}” ({span.place}{matched})"
