"""What is shown of an answer."""

from dataclasses import replace

import pytest

from nest_engine import Citation, Passage
from nest_engine.rendering import make_view, view_generation
from tests.answers import STATS, answer_of, island, scripts
from tests.texts import TEXTS


def test_spans_sources_and_facts():
    generation = island()
    view = view_generation(generation)
    assert [(span.number, span.kind) for span in view.spans] == [
        (1, "copied"), (1, "copied"), (2, "copied"), (2, "matched"), (3, "copied"),
    ]  # fmt: skip
    for span, citation in zip(view.spans, generation.citations, strict=True):
        assert view.text[span.start : span.end] == span.excerpt.quote == citation.text
    assert [(s.number, s.title, s.url, s.spans) for s in view.sources] == [
        (1, "The lighthouse at Cape Morwen", "https://example.org/lighthouse", (0, 1)),
        (2, "The river Ansel", "", (2, 3)),
        (3, "A simple loaf", "https://example.net/bread?loaf=1", (4,)),
    ]
    assert (view.spans[0].source_start, view.spans[0].counted_from) == (1200, "document")
    assert view.spans[4].counted_from == "passage"
    assert view.facts is not None
    assert view.facts.to_lines() == [
        "mode ra-nest", "71% of 58 tokens copied", "2.4 tokens per LM call", "1.8 s",
    ]  # fmt: skip


def test_a_quote_stands_in_its_source():
    for name, text in TEXTS.items():
        passage = Passage(text, id=name)
        for start, end in ((0, 5), (len(text) // 2, len(text) // 2 + 9), (len(text) - 4, len(text))):
            excerpt = view_generation(answer_of([passage], [(0, start, end)])).spans[0].excerpt
            shown = excerpt.before + excerpt.quote + excerpt.after
            assert shown in text
            assert excerpt.is_cut_before == (not text.startswith(shown))
            assert excerpt.is_cut_after == (not text.endswith(shown))
            assert text.index(shown) + len(excerpt.before) == start or text.count(shown) > 1


def test_context_is_cut_at_words():
    words = " ".join(f"word{n}" for n in range(200))
    start = words.index("word100")
    excerpt = view_generation(answer_of([Passage(words)], [(0, start, start + 7)])).spans[0].excerpt
    assert excerpt.before.startswith("word")
    assert excerpt.after[-1].isdigit()
    assert len(excerpt.before) <= 160
    assert len(excerpt.after) <= 160


@pytest.mark.parametrize(
    "change", [{"start": 1}, {"end": 99}, {"text": "Other"}, {"start": -3}, {"start": 5, "end": 5}]
)
def test_what_is_not_verbatim_is_no_citation(change):
    citation = Citation(1, "copied", 0, 5, "p", "d", "T", 0, 5, None, "Hello")
    assert len(make_view("Hello world", [citation]).spans) == 1
    view = make_view("Hello world", [replace(citation, **change)])
    assert (view.spans, view.sources) == ((), ())


def test_a_passage_that_has_changed_gives_no_context():
    citation = Citation(1, "copied", 0, 5, "p", "d", "", 0, 5, None, "Hello")
    view = make_view("Hello world", [citation], [Passage("Bonjour le monde", id="p"), Passage("Hello you", id="p")])
    assert view.spans[0].excerpt.after == " you"
    assert make_view("Hello world", [citation], [Passage("Bonjour", id="p")]).spans[0].excerpt.after == ""
    assert view.sources[0].title == "d"


def test_no_stats_no_facts_and_a_cut_answer_says_so():
    assert make_view("", []).facts is None
    facts = make_view("x", [], (), STATS.to_dict(), finish_reason="length").facts
    assert facts is not None
    assert facts.to_lines()[-1] == "cut at the token limit"
    facts = make_view("", [], (), replace(STATS, tokens=0, lm_calls=0).to_dict()).facts
    assert facts is not None
    assert (facts.copied, facts.tokens_per_call) == (0.0, 0.0)


def test_every_script():
    view = view_generation(scripts())
    assert len(view.spans) == 5
    for span in view.spans:
        assert view.text[span.start : span.end] == span.excerpt.quote
