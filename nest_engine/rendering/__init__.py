"""Answers for people: HTML, Markdown, a notebook, a terminal.

`view` says what is shown, without a word of markup; each other module writes it in one form.
"""

from nest_engine.rendering.html import to_html, to_page, to_page_or_piece
from nest_engine.rendering.markdown import to_markdown, to_markdown_document
from nest_engine.rendering.view import Excerpt, Facts, Source, Span, View, make_view, view_generation

__all__ = [
    "Excerpt",
    "Facts",
    "Source",
    "Span",
    "View",
    "make_view",
    "to_html",
    "to_markdown",
    "to_markdown_document",
    "to_page",
    "to_page_or_piece",
    "view_generation",
]
