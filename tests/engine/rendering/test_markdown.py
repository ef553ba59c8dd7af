"""Markdown that shows the text as it stands: nothing from documents becomes markup."""

import re

import pytest
from hypothesis import given, settings
from markdown_it import MarkdownIt

from nest_engine import Generation, Passage
from nest_engine.rendering import to_markdown, to_markdown_document, view_generation
from nest_engine.rendering.characters import DROPPED, visible
from tests.answers import STATS, answer_of, hostile, island, scripts
from tests.engine.rendering.test_html import answers

# HTML and tables on: what GitHub reads. Linkify is off: bare addresses lead where they say.
READER = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])


def read(markdown):
    """Return the shown text of the answer's part, all kinds of tokens, and all links."""
    tokens = READER.parse(markdown)
    kinds, links, text = set(), [], ""
    for token in tokens:
        kinds.add(token.type)
        if token.type == "paragraph_close":
            text += "\n"
        for child in token.children or ():
            kinds.add(child.type)
            links += [child.attrs["href"]] if child.type == "link_open" else []
            text += "\n" if child.type in ("hardbreak", "softbreak") else child.content
    return text, kinds, links


def words(text):
    return re.sub(r"\s+", "", text)


def check(generation):
    markdown = generation.to_markdown()
    text, kinds, links = read(markdown)
    assert kinds <= {
        "inline", "paragraph_open", "paragraph_close", "text", "text_special", "hardbreak", "softbreak",
        "strong_open", "strong_close", "em_open", "em_close", "link_open", "link_close",
    }  # fmt: skip
    assert all(link.startswith(("http://", "https://")) for link in links), links
    view = view_generation(generation)
    shown = visible(generation.text).replace(DROPPED, "")
    marks = {f"[^{source.number}]" for source in view.sources}
    body = words(text)
    if not any(mark in shown for mark in marks):
        for mark in marks:
            body = body.replace(mark, "")
    else:
        return markdown
    assert body.startswith(words(shown))
    return markdown


@pytest.mark.parametrize("make", [island, hostile, scripts])
def test_answers(make):
    check(make())


@given(answers())
@settings(max_examples=150, deadline=None)
def test_any_answer(generation):
    check(generation)


def test_footnotes():
    markdown = island().to_markdown()
    assert "grey granite.[^1] It stands" in markdown
    assert (
        "[^1]: Copied from [**The lighthouse at Cape Morwen**](https://example.org/lighthouse) (example.org): “"
        in markdown
    )
    assert "characters 1200–1266 of the document" in markdown
    assert "the model’s own words" in markdown
    assert markdown.endswith("*mode ra-nest · 71% of 58 tokens copied · 2.4 tokens per LM call · 1.8 s*\n")


def test_lines_stay_lines():
    generation = answer_of([Passage("one\r\n- two\n    three\n\n# four")], ["Text:\n", (0, 0, 28)])
    text, _, _ = read(generation.to_markdown())
    assert text.startswith("Text:\none\n- two\n\xa0\xa0\xa0\xa0three\n# four[^1]")


def test_a_mark_is_no_link_where_footnotes_are_unknown():
    generation = answer_of([Passage("x", title="javascript:alert(1)")], [(0, 0, 1), "(javascript:alert(1))"])
    assert read(generation.to_markdown())[2] == []
    assert "[^1]\\(javascript" in generation.to_markdown()


def test_backslashes_and_exclamation_marks():
    generation = answer_of([Passage("wow!", title="\\")], [(0, 0, 4), " \\*a\\_ !", (0, 0, 3), "!"])
    assert generation.to_markdown().startswith("wow\\![^1] \\\\\\*a\\\\\\_ !wow[^1]\\!\n")
    assert "**\\\\**" in generation.to_markdown()


def test_labels_of_several_answers_differ():
    views = [("One?", view_generation(island())), ("Two*", view_generation(island()))]
    document = to_markdown_document(views)
    assert "[^1-1]:" in document
    assert "[^2-1]:" in document
    assert "# Two\\*\n" in document
    assert to_markdown_document(views[:1]) == "# One?\n\n" + island().to_markdown()


def test_nothing_copied():
    assert "*Nothing was copied from the documents.*" in Generation("Hello!", (), STATS, "end").to_markdown()
    assert to_markdown(view_generation(Generation("", (), STATS, "end"))).startswith("*Nothing")
