"""The HTML shows the answer to the character, and nothing from documents becomes markup."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nest_engine import Citation, Generation, Passage
from nest_engine.rendering import make_view, to_html, to_page, view_generation
from nest_engine.rendering.characters import DROPPED, visible
from tests.answers import STATS, answer_of, hostile, island, scripts
from tests.engine.rendering.reading import check_inert, read_html
from tests.texts import TEXTS

NASTY = st.lists(
    st.sampled_from([
        "<script>", "</span>", "</div>", "<!--", "-->", "&lt;", "&#0;", "&", '"', "'", "<img src=x onerror=alert(1)>",
        "javascript:alert(1)", "https://example.org/", "](", "\r\n", "\r", "\n", "  ", "\t", "\x00", "\x1b", "\u202e",
        "\u2066", "\u200b", "\u200d", "\ufeff", "e\u0301", "\u0301", "👨‍👩‍👧", "🏽", "א", "ب", "漢", "word ", "\\", "!",
        "]]>", "\ud83d",
    ]),
    min_size=1, max_size=12,
).map("".join)  # fmt: skip


@st.composite
def answers(draw) -> Generation:
    """Answers of own words and copies, documents and all full of traps."""
    texts = draw(st.lists(NASTY.map(lambda text: text + "x"), min_size=1, max_size=3))
    passages = [
        Passage(text, title=draw(NASTY), id=draw(NASTY) + str(n), metadata={"url": draw(NASTY), "source": draw(NASTY)})
        for n, text in enumerate(texts)
    ]
    parts = []
    for _ in range(draw(st.integers(0, 5))):
        parts.append(draw(NASTY))
        place = draw(st.integers(0, len(passages) - 1))
        start = draw(st.integers(0, len(texts[place]) - 1))
        end = draw(st.integers(start + 1, len(texts[place])))
        parts.append((place, start, end, draw(st.sampled_from(["copied", "matched"]))))
    return answer_of(passages, parts)


def shown(text):
    return text.replace(DROPPED, "")


def check(generation):
    """The HTML of an answer shows its text, marks exactly what was copied, and holds no markup of others."""
    read = read_html(generation.to_html(page=False))
    check_inert(read)
    text = visible(generation.text)
    assert read.text == shown(text)
    assert read.numbers == [str(citation.number) for citation in generation.citations]
    assert read.marks == [shown(text[c.start : c.end]) for c in generation.citations]
    return read


@pytest.mark.parametrize("make", [island, hostile, scripts])
def test_answers(make):
    check(make())


@given(answers())
@settings(max_examples=150, deadline=None)
def test_any_answer(generation):
    check(generation)


@given(NASTY, st.lists(st.tuples(st.integers(0, 40), st.integers(1, 20), st.integers(1, 9)), max_size=6))
@settings(max_examples=100, deadline=None)
def test_overlapping_citations_lose_nothing(text, ranges):
    text = text * 3
    citations = [
        Citation(number, "copied", start, start + length, "p", "d", "T", 0, length, None, text[start : start + length])
        for start, length, number in ranges
        if start + length <= len(text)
    ]
    read = read_html(to_html(make_view(text, citations)))
    check_inert(read)
    assert read.text == shown(visible(text))
    expected = [str(c.number) for c in sorted(citations, key=lambda c: (c.start, c.end))]
    assert read.numbers == expected


@pytest.mark.parametrize("name", TEXTS)
def test_quotes_and_context(name):
    text = TEXTS[name]
    generation = answer_of([Passage(text, title=name)], ["So: ", (0, 10, 60)])
    read = check(generation)
    excerpt = view_generation(generation).spans[0].excerpt
    context = shown(visible(excerpt.before + excerpt.quote + excerpt.after))
    assert context in read.cards
    assert context in read.shown  # the list of sources has it, too


def test_hostile_links():
    links = read_html(hostile().to_html(page=False)).values("href")
    outside = {link for link in links if not link.startswith("#")}
    assert outside == {"https://example.org/%22onmouseover=%22window.broken=7%22%20%3Cscript%3E"}


def test_the_number_is_told_and_the_kind():
    read = read_html(island().to_html(page=False))
    labels = read.values("aria-label")
    assert "Source 1, copied" in labels
    assert "Source 2, matched" in labels
    assert "Copied from, or found in" in read.shown
    assert "The model’s own words, found in" in read.cards
    assert "71% of 58 tokens copied" in read.shown
    assert "prove" not in read.shown + read.cards


def test_numbers_stand_behind_whole_characters():
    """A span that ends inside a character keeps its range; its number waits for the accent."""
    html = to_html(view_generation(scripts()), uid="u")
    assert '<mark class="nest-quote">The cafe</mark>\u0301<sup' in html
    assert "👨</mark>\u200d👩\u200d👧\u200d👦<sup" in html


def test_jumps_lead_there_and_back():
    html = to_html(view_generation(island()), uid="u")
    for place in range(1, 6):
        assert f'href="#u-{place}-source"' in html
        assert f'id="u-{place}-source"' in html
        assert f'href="#u-{place}"' in html
        assert f'id="u-{place}"' in html


def test_two_answers_on_one_page_do_not_clash():
    ids = read_html(island().to_html(page=False) + island()._repr_html_()).values("id")
    assert len(ids) == len(set(ids))
    page = to_page([("One", view_generation(island())), ("", view_generation(scripts()))])
    assert page.count("<h1") == 1
    assert page.count("<style>") == 1


def test_the_page_fetches_nothing_and_runs_nothing():
    page = hostile().to_html(title="</title><script>alert(1)</script>\u202e")
    assert page.startswith("<!doctype html>")
    assert "default-src 'none'" in page
    assert "<script" not in page
    assert "<title>&lt;/title&gt;&lt;script&gt;" in page
    for word in ("@import", "url(", "src=x ", "<link"):
        assert word not in page.replace("&lt;img src=x", "")
    page.encode("utf-8")


def test_the_style_touches_nothing_else():
    style = island()._repr_html_().split("<style>")[1].split("</style>")[0]
    for line in style.splitlines():
        if line.rstrip().endswith("{") and not line.startswith(("@", " ")):
            assert all("nest-" in selector for selector in line.split(","))


def test_nothing_copied_and_empty_answers():
    plain = Generation("Hello!", (), STATS, "end")
    assert "Nothing was copied" in read_html(plain._repr_html_()).shown
    assert read_html(replace(plain, text="")._repr_html_()).text == ""
    assert "Nothing was copied" not in to_html(make_view("Hel", [], is_complete=False))


def test_long_quotes_are_cut_in_cards_alone():
    text = " ".join(f"word{n}" for n in range(300))
    read = check(answer_of([Passage(text)], [(0, 0, len(text))]))
    assert "[…]" in read.cards
    assert len(read.cards) < 700
    assert text in read.shown
