"""The HTML of an answer in a real browser: hover, keyboard, jumps, safety, accessibility, looks."""

from __future__ import annotations

import os

import pytest
from axe_playwright_python.sync_playwright import Axe
from PIL import Image

from nest_engine.rendering import make_view, to_html, to_page, view_generation
from nest_engine.rendering.characters import DROPPED, visible
from tests.answers import hostile, island, scripts
from tests.conftest import ROOT

QUESTION = "Can I visit the lighthouse and the river in one day?"
ANSWERS = {"island": island, "hostile": hostile, "scripts": scripts}
LOOKS = [(width, scheme) for width in (360, 1280) for scheme in ("light", "dark")]


def page_of(name="island"):
    return ANSWERS[name]().to_html(title=QUESTION)


def cards(page):
    """The cards that are to be seen."""
    return page.locator(".nest-card:visible")


def box(locator):
    found = locator.bounding_box()
    assert found is not None
    return found


# --- hover, keyboard, jumps: all of it without JavaScript -------------------------------


def test_hover_shows_the_quote_in_its_source(open_html):
    page = open_html(page_of())
    assert cards(page).count() == 0
    page.locator(".nest-cite > .nest-quote").first.hover()
    card = cards(page)
    assert card.count() == 1
    text = card.inner_text()
    assert "Copied from" in text
    assert "The lighthouse at Cape Morwen" in text
    assert card.locator("mark").inner_text() == "The lighthouse at Cape Morwen was built in 1871 from grey granite."
    assert "Its lamp burned whale oil" in text
    assert card.locator("a").get_attribute("href") == "https://example.org/lighthouse"
    page.mouse.move(5, 5)
    assert cards(page).count() == 0


def test_the_pointer_can_go_into_the_card(open_html):
    page = open_html(page_of())
    number = page.locator(".nest-number a").first
    number.hover()
    link = cards(page).locator("a")
    start, end = box(number), box(link)
    page.mouse.move(end["x"] + 5, start["y"] + start["height"], steps=4)
    page.mouse.move(end["x"] + 5, end["y"] + end["height"] / 2, steps=12)
    assert link.is_visible()


def test_the_keyboard_alone_is_enough(open_html):
    page = open_html(page_of())
    page.keyboard.press("Tab")
    assert cards(page).count() == 1
    page.keyboard.press("Tab")  # the link in the card
    assert page.locator(".nest-card a:focus").get_attribute("href") == "https://example.org/lighthouse"
    page.keyboard.press("Tab")  # the next number
    assert "Today the tower" in cards(page).inner_text()
    page.keyboard.press("Enter")
    assert page.url.endswith("#nest-1-2-source")
    page.keyboard.press("Tab")  # from the target on: the quote's summary
    page.keyboard.press("Enter")
    assert page.locator("details[open] .nest-context").inner_text().startswith("…keeper, Ada Finch")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    assert page.url.endswith("#nest-1-2")


def test_click_jumps_to_the_source_and_back(open_html):
    long = "\n".join(f"Line {n} of the model's own words." for n in range(80))
    generation = island()
    view = make_view(generation.text + long, generation.citations, [s.passage for s in generation.passages])
    page = open_html(to_page([(QUESTION, view)]))
    item = page.locator("#nest-1-3-source")
    height = page.viewport_size["height"]
    assert box(item)["y"] > height
    page.locator("#nest-1-3 .nest-number a").click()
    assert 0 <= box(item)["y"] < height
    item.locator(".nest-back").click()
    assert 0 <= box(page.locator("#nest-1-3"))["y"] < height


def test_kinds_and_sources_are_told_apart_without_color(open_html):
    page = open_html(page_of(), scripts=True)
    style = "e => getComputedStyle(e).textDecorationStyle"
    assert page.locator(".nest-cite.nest-copied > mark").first.evaluate(style) == "solid"
    assert page.locator(".nest-cite.nest-matched > mark").first.evaluate(style) == "dotted"
    assert page.locator(".nest-number").all_inner_texts() == ["1", "1", "2", "2", "3"]
    spoken = "e => getComputedStyle(e, '::before').content"
    assert "matched" in page.locator(".nest-cite.nest-matched > mark").first.evaluate(spoken)


# --- safety and ranges ------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_hostile_document_is_inert_and_readable(open_html, scheme):
    page = open_html(page_of("hostile"), scheme=scheme, scripts=True)
    for number in page.locator(".nest-number a").all():
        page.mouse.move(2, 2)  # out of the last card, which lies over what follows
        number.hover()
    page.mouse.move(2, 2)
    for summary in page.locator("summary").all():
        summary.click()
    assert page.evaluate("window.broken") is None
    assert page.locator("script, img, iframe, b, u, form, object").count() == 0
    links = page.evaluate("[...document.links].map(a => a.protocol)")
    assert set(links) <= {"file:", "https:"}
    assert "<script>window.broken" in page.locator(".nest-text").inner_text()


def test_a_hostile_document_cannot_use_the_scripts_of_a_notebook(open_html):
    page = open_html(f"<!doctype html><title>x</title>{hostile().to_html(page=False)}", scripts=True)
    assert page.evaluate("window.broken") is None


@pytest.mark.parametrize("name", ANSWERS)
def test_the_browser_marks_the_same_characters(open_html, name):
    """Offsets are code points in Python and UTF-16 in browsers; CRLF, emoji and accents are where they differ."""
    generation = ANSWERS[name]()
    page = open_html(page_of(name), scripts=True)
    text = visible(generation.text)
    marked = page.locator(".nest-cite > mark").evaluate_all("marks => marks.map(m => m.textContent)")
    assert marked == [text[c.start : c.end].replace(DROPPED, "") for c in generation.citations]
    shown = page.evaluate("""() => {
        const copy = document.querySelector(".nest-text").cloneNode(true);
        copy.querySelectorAll(".nest-card, .nest-number").forEach(e => e.remove());
        return copy.textContent;
    }""")
    assert shown == text.replace(DROPPED, "")


def test_text_from_right_to_left(open_html):
    page = open_html(page_of("scripts"))
    area = box(page.locator(".nest-text"))
    first, third = box(page.locator("#nest-1-1 > mark")), box(page.locator("#nest-1-3 > mark"))
    assert first["x"] + first["width"] > area["x"] + area["width"] / 2  # a Hebrew line is read from the right
    assert third["x"] < area["x"] + area["width"] / 3  # an English one from the left
    page.locator("#nest-1-1 .nest-number a").focus()
    card = box(cards(page))
    assert card["x"] >= area["x"] - 1
    assert card["x"] + card["width"] <= area["x"] + area["width"] + 1


def test_the_selection_has_no_numbers(open_html):
    page = open_html(page_of(), scripts=True)
    page.evaluate("getSelection().selectAllChildren(document.querySelector('.nest-text'))")
    assert "grey granite. It stands" in page.evaluate("getSelection().toString()")


# --- looks ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ANSWERS)
@pytest.mark.parametrize(("width", "scheme"), LOOKS)
def test_axe_finds_no_serious_fault(open_html, name, width, scheme):
    page = open_html(page_of(name), width=width, scheme=scheme, scripts=True)
    faults = Axe().run(page).response["violations"]  # without a card first, as it lies over other text
    for summary in page.locator("summary").all():
        summary.click()
    page.locator(".nest-number a").nth(1).focus()
    faults += Axe().run(page).response["violations"]
    assert not [(f["id"], [n["html"] for n in f["nodes"]]) for f in faults if f["impact"] in ("serious", "critical")]


@pytest.mark.parametrize("name", ANSWERS)
@pytest.mark.parametrize(("width", "scheme"), LOOKS)
def test_nothing_sticks_out(open_html, name, width, scheme):
    page = open_html(page_of(name), width=width, scheme=scheme, scripts=True)
    for number in page.locator(".nest-number a").all():
        number.focus()
        card = box(cards(page))
        assert card["x"] >= 0
        assert card["x"] + card["width"] <= width
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_numbers_do_not_begin_lines(open_html):
    page = open_html(page_of(), scripts=True)
    for width in range(320, 900, 12):
        page.set_viewport_size({"width": width, "height": 800})
        text = box(page.locator(".nest-text"))["x"]
        assert (
            page.locator(".nest-number").evaluate_all("all => Math.min(...all.map(e => e.getBoundingClientRect().x))")
            > text + 8
        )


@pytest.mark.parametrize(("theme", "scheme"), [("true", "dark"), ("false", "light")])
def test_a_notebook_knows_better_than_the_system(open_html, theme, scheme):
    html = f'<!doctype html><title>x</title><body data-jp-theme-light="{theme}">{island().to_html(page=False)}'
    page = open_html(html, scheme=scheme, scripts=True)
    color = page.locator(".nest-answer").evaluate("e => getComputedStyle(e).backgroundColor")
    assert (color == "rgb(255, 255, 255)") == (theme == "true")


def test_the_style_stays_inside(open_html):
    outside = "<!doctype html><title>x</title><p>Text <mark>mark</mark> <a href='#x'>link</a></p><ul><li>item</ul>"
    look = """() => [...document.querySelectorAll("body, p:not([class]), p:not([class]) *, body > ul *")].map(e => {
        const style = getComputedStyle(e);
        return [...style].filter(name => !/size|height|origin/.test(name)).map(name => name + style[name]);
    })"""
    before = open_html(outside, scripts=True).evaluate(look)
    after = open_html(outside + island().to_html(page=False), scripts=True).evaluate(look)
    assert before == after


def test_two_answers_on_one_page(open_html):
    views = [view_generation(island()), view_generation(island())]
    page = open_html("<!doctype html><title>x</title>" + "".join(to_html(view) for view in views), scripts=True)
    ids = page.evaluate("[...document.querySelectorAll('[id]')].map(e => e.id)")
    assert len(ids) == len(set(ids))


def test_without_its_style_cards_stay_hidden(open_html):
    page = open_html(to_html(view_generation(island())).split("</style>")[1])
    assert cards(page).count() == 0
    assert page.locator(".nest-number a").first.is_visible()


@pytest.mark.parametrize(("width", "scheme"), LOOKS)
def test_pictures(open_html, tmp_path, width, scheme):
    """Pictures to look at; with NEST_PICTURES=1 those in docs/images are written anew."""
    folder = ROOT / "docs" / "images" if os.environ.get("NEST_PICTURES") else tmp_path
    folder.mkdir(exist_ok=True)
    page = open_html(page_of(), width=width, scheme=scheme)
    page.locator(".nest-number a").nth(1).hover()
    file = folder / f"answer-{width}-{scheme}.png"
    height = min(page.locator("main").bounding_box()["height"] + 60, 1400)
    left, right = (0, width) if width < 800 else (240, 1040)
    page.screenshot(path=file, full_page=True, clip={"x": left, "y": 0, "width": right - left, "height": height})
    # A third of the size, and looks the same.
    Image.open(file).quantize(256, Image.Quantize.MAXCOVERAGE, kmeans=3).save(
        file, optimize=True
    )  # a third of the size
    assert file.stat().st_size < 60_000
