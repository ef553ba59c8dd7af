"""Calibration: the fit against a search by hand, the choice by answers, and the file that comes of it."""

import json
import time

import numpy as np
import pytest

from nest_engine import NestConfig, NestEngine, Passage, cli
from nest_engine.errors import ConfigError
from nest_engine.evaluation.calibration import (
    Fit,
    Objective,
    delta_at,
    fit,
    search_settings,
    starts,
    with_deltas,
    write_settings,
)
from nest_engine.evaluation.perplexity import TokenParts
from nest_engine.evaluation.runner import Measured
from nest_engine.evaluation.systems import System
from tests.texts import RIVER
from tests.tiny import tiny_engine


def made_parts(count=2000, seed=0):
    """Tokens of which retrieval knows those with a small ratio, below 0.55 more often than not."""
    rng = np.random.default_rng(seed)
    ratio = rng.uniform(0.2, 0.9, count)
    knows = rng.uniform(size=count) < 1 / (1 + np.exp((ratio - 0.55) / 0.06))
    p_lm = rng.uniform(0.02, 0.3, count)
    p_knn = np.where(knows, rng.uniform(0.5, 1, count), rng.uniform(0, 0.01, count))
    return TokenParts(p_lm, p_knn, ratio)


def test_the_fit_is_the_best_there_is():
    parts = made_parts()
    start = NestConfig()
    began = time.process_time()
    found = fit(parts, start)
    assert time.process_time() - began < 2
    losses = {
        (a, t): parts.losses(start.replace(alpha=a, tau=t)).mean()
        for a in np.linspace(0.3, 0.8, 51)
        for t in np.geomspace(0.01, 0.5, 30)
    }
    assert found.loss <= min(losses.values()) + 1e-6
    assert found.loss == pytest.approx(parts.losses(start.replace(alpha=found.alpha, tau=found.tau)).mean(), rel=1e-9)
    assert found.alpha == pytest.approx(0.55, abs=0.05)
    assert found.start_loss == pytest.approx(parts.losses(start).mean())
    assert found.lm_loss == pytest.approx(-np.log(parts.p_lm).mean())
    assert found.loss < found.knn_loss < found.lm_loss
    assert found.tokens == 2000


def test_tokens_without_neighbors_do_not_move_the_fit():
    parts = made_parts()
    alone = TokenParts(np.full(50, 0.5), np.zeros(50), np.full(50, np.inf))
    both = fit(TokenParts.join([parts, alone]), NestConfig())
    assert (both.alpha, both.tau) == (fit(parts, NestConfig()).alpha, fit(parts, NestConfig()).tau)
    with pytest.raises(ConfigError, match="no passages were found"):
        fit(alone, NestConfig())


FITTED = Fit(0.61234567, 0.05, None, 10, 1.0, 2.0, 3.0, 1.5)


def answers(systems, recalls, speeds):
    measured = Measured(list(systems))
    for system in systems:
        for number in range(10):
            recall = float(number < 10 * recalls(system))
            measured.add(system, str(number), {"recall": (recall, 1.0), "tokens/s": (speeds(system), 1.0)})
    return measured


def search(recalls, speeds, objective=None, deltas=(0.3, 0.7, 0.9)):
    asked = []

    def run(systems):
        asked.extend(systems)
        return answers(asked, recalls, speeds)

    return *search_settings(NestConfig(), FITTED, made_parts(), objective or Objective(), run, deltas=deltas), [
        s.name for s in asked
    ]


def test_the_best_answers_win():
    def recalls(system):
        c = system.config
        return 0.4 * (c.alpha > 0.5) + 0.3 * (c.gamma == 5e-2) + 0.2 * (c.delta == 0.7)

    config, evidence, asked = search(recalls, lambda system: 2.0)
    assert (config.alpha, config.gamma, config.delta) == (0.6123, 5e-2, 0.7)
    assert evidence["chosen"] == "fitted gamma=0.05 delta=0.7"
    assert evidence["tried"]["fitted gamma=0.05"]["recall"] == pytest.approx(0.7)
    assert not evidence["overruled"]
    assert asked[0] == "lm"
    assert len(asked) == 1 + 2 * 4 + 3


def test_answers_overrule_the_fit():
    config, evidence, _ = search(lambda system: 0.5 * (system.config.alpha < 0.5), lambda system: 2.0)
    assert (config.alpha, config.tau) == (0.3, 0.1)
    assert evidence["overruled"]


def test_what_is_too_slow_is_not_chosen():
    def speeds(system):
        return 10.0 if system.name == "lm" else 30.0 if system.config.gamma < 1e-2 else 9.0

    config, evidence, _ = search(lambda system: 0.1 + 0.5 * (system.config.gamma > 1e-2), speeds)
    assert config.gamma == 5e-4
    assert evidence["fast_enough"]
    slow, evidence, _ = search(lambda system: system.config.gamma, speeds, Objective(min_speed=4))
    assert (slow.gamma, evidence["fast_enough"]) == (5e-4, False)


def test_the_fitted_settings_start_spans_as_often_as_before():
    parts = made_parts()
    config = NestConfig(alpha=0.4, delta=0.5)  # lambda is at most 0.5 where the ratio is at most 0.4
    fitted, start = starts(config, FITTED, parts)
    assert (fitted.config.alpha, fitted.config.tau, start.config) == (0.6123, 0.05, config)
    before = (parts.ratio <= 0.4).mean()
    after = (parts.weights(fitted.config) <= fitted.config.delta).mean()
    assert 0.2 < before < 0.4
    assert after == pytest.approx(before, abs=0.01)


def test_deltas_are_quantiles_of_lambda():
    parts, config = made_parts(), NestConfig(alpha=-0.3, tau=0.5)  # lambda is above 0.7 everywhere
    deltas = [delta_at(share, config, parts) for share in (0.25, 0.5, 1.0)]
    shares = [(parts.weights(config) <= delta).mean() for delta in deltas]
    assert shares == pytest.approx([0.25, 0.5, 1.0], abs=0.01)
    assert all(0.7 < delta <= 1 for delta in deltas)
    tried = [s.config.delta for s in with_deltas(System("s", NestConfig()), [0.3, 0.5, 0.3])]
    assert tried == [0.3]


def test_by_default_all_shares_are_tried():
    _, evidence, asked = search(lambda system: system.config.delta, lambda system: 2.0, deltas=())
    assert len(asked) == 1 + 2 * 4 + 4
    assert evidence["chosen"] in asked[-4:]


# --- settings files --------------------------------------------------------------------


def test_a_settings_file_is_read_back(tmp_path):
    config = NestConfig(alpha=0.6, mu=0.02, gamma=0.05, top_passages=5, max_new_tokens=64, calibrated_entries=700)
    path = tmp_path / "new" / "settings.json"
    write_settings(path, config, {"fit": {"alpha": 0.6}})
    assert NestConfig.load(path) == config.replace(max_new_tokens=256)
    assert NestConfig.load(path, mode="ra", alpha=0.1).alpha == 0.1
    assert json.loads(path.read_text())["evidence"] == {"fit": {"alpha": 0.6}}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "not JSON"),
        ("[]", 'no "settings"'),
        ('{"settings": {}}', "calibrate again"),
        ('{"nest_settings": 1, "settings": {"gamma": 5}}', "gamma must be"),
        ('{"nest_settings": 1, "settings": {"gama": 5}}', "no such setting: gama"),
    ],
)
def test_a_wrong_settings_file_names_itself(tmp_path, content, message):
    path = tmp_path / "s.json"
    path.write_text(content)
    with pytest.raises(ConfigError, match=message) as caught:
        NestConfig.load(path)
    assert str(path) in str(caught.value)


def test_a_missing_settings_file(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read"):
        NestConfig.load(tmp_path / "no.json")


def test_a_datastore_of_another_size_brings_one_warning(caplog):
    passages = [Passage(text=RIVER)]
    engine = tiny_engine(config=NestConfig(max_new_tokens=2))
    entries = len(engine.open_index(passages))

    def warnings(**settings):
        caplog.clear()
        engine.generate("Why?", passages=passages, **settings)
        return [r for r in caplog.records if "calibrated on about" in r.getMessage()]

    assert not warnings()
    assert not warnings(calibrated_entries=entries * 4)
    assert not warnings(calibrated_entries=entries * 5, mode="lossless")
    assert len(warnings(calibrated_entries=entries * 5)) == 1
    assert not warnings(calibrated_entries=entries * 5)


# --- the command -----------------------------------------------------------------------


def run(task, passages, out, *arguments):
    flags = ["--passages", passages, "--out", out, "--source", "bm25", "--quiet", "--split", "all"]
    return cli.main(list(map(str, ["calibrate", task, *flags, *arguments])))


def test_calibrate(tiny, files, tmp_path, capsys):
    out = tmp_path / "s.json"
    arguments = ["--max-new-tokens", "8", "--top-passages", "2", "--gammas", "5e-4,0.5", "--deltas", "1.0"]
    arguments += ["--mus", "none,0.02", "--min-speed", "0.001"]
    assert run(*files, out, *arguments) == 0
    evidence = json.loads(capsys.readouterr().out)
    config = NestConfig.load(out)
    assert evidence["fit"]["loss"] < evidence["fit"]["start_loss"]
    assert len(evidence["answers"]["tried"]) == 5
    assert evidence["answers"]["fast_enough"]
    assert config.top_passages == 2
    assert config.calibrated_entries > 100
    assert config.max_new_tokens == 256
    # A second run asks nothing again.
    kept = (tmp_path / "s.answers.jsonl").read_text()
    assert run(*files, out, *arguments) == 0
    assert (tmp_path / "s.answers.jsonl").read_text() == kept
    assert NestConfig.load(out) == config


def test_fit_only(tiny, files, tmp_path, capsys):
    out = tmp_path / "s.json"
    assert run(*files, out, "--fit-only") == 0
    evidence = json.loads(capsys.readouterr().out)
    assert "answers" not in evidence
    assert NestConfig.load(out).alpha == pytest.approx(evidence["fit"]["alpha"], abs=1e-4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--mode", "lossless"], "only nest and ra-nest"),
        (["--gammas", "0.1,7"], "gamma must be"),
        (["--mus", "-1"], "mu must be"),
    ],
)
def test_errors_come_before_the_model(tiny, files, tmp_path, capsys, monkeypatch, arguments, message):
    monkeypatch.setattr(NestEngine, "from_pretrained", lambda *a, **k: pytest.fail("the model was loaded"))
    assert run(*files, tmp_path / "s.json", *arguments) == 2
    assert message in capsys.readouterr().err


def test_questions_without_passages_give_nothing_to_fit(tiny, tmp_path, files, capsys):
    task = tmp_path / "n.jsonl"
    task.write_text(json.dumps({"question": "Why?", "answers": ["x"]}))
    assert run(task, files[1], tmp_path / "s.json") == 2
    assert "no question names a passage" in capsys.readouterr().err


def test_the_command_line_takes_a_settings_file(tiny, files, tmp_path, capsys):
    path = tmp_path / "s.json"
    write_settings(path, NestConfig(gamma=0.25, top_passages=2), {})
    task, passages = map(str, files)
    arguments = ["eval", task, "--passages", passages, "--source", "bm25", "--quiet", "--json", "--max-new-tokens", "4"]
    assert cli.main([*arguments, "--modes", "nest", "--settings", str(path), "--alpha", "0.4"]) == 0
    settings = json.loads(capsys.readouterr().out)["settings"]["nest"]
    assert (settings["gamma"], settings["alpha"], settings["top_passages"]) == (0.25, 0.4, 2)
    assert cli.main([*arguments, "--settings", str(path), "--preset", "paper-7b"]) == 2
    assert "not both" in capsys.readouterr().err
