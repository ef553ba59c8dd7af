"""What holds for every model, passage and setting: hypothesis draws them."""

from __future__ import annotations

import os
from functools import lru_cache

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nest_engine import Passage
from nest_engine.lm.tap import find_feed_forward, find_layers
from tests.engine.runs import run_loop, run_reference, tokens_and_places
from tests.texts import TEXTS
from tests.tiny import tiny_engine

SOAK = bool(os.environ.get("NEST_SOAK"))
MODES = ("lm", "ra", "knn-lm", "nest", "ra-nest", "lossless")
tries = settings(
    max_examples=300 if SOAK else 12,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    derandomize=not SOAK,
    database=None,
)

engines = lru_cache(lambda architecture, seed: tiny_engine(architecture, seed=seed))
models = st.builds(engines, st.sampled_from(["llama", "qwen3", "gpt2", "phi"]), st.integers(0, 5))
any_text = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=60).filter(str.strip)
real_text = st.builds(lambda text, a, n: text[a : a + n], st.sampled_from(list(TEXTS.values())), st.integers(0, 80),
                      st.integers(20, 200)).filter(str.strip)  # fmt: skip
several = st.lists(any_text | real_text, min_size=1, max_size=3, unique=True).map(
    lambda texts: [Passage(text, id=str(number)) for number, text in enumerate(texts)]
)
choices = st.fixed_dictionaries(
    {
        "mode": st.sampled_from(MODES),
        "gamma": st.sampled_from([1e-9, 1e-3, 0.5, 1.0]),
        "delta": st.sampled_from([0.0, 0.5, 1.0]),
        "alpha": st.sampled_from([1e-6, 0.3, 1.0, 5.0]),
        "tau": st.sampled_from([1e-4, 0.1, 10.0]),
        "neighbors": st.sampled_from([1, 3, 1024]),
        "span_tokens": st.sampled_from([1, 4, 64]),
        "draft_chunk": st.sampled_from([None, 1, 64]),
        "span_start": st.sampled_from(["neighbor", "sentence"]),
        "temperature": st.sampled_from([0.0, 0.5, 5.0]),
        "top_k": st.sampled_from([None, 1, 50]),
        "top_p": st.sampled_from([0.01, 0.9, 1.0]),
        "seed": st.integers(0, 2**31 - 1),
        "max_new_tokens": st.sampled_from([1, 2, 24]),
    }
)


def feed_forward_of(engine):
    model = engine.model.lm._model
    layers = find_layers(model, model.config.num_hidden_layers)
    return find_feed_forward(layers[len(layers) - 1], "")


@given(models, several, any_text, choices)
@tries
def test_equal_to_the_plain_reference(engine, passages, prompt, chosen):
    ids = engine.model.tokenizer.encode(prompt).ids
    expected = run_reference(engine, feed_forward_of(engine), ids, passages, prompt, **chosen)
    actual, _ = run_loop(engine, ids, passages, prompt, **chosen)
    assert tokens_and_places(actual) == tokens_and_places(expected)
    places = [place for _, place in tokens_and_places(actual) if place is not None]
    if chosen["mode"] in ("nest", "ra-nest"):
        assert len(places) == len(set(places)), "no entry is used twice"


@given(models, several, any_text, choices)
@tries
def test_streams_citations_and_counts(engine, passages, prompt, chosen):
    pieces = list(engine.stream(prompt, passages=passages, min_citation_words=1, **chosen))
    answer, once = pieces[-1].generation, engine.generate(prompt, passages=passages, min_citation_words=1, **chosen)
    assert (answer.text, answer.citations) == (once.text, once.citations)
    assert "".join(piece.text for piece in pieces) == answer.text
    assert sum((piece.citations for piece in pieces), ()) == answer.citations
    for citation in answer.citations:
        passage = next(p for p in passages if p.id == citation.passage_id)
        copied = answer.text[citation.start : citation.end]
        assert passage.text[citation.source_start : citation.source_end] == copied == citation.text
    stats, ended = answer.stats, answer.finish_reason == "end"
    assert stats.tokens == stats.lm_calls + stats.accepted - ended
    assert stats.attributed_tokens <= stats.tokens <= chosen["max_new_tokens"]
    assert stats.accepted <= stats.drafted
    assert stats.steps <= stats.tokens + 1
    assert sum(stats.document_runs) == stats.attributed_tokens


@pytest.mark.parametrize("plane", range(17))
def test_characters_of_every_plane_come_back_whole(plane):
    engine = engines("llama", 0)
    first = max(plane << 16, 0xA0)
    text = "".join(chr(first + 257 * step) for step in range(24) if not 0xD800 <= first + 257 * step < 0xE000)
    answer = engine.generate(
        text[:4], passages=[Passage(text, id="p")], alpha=2.0, gamma=1e-9, delta=1.0, max_new_tokens=24,
        min_citation_words=1,
    )  # fmt: skip
    assert answer.stats.attributed_tokens > 0
    for citation in answer.citations:
        assert answer.text[citation.start : citation.end] == text[citation.source_start : citation.source_end]


@pytest.mark.parametrize("name", TEXTS)
def test_copying_settings_do_cite(name):
    """The checks of citations above would be worth nothing if there were none."""
    passage = Passage(TEXTS[name], id=name)
    answer = engines("llama", 0).generate(
        TEXTS[name][:8], passages=[passage], alpha=2.0, gamma=1e-9, delta=1.0, mu=1.0, min_citation_words=1
    )
    assert answer.citations
    for citation in answer.citations:
        copied = answer.text[citation.start : citation.end]
        assert copied == passage.text[citation.source_start : citation.source_end] == citation.text
