"""What is compared: names, the ladder of ablations, sweeps, digests."""

import pytest

from nest_engine import NestConfig
from nest_engine.errors import ConfigError
from nest_engine.evaluation.systems import System, ablation, sweep, systems_of


def config_of(mode):
    return NestConfig.preset("smollm2-135m-instruct", mode=mode)


def test_systems_by_name():
    lm, ra, drafts, best = systems_of(["lm", " ra", "lossless ra", "best sentence"], config_of)
    assert (lm.config.mode, ra.config.mode) == ("lm", "ra")
    assert (drafts.name, drafts.config.mode, drafts.config.reads_passages) == ("lossless ra", "lossless", True)
    assert (best.extractive, best.config.top_passages) == (True, 5)
    with pytest.raises(ConfigError, match=r"'rag'; there are lm, ra, .*best sentence"):
        systems_of(["rag"], config_of)


def test_the_ladder_adds_one_part_after_the_other():
    fixed, confidence, spans, verified = ablation(config_of)
    assert fixed.config.mode == "knn-lm"
    assert (confidence.config.mode, confidence.config.delta) == ("nest", 0)
    assert spans.config.delta == verified.config.delta == 0.5
    assert spans.config.gamma < 1e-300
    assert verified.config == config_of("nest")


def test_sweeps():
    (base,) = systems_of(["nest"], config_of)
    first, second = sweep(f"gamma=5e-4,{base.config.gamma},5e-4", base)
    assert (first.name, first.config.gamma, first.swept) == ("nest gamma=0.0005", 5e-4, ("gamma", 5e-4))
    assert second.config == base.config
    assert [s.config.span_tokens for s in sweep("n=8,16", base)] == [8, 16]
    assert [s.config.top_passages for s in sweep("b=1", base)] == [1]
    assert [s.config.mu for s in sweep("mu=none,0.1", base)] == [None, 0.1]
    assert [s.config.key_transform for s in sweep("key-transform=pca", base)] == ["pca"]


@pytest.mark.parametrize(
    ("text", "message"),
    [("gamma", "--sweep gamma=5e-4"), ("gamma=", "values"), ("nothing=1", "no such setting"), ("gamma=2", "at most 1")],
)
def test_a_wrong_sweep_names_the_fix(text, message):
    with pytest.raises(ConfigError, match=message):
        sweep(text, System("nest", NestConfig()))


def test_the_digest_is_of_all_that_changes_answers():
    plain = System("nest", NestConfig())
    assert System("another name", NestConfig()).fingerprint("m") == plain.fingerprint("m")
    assert System("nest", NestConfig(draft_chunk=3)).fingerprint("m") == plain.fingerprint("m")
    others = [System("nest", NestConfig(gamma=0.1)).fingerprint("m"), plain.fingerprint("other")]
    others += [
        System(name, NestConfig(), extractive=True).fingerprint("m") for name in ("top passage", "best sentence")
    ]
    assert len({plain.fingerprint("m"), *others}) == 5
