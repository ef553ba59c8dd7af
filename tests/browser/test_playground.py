"""The playground in a real browser: it opens, answers, follows its sliders, and keeps to this machine."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from axe_playwright_python.sync_playwright import Axe
from PIL import Image

from nest_engine import NestEngine
from nest_engine.playground.app import launch, make_app
from nest_engine.playground.bench import Bench
from nest_engine.retrieval import Bm25Source
from tests.answers import HOSTILE
from tests.conftest import ROOT

SECONDS = 300_000
OURS = ["#nest-plain", "#nest-nest", "#nest-steps"]
LOOKS = [(1280, "light"), (1280, "dark"), (360, "light"), (360, "dark")]


@pytest.fixture(scope="module")
def address(demo_engine) -> Iterator[str]:
    engine = NestEngine(demo_engine.model, demo_engine.config.replace(max_new_tokens=40))
    app = make_app(Bench(engine, lambda passages: Bm25Source.from_passages(passages, progress=False)))
    yield launch(app, wait=False)
    app.close()


@pytest.fixture
def visit(browser, address):
    """Opens the page; at the end nothing has complained, and no request has left this machine."""
    contexts, complaints, wanted = [], [], []

    def open_page(width=1280, scheme="light"):
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda m: m.type in ("error", "warning") and complaints.append(f"{m.type}: {m.text}"))
        page.on("pageerror", lambda error: complaints.append(f"error: {error}"))
        page.on("dialog", lambda dialog: (complaints.append("a dialog"), dialog.dismiss()))
        page.on("request", lambda request: wanted.append(request.url))
        page.on("websocket", lambda socket: wanted.append(socket.url))
        page.goto(address)
        page.locator("#nest-ask").wait_for(timeout=SECONDS)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert not complaints
    assert address.startswith("http://127.0.0.1:")
    assert [url for url in wanted if not url.startswith((address, "blob:", "data:"))] == []


def ask(page, question=None, text=None):
    if text is not None:
        page.locator("#nest-text textarea").fill(text)
    if question is not None:
        page.locator("#nest-question textarea").fill(question)
    page.locator("#nest-ask").click()
    page.locator("#nest-nest .nest-answer").wait_for(timeout=SECONDS)
    return page.locator("#nest-nest .nest-answer")


def move(page, name, presses):
    """Moves a slider by the keyboard, as far as it takes."""
    slider = page.locator(f"#{name} input[type=range]")
    slider.focus()
    slider.press(presses)
    slider.dispatch_event("pointerup")


def test_a_question_is_answered_with_marks_beside_the_plain_model(visit):
    page = visit()
    answer = ask(page)
    assert "1871" in answer.locator("mark.nest-quote").first.inner_text()
    page.locator("#nest-plain .nest-answer").wait_for(timeout=SECONDS)
    assert page.locator("#nest-plain .nest-answer .nest-facts").inner_text().startswith("mode lm")
    assert page.locator("#nest-plain mark").count() == 0
    answer.locator(".nest-number a").first.hover()  # the middle of a mark over two lines may lie beside it
    assert "Copied from" in answer.locator(".nest-card:visible").inner_text()


def test_a_slider_changes_the_answer(visit):
    page = visit()
    before = ask(page).inner_html()
    copied = page.locator("#nest-nest mark.nest-quote").count()
    assert copied
    move(page, "nest-delta", "Home")  # lambda is never 0: no span can start
    page.locator("#nest-nest .nest-none").wait_for(timeout=SECONDS)
    assert page.locator("#nest-nest .nest-answer").inner_html() != before
    assert page.locator("#nest-steps mark").count() == 0


def test_gamma_changes_what_is_accepted(visit):
    page = visit()
    ask(page)
    page.locator("#nest-steps tbody tr").first.wait_for(timeout=SECONDS)
    before = page.locator("#nest-steps tbody").inner_text()
    move(page, "nest-gamma", "End")  # 1: a token is kept where it is as likely as the likeliest
    page.wait_for_function(
        "before => { const e = document.querySelector('#nest-steps tbody'); return e && e.innerText != before; }",
        arg=before,
        timeout=SECONDS,
    )
    assert page.locator("#nest-steps del").count() > 0


def test_the_steps_are_a_table(visit):
    page = visit()
    ask(page)
    table = page.locator("#nest-steps table")
    assert table.locator("thead th").count() == 6
    assert "tokens accepted" in table.locator("tbody").inner_text()
    assert "1871" in table.locator("mark").first.inner_text()


def test_a_hostile_document_stays_text(visit):
    page = visit()
    ask(page, text=f"{HOSTILE}. ${{window.broken=8}} {{{{window.broken}}}} ${{1+1}}.", question="unclosed <b>bold</b>?")
    page.wait_for_timeout(300)
    assert page.evaluate("window.broken") is None
    for part in ("#nest-nest", "#nest-steps", "#nest-plain"):
        assert page.locator(f"{part} :is(script, img, b, u, form, iframe)").count() == 0


def test_an_error_is_told(visit):
    page = visit()
    page.locator("#nest-text textarea").fill("")
    page.locator("#nest-ask").click()
    page.locator("#nest-nest [role=alert]").wait_for(timeout=SECONDS)
    assert "upload a file or paste a text" in page.locator("#nest-nest").inner_text()


@pytest.mark.parametrize(("width", "scheme"), LOOKS)
def test_looks(visit, tmp_path, width, scheme):
    """axe, and a picture to look at; with NEST_PICTURES=1 those in docs/images are written anew."""
    page = visit(width, scheme)
    ask(page)
    page.locator("#nest-plain .nest-answer").wait_for(timeout=SECONDS)
    page.wait_for_timeout(300)
    faults = Axe().run(page).response["violations"]
    serious = [
        (fault["id"], node["html"])
        for fault in faults
        if fault["impact"] in ("serious", "critical")
        for node in fault["nodes"]
        if fault["id"] != "color-contrast" or _is_ours(page, node)  # Gradio's own hints are pale in places
    ]
    assert not serious
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    kept = (width, scheme) in ((1280, "light"), (360, "dark")) and os.environ.get("NEST_PICTURES")
    file = (ROOT / "docs" / "images" if kept else tmp_path) / f"playground-{width}-{scheme}.png"
    page.screenshot(path=file, full_page=True)
    Image.open(file).quantize(256, Image.Quantize.MAXCOVERAGE, kmeans=3).save(file, optimize=True)
    assert file.stat().st_size < 200_000


def _is_ours(page, node):
    inside = "(element, parts) => element.closest(parts) !== null"
    return page.locator(node["target"][0]).first.evaluate(inside, ", ".join(OURS))
