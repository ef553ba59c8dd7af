"""The engine equals the plain reference, token for token and place for place."""

from __future__ import annotations

import pytest
import torch

from nest_engine import Passage
from nest_engine.datastore.token_index import Place
from nest_engine.lm.tap import find_feed_forward, find_layers
from tests.engine.runs import open_index, run_loop, run_reference, tokens_and_places
from tests.exactness import assert_same_decisions
from tests.texts import passages
from tests.tiny import tiny_engine

SETTINGS = {
    "strict": {"gamma": 0.5},
    "the paper's": {"gamma": 5e-4},
    "lenient and sharp": {"gamma": 1e-6, "mu": 2.0, "alpha": 0.6},
    "every span is tried": {"gamma": 0.05, "delta": 1.0, "alpha": 2.0},
    "short n-grams": {"gamma": 1e-5, "span_tokens": 5, "delta": 0.9, "alpha": 0.8, "mu": 1.0},
    "one-token n-grams": {"gamma": 1e-4, "span_tokens": 1, "delta": 1.0, "alpha": 0.8},
    "sentences": {"gamma": 1e-3, "span_start": "sentence", "delta": 1.0, "alpha": 0.8, "mu": 1.0},
    "sentences, strict": {"gamma": 0.3, "span_start": "sentence", "delta": 0.9, "end_probability": 1e-3},
    "whole sentences": {"gamma": 1e-6, "whole_sentences": True, "span_start": "sentence", "delta": 1.0, "mu": 1.0},
    "few neighbors": {"gamma": 1e-3, "neighbors": 12, "alpha": 0.7, "delta": 0.8},
    "one neighbor": {"gamma": 1e-3, "neighbors": 1, "alpha": 1.2},
    "fixed weight": {"mode": "knn-lm", "knn_weight": 0.3},
    "fixed weight, sampled": {"mode": "knn-lm", "knn_weight": 0.5, "temperature": 0.8, "top_k": 40, "seed": 5},
    "sampled": {"gamma": 1e-3, "temperature": 1.0, "seed": 3, "alpha": 0.7, "mu": 1.0},
    "sampled and warped": {"gamma": 1e-4, "temperature": 0.6, "top_k": 20, "top_p": 0.8, "seed": 9, "alpha": 0.7},
    "lossless": {"mode": "lossless"},
    "lossless, sampled": {"mode": "lossless", "temperature": 0.7, "top_p": 0.9, "seed": 2},
    "float32 keys": {"gamma": 1e-4, "key_format": "float32"},
    "no datastore": {"mode": "lm"},
}
QUERY = "How long does the dough of the bread rest?"
CHUNKS = (None, 1, 2, 7, 64)


def feed_forward_of(engine):
    model = engine.model.lm._model
    layers = find_layers(model, model.config.num_hidden_layers)
    return find_feed_forward(layers[len(layers) - 1], "")


@pytest.fixture(scope="module")
def engine():
    return tiny_engine("llama")


@pytest.fixture(scope="module")
def prompt(engine):
    return engine.model.tokenizer.encode("When was the lighthouse built? The").ids


@pytest.mark.parametrize("name", SETTINGS)
def test_equals_the_reference_whatever_the_chunk(engine, prompt, name):
    settings = {"max_new_tokens": 60, **SETTINGS[name]}
    texts = passages("lighthouse", "bread", "chinese", "emoji", "crlf")
    expected = run_reference(engine, feed_forward_of(engine), prompt, texts, QUERY, **settings)
    for chunk in CHUNKS:
        actual, loop = run_loop(engine, prompt, texts, QUERY, draft_chunk=chunk, **settings)
        assert tokens_and_places(actual) == tokens_and_places(expected), f"draft_chunk={chunk}"
        assert [e.weight for e in actual] == pytest.approx([e.weight for e in expected], abs=1e-9)
        counts = loop.reader.counts
        assert len(actual) == counts.lm_calls + counts.accepted - (loop.finish == "end")
        assert counts.accepted <= counts.drafted
        assert loop.steps <= len(actual) + 1


def test_copying_ends_before_a_sentence_that_the_limit_would_cut(engine, prompt):
    """At every limit: a cut sentence was the first one, or the model's own."""
    settings = {**SETTINGS["whole sentences"], "gamma": 1e-12, "end_probability": None}
    texts = passages("lighthouse", "bread")
    ended = 0
    for limit in range(20, 61, 4):
        run, loop = run_loop(engine, prompt, texts, QUERY, max_new_tokens=limit, **settings)
        expected = run_reference(
            engine, feed_forward_of(engine), prompt, texts, QUERY, max_new_tokens=limit, **settings
        )
        assert tokens_and_places(run) == tokens_and_places(expected)
        if loop.finish == "end" and run[-1].place is not None:
            ended += len(run) < limit
    assert ended >= 3


@pytest.mark.parametrize("seed", range(8))
def test_equals_the_reference_on_other_models(seed):
    engine = tiny_engine("llama", seed=seed + 10)
    prompt = engine.model.tokenizer.encode("The dough of the").ids
    settings = {"max_new_tokens": 50, "gamma": 10.0 ** -(seed + 1), "alpha": 0.5 + 0.1 * (seed % 4), "mu": 0.5}
    texts = passages("lighthouse", "bread", "river")
    expected = run_reference(engine, feed_forward_of(engine), prompt, texts, **settings)
    actual, _ = run_loop(engine, prompt, texts, **settings)
    assert tokens_and_places(actual) == tokens_and_places(expected)


def test_the_settings_reach_all_branches(engine, prompt):
    """The comparison above would be worth little if spans were never started, cut or finished."""
    texts = passages("lighthouse", "bread", "chinese", "emoji", "crlf")
    runs = [run_loop(engine, prompt, texts, max_new_tokens=60, **s)[0] for s in SETTINGS.values()]
    copied = [[e.place for e in run if e.place] for run in runs]
    own = [[e for e in run if not e.place] for run in runs]
    assert max(map(len, copied)) > 40, "some answer is mostly copied"
    assert max(map(len, own)) > 20, "some answer is mostly the LM's"
    assert any(e.is_neighbor for run in own for e in run), "some own token is a neighbor's value too"
    ends = {
        (p.passage, p.position) for run in copied for p in run if p.position == len(_ids(engine, texts[p.passage])) - 1
    }
    assert ends, "some span reaches its passage's end"
    sentences = {**SETTINGS["sentences"], "max_new_tokens": 60}
    by_sentence, _ = run_loop(engine, prompt, texts, QUERY, **sentences)
    ranked = open_index(engine, texts, engine.config.replace(**sentences), QUERY).sentences
    assert by_sentence[0].place == Place(ranked[0].passage, ranked[0].start) != Place(0, 0)
    by_neighbor, _ = run_loop(engine, prompt, texts, QUERY, **{**sentences, "span_start": "neighbor"})
    assert tokens_and_places(by_sentence) != tokens_and_places(by_neighbor)


def _ids(engine, passage):
    return engine.model.tokenizer.encode(passage.text).ids


@pytest.mark.parametrize("architecture", ["gpt2", "mistral", "gemma3", "mixtral"])
def test_equals_the_reference_on_other_architectures(architecture):
    engine = tiny_engine(architecture)
    prompt = engine.model.tokenizer.encode("The lighthouse").ids
    settings = {"max_new_tokens": 40, "gamma": 1e-4, "mu": 1.0, "alpha": 0.7, "delta": 0.8}
    texts = passages("lighthouse", "river")
    expected = run_reference(engine, feed_forward_of(engine), prompt, texts, **settings)
    for chunk in (None, 7):
        actual, _ = run_loop(engine, prompt, texts, draft_chunk=chunk, **settings)
        assert tokens_and_places(actual) == tokens_and_places(expected)


def test_equal_passages_are_copied_from_the_first(engine, prompt):
    """Keys of equal passages are equal: the tie goes to the lower entry index."""
    text = passages("lighthouse")[0]
    copy = Passage(text.text, title=text.title, id="copy")
    settings = {"max_new_tokens": 40, "gamma": 1e-5, "mu": 1.0, "alpha": 1.0, "delta": 1.0}
    expected = run_reference(engine, feed_forward_of(engine), prompt, [text, copy], **settings)
    actual, _ = run_loop(engine, prompt, [text, copy], **settings)
    assert tokens_and_places(actual) == tokens_and_places(expected)
    assert actual[0].place is None or actual[0].place.passage == 0


def test_stored_keys_are_fresh_keys(engine, prompt):
    texts = passages("lighthouse", "bread")
    first, _ = run_loop(tiny_engine("llama"), prompt, texts, gamma=1e-4)
    again = tiny_engine("llama")
    again.encode(texts)
    assert tokens_and_places(run_loop(again, prompt, texts, gamma=1e-4)[0]) == tokens_and_places(first)


@pytest.mark.demo_model
@pytest.mark.parametrize(
    "settings",
    [{"mode": "nest"}, {"mode": "nest", "gamma": 0.5}, {"mode": "ra-nest"}, {"mode": "knn-lm"}],
    ids=["nest", "nest strict", "ra-nest", "knn-lm"],
)
def test_equals_the_reference_on_the_demo_model(demo_engine, settings):
    texts = passages("lighthouse", "bread")
    config = demo_engine.config.replace(max_new_tokens=24, **settings)
    question = "When was the lighthouse at Cape Morwen built?"
    built = demo_engine._prompts.build(
        question,
        task="question",
        passages=texts if config.reads_passages else (),
    )
    settings = {**settings, "max_new_tokens": 24}
    expected = run_reference(demo_engine, feed_forward_of(demo_engine), built.ids, texts, question, **settings)
    actual, _ = run_loop(demo_engine, built.ids, texts, question, **settings)
    assert_same_decisions(
        tokens_and_places(actual), tokens_and_places(expected), [e.margin for e in expected], torch.float32
    )
