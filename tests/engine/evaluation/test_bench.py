"""Measuring systems: what is asked of whom, and how it is counted. How fast they are no test can tell."""

from __future__ import annotations

import json
import sys

import pytest

from nest_engine.errors import ConfigError
from nest_engine.evaluation.bench import run_bench, write_report
from nest_engine.retrieval.source import ListSource
from tests.texts import PLAIN, passages
from tests.tiny import tiny_engine

QUESTIONS = ("What is glass?", "Where do owls live?")


def measure(*systems: str, **arguments):
    return run_bench(
        tiny_engine(), ListSource(passages(*PLAIN)), QUESTIONS, systems=systems, max_new_tokens=8, **arguments
    )


def test_each_system_answers_each_question(tmp_path):
    systems = ("transformers", "transformers ra", "lm", "nest", "nest cold", "lossless ra", "nest gamma=0.5")
    report = measure(*systems, repeats=2)
    rows = {row["system"]: row for row in report.rows()}
    assert list(rows) == list(systems)
    assert all(row["answers"] == 4 and row["tokens"] > 0 for row in rows.values())
    assert rows["lm"]["tokens"] == rows["transformers"]["tokens"], "the same model on the same prompt"
    assert rows["nest"]["stages"]["encode"] < rows["nest cold"]["stages"]["encode"]
    names = {path.name for path in write_report(report, tmp_path)}
    assert {"bench.json", "bench.md"} <= names
    assert len(json.loads((tmp_path / "bench.json").read_text())["rows"]) == len(systems)


def test_settings_behind_a_mode_reach_it():
    short, long = measure("nest max_new_tokens=3", "nest").rows()
    assert short["tokens"] <= 6 < long["tokens"]


@pytest.mark.parametrize("system", ["nest gamma=2", "nest no_such=1", "fly"])
def test_a_wrong_system_is_told_at_once(system):
    with pytest.raises(ConfigError):
        measure("lm", system)


def test_llama_cpp_says_what_it_needs(monkeypatch, tmp_path):
    with pytest.raises(ConfigError, match="--gguf"):
        measure("llama.cpp")
    monkeypatch.setitem(sys.modules, "llama_cpp", None)
    with pytest.raises(ConfigError, match="llama-cpp-python"):
        measure("llama.cpp", gguf=tmp_path / "model.gguf")
