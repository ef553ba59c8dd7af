"""An answer as HTML: marked spans with numbers, their sources on hover and focus, without any script.

Every text goes through `escape_text`, which makes it visible and escapes it; attributes hold nothing
from documents but links that `safe_url` has passed.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Sequence
from functools import cache
from html import escape
from importlib.resources import files

from nest_engine.rendering.characters import DROPPED, REPLACEMENT, character_end, one_line, shorten, visible
from nest_engine.rendering.link import host
from nest_engine.rendering.view import KIND_NOTES, Excerpt, Source, Span, View

_COLORS = 8
_CARD_QUOTE = 480  # characters of a quote shown in a card; the list has all of it
_LIST_QUOTE = 120
_HIDDEN = f'<span class="nest-hidden" title="a hidden or unreadable character">{REPLACEMENT}</span>'
_ELSEWHERE = 'target="_blank" rel="noopener noreferrer nofollow"'
_BLANKS = re.compile(r"[ \t]{2}|\t|^[ \t]", re.MULTILINE)
# Nothing is fetched and nothing runs, whatever a document may bring in. Styles are in the page.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


def to_html(view: View, *, uid: str | None = None) -> str:
    """Write an answer as a piece of HTML, for a notebook or a page of one's own.

    It brings its style along, which touches nothing else on the page.

    Args:
        view: The answer.
        uid: What ids begin with: letters, digits and hyphens. By default made up, so that several
            answers can stand on one page.
    """
    return f"<style>{_style()}</style>{_answer(view, uid or _new_uid())}"


def to_page(answers: Iterable[tuple[str, View]], *, title: str = "Answers") -> str:
    """Write answers as a whole HTML document, for a file.

    Args:
        answers: Questions and answers; a question may be empty.
        title: Title of the document where it has no single question.
    """
    listed = list(answers)
    heading = listed[0][0] if len(listed) == 1 and listed[0][0] else title
    body = "".join(_section(question, view, f"nest-{place}") for place, (question, view) in enumerate(listed, 1))
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{escape(one_line(heading))}</title>\n<style>{_style()}</style>\n</head>\n"
        f'<body class="nest-page">\n<main>\n{body}</main>\n</body>\n</html>\n'
    )


def to_page_or_piece(view: View, *, title: str, page: bool) -> str:
    """Write an answer as a whole document under a title, or as a piece of one.

    Args:
        view: The answer.
        title: A heading, such as the question; a piece has none.
        page: Whether to write a whole document.
    """
    return to_page([(title, view)]) if page else to_html(view)


def _section(question: str, view: View, uid: str) -> str:
    heading = f'<h1 class="nest-question" dir="auto">{escape_text(question)}</h1>\n' if question.strip() else ""
    return f"{heading}{_answer(view, uid)}\n"


def _new_uid() -> str:
    return f"nest-{secrets.token_hex(4)}"


@cache
def _style() -> str:
    return files("nest_engine.rendering").joinpath("answer.css").read_text(encoding="utf-8").strip()


def _answer(view: View, uid: str) -> str:
    caret = "" if view.is_complete else '<span class="nest-caret" aria-hidden="true"></span>'
    parts = [
        f'<div class="nest-answer" id="{uid}">',
        f'<div class="nest-text{_layout(view.text)}" dir="auto">{_marked(view, uid)}{caret}</div>',
        _sources(view, uid),
        _facts(view),
        "</div>",
    ]
    return "".join(parts)


# --- text -----------------------------------------------------------------------------


def escape_text(text: str) -> str:
    """Any text made visible and escaped, for an element of HTML."""
    return _escape(visible(text))


def _escape(shown: str) -> str:
    return escape(shown.replace(DROPPED, "")).replace(REPLACEMENT, _HIDDEN)


def _layout(text: str) -> str:
    """A class for text whose blanks matter, such as code. In other text marks should not cover blanks at line ends."""
    return " nest-laid-out" if _BLANKS.search(text) else ""


def _marked(view: View, uid: str) -> str:
    """The answer with its spans marked.

    All cutting is done in Python's code points before anything is escaped, so neither escapes nor
    the UTF-16 of browsers can move a range.
    """
    shown = visible(view.text)
    titles = {source.number: source for source in view.sources}
    parts, at = [], 0
    for place, span in enumerate(view.spans):
        start = max(span.start, at)
        end = max(span.end, start)  # spans never overlap; should they, the later one gives way
        following = view.spans[place + 1].start if place + 1 < len(view.spans) else len(shown)
        tail = min(character_end(view.text, end), max(following, end))
        parts.append(_escape(shown[at:start]))
        parts.append(_span(span, titles[span.number], shown[start:end], shown[end:tail], f"{uid}-{place + 1}"))
        at = tail
    return "".join([*parts, _escape(shown[at:])])


def _span(span: Span, source: Source, shown: str, tail: str, uid: str) -> str:
    """A marked span, its number, and the card that hover and focus show.

    Args:
        span: The span.
        source: Its source.
        shown: Its text.
        tail: Text that belongs to its last visible character: the number comes behind it.
        uid: What its ids begin with.
    """
    mark = f'<mark class="nest-quote">{_escape(shown)}</mark>{_escape(tail)}' if shown else _escape(tail)
    number = (
        f'<sup class="nest-number"><a href="#{uid}-source" aria-label="Source {span.number}, {span.kind}" '
        f'aria-describedby="{uid}-card" dir="ltr">{span.number}</a></sup>'
    )
    # `hidden` keeps cards out of sight where a host takes the style away.
    card = f'<span class="nest-card" id="{uid}-card" hidden>{_card(span, source)}</span>'
    return f'<span class="nest-cite nest-{span.kind} {_color(span.number)}" id="{uid}">{mark}{number}{card}</span>'


def _card(span: Span, source: Source) -> str:
    return (
        f'<span class="nest-card-kind">{KIND_NOTES[span.kind]}</span> '
        f'<span class="nest-card-title">{_badge(source.number)}{_title(source)}</span>'
        f"{_excerpt(span.excerpt, _CARD_QUOTE)}"
        f'<span class="nest-place" dir="ltr">{span.place}</span>'
    )


def _excerpt(excerpt: Excerpt, limit: int) -> str:
    """A quote inside its surrounding text."""
    # Made visible as one text: joiners and line ends at the edges look at their neighbors.
    shown = visible(excerpt.before + excerpt.quote + excerpt.after)
    start, end = len(excerpt.before), len(excerpt.before) + len(excerpt.quote)
    head, rest = shorten(shown[start:end], limit)
    gap = ' <span class="nest-cut">[…]</span> ' if rest else ""
    first = '<span class="nest-cut">…</span>' if excerpt.is_cut_before else ""
    last = '<span class="nest-cut">…</span>' if excerpt.is_cut_after else ""
    quote = f'<mark class="nest-quote">{_escape(head)}{gap}{_escape(rest)}</mark>'
    text = f"{first}{_escape(shown[:start])}{quote}{_escape(shown[end:])}{last}"
    return f'<span class="nest-context{_layout(shown)}" dir="auto">{text}</span>'


# --- sources and facts ----------------------------------------------------------------


def _sources(view: View, uid: str) -> str:
    if not view.spans:
        return '<p class="nest-none">Nothing was copied from the documents.</p>' if view.is_complete else ""
    kinds = {span.kind for span in view.spans}
    heading = {1: "Found in" if "matched" in kinds else "Copied from", 2: "Copied from, or found in"}[len(kinds)]
    items = "".join(_source(source, view.spans, uid) for source in view.sources)
    return (
        f'<p class="nest-heading" id="{uid}-sources">{heading}</p>'
        f'<ol class="nest-sources" role="list" aria-labelledby="{uid}-sources">{items}</ol>'
    )


def _source(source: Source, spans: Sequence[Span], uid: str) -> str:
    quotes = "".join(_quote(spans[place], f"{uid}-{place + 1}") for place in source.spans)
    return (
        f'<li class="nest-source {_color(source.number)}">'
        f'<div class="nest-source-title">{_badge(source.number)}{_title(source)}</div>'
        f'<ul class="nest-quotes" role="list">{quotes}</ul></li>'
    )


def _quote(span: Span, uid: str) -> str:
    """One quote of a source: shut it is a line, open it stands in its surrounding text."""
    head, rest = shorten(one_line(span.excerpt.quote), _LIST_QUOTE)
    line = f"{_escape(head)} … {_escape(rest)}" if rest else _escape(head)
    return (
        f'<li class="nest-item nest-{span.kind}" id="{uid}-source">'
        f'<details><summary><span class="nest-line">“<bdi>{line}</bdi>”</span> '
        f'<span class="nest-place" dir="ltr">{span.kind} · {span.place}</span></summary>'
        f"{_excerpt(span.excerpt, len(span.excerpt.quote))}</details>"
        f'<a class="nest-back" href="#{uid}" aria-label="Back to the answer, source {span.number}">↑</a></li>'
    )


def _title(source: Source) -> str:
    title = f'<bdi class="nest-title">{_escape(source.title)}</bdi>'
    if not source.url:
        return title
    # The host is told, so that nobody follows a friendly title to an unfriendly place.
    return (
        f'<a class="nest-link" href="{escape(source.url)}" {_ELSEWHERE}>{title}</a>'
        f' <bdi class="nest-host">{escape_text(host(source.url))}</bdi>'
    )


def _badge(number: int) -> str:
    return f'<span class="nest-badge">{number}</span> '


def _facts(view: View) -> str:
    if view.facts is None:
        return ""
    facts = "".join(f'<span class="nest-fact">{escape_text(fact)}</span>' for fact in view.facts.to_lines())
    return f'<p class="nest-facts">{facts}</p>'


def _color(number: int) -> str:
    return f"nest-color-{(number - 1) % _COLORS}"
