"""Perplexity against a slow computation by hand, on a tiny model in float64."""

import math

import numpy as np
import pytest
import torch

from nest_engine import NestConfig, Passage
from nest_engine.errors import ConfigError, ContextOverflowError
from nest_engine.evaluation.answers import AnswerFile
from nest_engine.evaluation.perplexity import Scorer, Target, TokenParts, best_weight, gather
from nest_engine.retrieval import ListSource
from tests.engine.reference import Reference
from tests.texts import BREAD, LIGHTHOUSE, RIVER
from tests.tiny import tiny_engine

PASSAGES = [Passage(text=LIGHTHOUSE, title="Light"), Passage(text=RIVER, title="River"), Passage(text=BREAD)]
CONFIG = NestConfig(neighbors=40, alpha=0.8, tau=0.05, mu=0.02, knn_weight=0.4)


@pytest.fixture(scope="module")
def engine():
    return tiny_engine(config=CONFIG)


def by_hand(engine, config, prompt, target, passages):
    """Minus log p_M of each token: the whole text read again for each, all entries sorted, no tensors mixed."""
    model = engine.model.lm._model
    reference = Reference(
        model, engine.model.tokenizer._tokenizer, model.model.layers[-1].mlp, config, engine.model.tokenizer.prefix
    )
    reference.open(passages)
    losses = []
    for number, token in enumerate(target):
        d = reference.distribution([*prompt, *target[:number]], set())
        losses.append(-math.log(float(d.p[token])))
    return losses


@pytest.mark.parametrize("mode", ["lm", "knn-lm", "nest"])
@pytest.mark.parametrize("neighbors", [1, 40, 5000])
def test_losses_are_those_worked_out_by_hand(engine, mode, neighbors):
    config = CONFIG.replace(mode=mode, neighbors=neighbors)
    prompt = engine.build_prompt("Where does the river rise?")
    target = engine.model.tokenizer.encode("The river Ansel rises in the green hills.").ids
    index = engine.open_index(PASSAGES, config)
    parts = gather(engine.model.lm, prompt, target, index, config)
    expected = by_hand(engine, config, prompt, target, PASSAGES)
    np.testing.assert_allclose(parts.losses(config), expected, rtol=1e-9)
    assert len(set(np.round(expected, 6))) > len(target) // 2


def test_the_parts_serve_other_settings(engine):
    """One gathering is enough for every alpha, tau and fixed weight."""
    prompt, target = [3, 4, 5], engine.model.tokenizer.encode(RIVER).ids[:12]
    parts = gather(engine.model.lm, prompt, target, engine.open_index(PASSAGES, CONFIG), CONFIG)
    for config in (CONFIG.replace(alpha=0.95, tau=0.2), CONFIG.replace(mode="knn-lm", knn_weight=0.9)):
        np.testing.assert_allclose(parts.losses(config), by_hand(engine, config, prompt, target, PASSAGES), rtol=1e-9)


def test_one_forward_pass(engine, monkeypatch):
    passes = []
    forward = engine.model.lm.forward
    monkeypatch.setattr(engine.model.lm, "forward", lambda *a, **k: passes.append(1) or forward(*a, **k))
    index = engine.open_index(PASSAGES, CONFIG)
    gather(engine.model.lm, [3, 4, 5], list(range(10, 60)), index, CONFIG)
    assert len(passes) == 1


def test_without_entries_the_lm_stands_alone(engine):
    parts = gather(engine.model.lm, [3, 4], [5, 6, 7], None, CONFIG)
    for mode in ("lm", "knn-lm", "nest"):
        np.testing.assert_array_equal(parts.losses(CONFIG.replace(mode=mode)), -np.log(parts.p_lm))
    with torch.inference_mode():
        logits = engine.model.lm._model(torch.tensor([[3, 4, 5, 6]])).logits[0]
    p = torch.softmax(logits, -1)
    np.testing.assert_allclose(parts.p_lm, [p[1, 5], p[2, 6], p[3, 7]], rtol=1e-9)


def test_a_target_must_fit(engine):
    with pytest.raises(ContextOverflowError, match="window is 1024"):
        gather(engine.model.lm, [3] * 1000, [4] * 100, None, CONFIG)


def test_best_weight():
    rng = np.random.default_rng(1)
    parts = TokenParts(rng.uniform(0.01, 1, 500), rng.uniform(0.01, 1, 500), np.zeros(500))
    best = best_weight(parts)
    grid = np.linspace(0, 1, 10001)
    losses = [-np.log(w * parts.p_lm + (1 - w) * parts.p_knn).sum() for w in grid]
    assert best == pytest.approx(grid[int(np.argmin(losses))], abs=2e-4)
    assert best_weight(TokenParts(np.full(3, 0.5), np.zeros(3), np.zeros(3))) == pytest.approx(1, abs=1e-3)
    assert best_weight(TokenParts(np.full(3, 0.5), np.full(3, 0.9), np.zeros(3))) == pytest.approx(0, abs=1e-3)


def target(engine, **changes):
    ids = tuple(engine.model.tokenizer.encode(RIVER).ids[:6])
    values = {"id": "t", "query": "river", "prompt": lambda passages: [3, *(len(p.text) % 50 for p in passages)]}
    return Target(**{**values, "token_ids": ids, "counted": (True,) * 6, **changes})


def test_the_scorer_counts_refuses_and_remembers(engine, tmp_path, monkeypatch):
    source = ListSource(PASSAGES)
    path = tmp_path / "answers.jsonl"
    config = CONFIG.replace(top_passages=1)
    counted = (True, False, True, True, False, True)
    only_bread = target(engine, counted=counted, allows=lambda p: p.text == BREAD, spare=2)
    parts = Scorer(engine, source, "c", AnswerFile(path)).parts(config, only_bread, "v")
    direct = gather(engine.model.lm, [3], only_bread.token_ids, engine.open_index(PASSAGES[2:], config), config)
    np.testing.assert_allclose(parts.p_knn, direct.p_knn[list(counted)], rtol=1e-8)

    calls = []
    monkeypatch.setattr(source, "search", lambda query, k: calls.append(k) or [])
    again = Scorer(engine, source, "c", AnswerFile(path))
    # What was gathered serves every alpha, but no other collection, number of passages or query.
    np.testing.assert_array_equal(again.parts(config.replace(alpha=0.1), only_bread, "v").p_knn, parts.p_knn)
    assert calls == []
    again.parts(config.replace(top_passages=2), only_bread, "v")
    assert calls == [4]
    again.parts(config, target(engine, query="mill"), "v")
    Scorer(engine, source, "other", AnswerFile(path)).parts(config, only_bread, "v")
    assert calls == [4, 1, 3]


def test_passages_stand_in_the_prompt_in_the_ra_modes(engine):
    config = CONFIG.replace(mode="ra", prompt_passages=2)
    parts = Scorer(engine, ListSource(PASSAGES), "c", AnswerFile()).parts(config, target(engine), "v")
    prompt = [3, len(LIGHTHOUSE) % 50, len(RIVER) % 50]
    direct = gather(engine.model.lm, prompt, target(engine).token_ids, None, config)
    np.testing.assert_allclose(parts.p_lm, direct.p_lm, rtol=1e-8)


def test_a_global_datastore_is_refused(engine):
    scorer = Scorer(engine, ListSource(PASSAGES), "c", AnswerFile())
    with pytest.raises(ConfigError, match="datastore='passages'"):
        scorer.parts(CONFIG.replace(datastore="global"), target(engine), "v")
