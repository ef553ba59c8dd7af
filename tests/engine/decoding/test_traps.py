"""The traps of the method, each seen in practice, each a test."""

from __future__ import annotations

import math

import pytest
import torch

from nest_engine import NestConfig, Passage
from nest_engine.datastore.token_index import Place
from nest_engine.decoding.loop import DecodeLoop
from nest_engine.decoding.mixture import lm_weight, mix, neighbor_weights, retrieval_confidence
from nest_engine.errors import NonFiniteLogitsError
from nest_engine.lm.protocol import Reading
from tests.engine.runs import open_index, run_loop
from tests.texts import TEXTS, passages
from tests.tiny import tiny_engine

LENIENT = {"gamma": 1e-6, "mu": 1.0, "alpha": 1.0, "delta": 1.0, "max_new_tokens": 60}


@pytest.fixture(scope="module")
def engine():
    return tiny_engine("llama")


@pytest.fixture(scope="module")
def prompt(engine):
    return engine.model.tokenizer.encode("The lighthouse").ids


class RecordingContext:
    """Keeps what a cache holds, to compare it with what it should hold."""

    def __init__(self, context) -> None:
        self.context = context
        self.held: list[int] = []
        self.reads: list[list[int]] = []

    @property
    def length(self) -> int:
        return self.context.length

    def read(self, token_ids, *, last_only=False) -> Reading:
        self.held += list(token_ids)
        self.reads.append(list(self.held))
        return self.context.read(token_ids, last_only=last_only)

    def crop(self, length: int) -> None:
        del self.held[length:]
        self.context.crop(length)


@pytest.mark.parametrize("gamma", [0.9, 0.05, 1e-4])
@pytest.mark.parametrize("chunk", [2, 7, 64])
def test_after_a_rejection_the_cache_ends_before_the_rejected_token(engine, prompt, gamma, chunk):
    config = engine.config.replace(**{**LENIENT, "gamma": gamma, "draft_chunk": chunk})
    texts = passages("lighthouse", "bread")
    index = open_index(engine, texts, config)
    loop = DecodeLoop(engine.model.lm, prompt, index, config)
    recorder = loop.reader._context = RecordingContext(loop.reader._context)
    emitted = []
    for emission in loop.run():
        emitted.append(emission.token)
        assert recorder.context.length == len(recorder.held)
    truth = prompt + emitted
    for held in recorder.reads:
        # Everything but the guesses at the end of a pass is the answer itself, once each.
        known = max(n for n in range(len(held) + 1) if held[:n] == truth[:n])
        assert len(held) - known < chunk
    assert loop.reader.counts.drafted > loop.reader.counts.accepted, "some guesses were wrong"


def test_a_lone_token_that_matches_a_neighbor_is_no_span(engine, prompt):
    run, loop = run_loop(engine, prompt, passages("lighthouse"), **{**LENIENT, "delta": 0.0})
    assert any(e.is_neighbor for e in run)
    assert all(e.place is None for e in run)
    assert loop.reader.counts.drafted == 0
    assert loop.steps == len(run)


def test_no_place_is_copied_twice_and_answers_do_not_loop(engine, prompt):
    for gamma in (0.5, 1e-2, 1e-6):
        for n in (1, 3, 64):
            run, _ = run_loop(engine, prompt, passages("lighthouse"), **{**LENIENT, "gamma": gamma, "span_tokens": n})
            places = [e.place for e in run if e.place is not None]
            assert len(places) == len(set(places)) > 0


def test_a_whole_accepted_n_gram_is_masked_when_it_ends(engine):
    texts = passages("bread")
    index = open_index(engine, texts, engine.config)
    places = [Place(0, i) for i in range(3, 9)]
    index.mask(places)
    assert index.unmasked == len(index) - 6
    found = index.search(torch.zeros(1, engine.model.lm.key_dim, dtype=torch.float64), len(index)).entries
    assert {index.place(int(e)) for e in found[0]}.isdisjoint(places)


def test_lossless_masks_nothing(engine, prompt):
    texts = passages("lighthouse")
    config = engine.config.replace(mode="lossless", max_new_tokens=60)
    index = open_index(engine, texts, config)
    list(DecodeLoop(engine.model.lm, prompt, index, config).run())
    assert index.unmasked == len(index)


def test_masked_entries_never_enter_the_ratio(engine):
    """With masked entries at an infinite distance the ratio would be 0, and lambda would trust anything."""
    texts = passages("lighthouse")
    index = open_index(engine, texts, engine.config)
    query = torch.randn(1, engine.model.lm.key_dim, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    index.mask([Place(0, i) for i in range(2, 30)])
    for r in (5, index.unmasked - 1, index.unmasked, len(index), 10_000):
        neighbors = index.search(query, r)
        assert neighbors.distances.shape[1] == min(r, index.unmasked)
        assert torch.isfinite(neighbors.distances).all()
        assert 0 < float(retrieval_confidence(neighbors.distances)[0]) <= 1


def test_the_ratio_depends_on_r(engine):
    """The r-th neighbor is farther away the larger r is, so lambda falls: calibrate for the r in use."""
    texts = passages()
    index = open_index(engine, texts, engine.config)
    query = torch.randn(1, engine.model.lm.key_dim, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    weights = [float(lm_weight(index.search(query, r).distances, NestConfig())) for r in (4, 16, 64, 256)]
    assert weights == sorted(weights, reverse=True)
    assert weights[0] - weights[-1] > 0.03


def test_entries_stop_at_the_passage_and_stand_at_their_value(engine):
    texts = passages("lighthouse", "emoji")
    encoded = engine.encode(texts)
    index = open_index(engine, texts, engine.config)
    assert len(index) == sum(len(e.token_ids) - e.first for e in encoded)
    for entry in range(len(index)):
        place = index.place(entry)
        assert int(index.values[entry]) == int(encoded[place.passage].token_ids[place.position])
        assert index.entry(place) == entry


def test_the_first_key_of_a_sequence_is_left_out(engine):
    untitled = Passage(TEXTS["bread"])
    lm, tokenizer = engine.model.lm, engine.model.tokenizer
    context = tokenizer.prefix + tokenizer.encode("\n").ids
    encoded = engine.encode([untitled])[0]
    assert len(context) == 1, "without a title the text begins right behind the first position"
    assert encoded.first == 1
    ids = context + tokenizer.encode(untitled.text).ids
    states = lm.open().read(ids).queries
    assert torch.equal(torch.from_numpy(encoded.keys.values), states[1:-1].half())


def test_spans_stop_at_the_passages_end(engine, prompt):
    text = Passage("Short and sweet.", id="short")
    run, _ = run_loop(engine, prompt, [text], **LENIENT)
    last = len(engine.model.tokenizer.encode(text.text).ids) - 1
    assert all(e.place is None or e.place.position <= last for e in run)
    assert len([e for e in run if e.place]) <= last + 1


def test_logits_may_be_wider_than_the_vocabulary(prompt):
    engine = tiny_engine("llama", wider=37)
    run, _ = run_loop(engine, prompt, passages("lighthouse"), **LENIENT)
    assert len(run) > 0
    for mode in ("lm", "knn-lm", "lossless"):
        run_loop(engine, prompt, passages("lighthouse"), mode=mode, max_new_tokens=10)


def one_token_favorite(token: int, extra: float = 1e4):
    """A logits processor that makes one token the likeliest."""

    def process(ids, logits):
        logits = logits.clone()
        logits[:, token] += extra
        return logits

    return process


@pytest.mark.parametrize("mode", ["lm", "nest", "knn-lm", "lossless"])
def test_answers_end_at_the_end_token_and_do_not_hold_it(engine, mode):
    (end,) = engine.model.lm.end_ids
    answer = engine.generate(
        "Hello?", passages=passages("bread"), mode=mode, logits_processors=[one_token_favorite(end)]
    )
    assert (answer.text, answer.finish_reason) == ("", "end")
    assert answer.stats.tokens == 0
    assert answer.stats.lm_calls == 1


def test_an_answer_ends_with_a_copied_sentence_where_the_lm_would_end_it(engine, prompt):
    """Passages hold no end token: a copying answer would run on to the limit."""
    (end,) = engine.model.lm.end_ids
    texts = passages("lighthouse")
    ids = engine.model.tokenizer.encode(texts[0].text).ids

    def favor(ids_so_far, logits):
        """The passage's first token at first; then the end, which Eq. 7 alone would never let through."""
        logits = logits.clone()
        best = logits.max() + 1
        logits[:, ids[0] if ids_so_far.shape[1] == len(prompt) else end] = best
        return logits

    config = engine.config.replace(**{**LENIENT, "gamma": 1e-12, "alpha": -5.0, "mu": 1e-9, "max_new_tokens": 200})
    index = open_index(engine, texts, config)
    loop = DecodeLoop(engine.model.lm, prompt, index, config, [favor])
    run = list(loop.run())
    copied = engine.model.tokenizer.decode([e.token for e in run])
    assert loop.finish == "end"
    assert copied.rstrip().endswith(".")
    assert copied.count(".") == 1, "it ended with the first sentence"


def test_retrieval_cannot_bring_back_what_the_caller_banned(engine, prompt):
    texts = passages("lighthouse")
    plain, _ = run_loop(engine, prompt, texts, **LENIENT)
    banned = sorted({e.token for e in plain})[::2]

    def ban(ids, logits):
        logits = logits.clone()
        logits[:, banned] = -math.inf
        return logits

    for settings in ({}, {"temperature": 1.0}, {"mode": "knn-lm"}, {"mode": "lossless"}, {"draft_chunk": 7}):
        config = engine.config.replace(**{**LENIENT, **settings})
        index = open_index(engine, texts, config)
        run = list(DecodeLoop(engine.model.lm, prompt, index, config, [ban]).run())
        assert {e.token for e in run}.isdisjoint(banned)
        assert len(run) > 0


def test_processors_see_the_true_prefix_of_every_draft_position(engine, prompt):
    texts = passages("lighthouse", "bread")
    config = engine.config.replace(**{**LENIENT, "draft_chunk": 16})
    seen: list[list[int]] = []

    def look(ids, logits):
        seen.append(ids[0].tolist())
        return logits

    index = open_index(engine, texts, config)
    loop = DecodeLoop(engine.model.lm, prompt, index, config, [look])
    truth = prompt + [e.token for e in loop.run()]
    prefixes = {tuple(ids) for ids in seen}
    assert all(tuple(truth[:n]) in prefixes for n in range(len(prompt), len(truth)))


def test_the_first_token_is_ranked_by_the_mixture_not_by_half_of_it():
    """A token that is second with the LM and second with the neighbors can be first with both."""
    logits = torch.log(torch.tensor([[0.5, 0.4, 0.1]], dtype=torch.float64))
    weights, retrieved = torch.tensor([0.5], dtype=torch.float64), torch.tensor([0.0, 0.45, 0.55])
    expected = weights * torch.softmax(logits[0], -1) + (1 - weights) * retrieved
    assert int(expected.argmax()) == 1


def test_mixture_keeps_its_parts_consistent(engine):
    """The parts that are kept apart for speed add up to the mixture written out in full."""
    texts = passages("lighthouse", "bread")
    config = NestConfig(alpha=0.9)
    index = open_index(engine, texts, config)
    generator = torch.Generator().manual_seed(4)
    queries = torch.randn(5, engine.model.lm.key_dim, dtype=torch.float64, generator=generator)
    logits = torch.randn(5, 700, dtype=torch.float64, generator=generator)
    logits[:, ::3] = -math.inf
    mixture = mix(logits, queries, index, config)
    for row in range(5):
        neighbors = index.search(queries[row : row + 1], config.neighbors)
        shares = neighbor_weights(neighbors.distances, 1 / math.sqrt(queries.shape[1]))[0]
        p_knn = torch.zeros(700, dtype=torch.float64).index_add(0, index.values[neighbors.entries[0]], shares)
        weight = float(lm_weight(neighbors.distances, config))
        full = weight * torch.softmax(logits[row], -1) + (1 - weight) * p_knn
        full[logits[row] == -math.inf] = 0
        assert torch.allclose(mixture.distribution(row), full, atol=1e-12)
        assert mixture.best_tokens[row] == int(full.argmax())
        assert mixture.best_probabilities[row] == pytest.approx(float(full.max()))
        for token in (0, 1, 5, int(full.argmax()), 699):
            assert mixture.probability(token, row) == pytest.approx(float(full[token]), abs=1e-15)


def test_nan_logits_are_a_clear_error(engine):
    def spoil(ids, logits):
        return logits * float("nan")

    with pytest.raises(NonFiniteLogitsError, match="float32"):
        engine.generate("Hello?", mode="lm", logits_processors=[spoil])
    with pytest.raises(NonFiniteLogitsError, match="banned"):
        engine.generate("Hello?", mode="lm", logits_processors=[lambda ids, logits: logits - math.inf])
    assert engine.generate("Hello?", mode="lm", max_new_tokens=3).stats.tokens <= 3
