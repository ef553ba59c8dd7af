"""Tables, pictures and JSON of hand-made measurements."""

import json

import pytest

from nest_engine import NestConfig
from nest_engine.evaluation.results import summarize, write_results
from nest_engine.evaluation.runner import Measured
from nest_engine.evaluation.systems import System, sweep

NEST = System("nest", NestConfig())
RA = System("ra", NestConfig(mode="ra"))


@pytest.fixture
def measured():
    made = Measured([RA, NEST, *sweep("gamma=5e-4,5e-2", NEST)])
    for number in range(40):
        ours = {"recall": (1.0, 1.0), "attribution": (number, 40.0), "perplexity: x": (20.0, 10.0)}
        made.add(NEST, f"q{number}", ours)
        # Asked in another order.
        made.add(RA, f"q{39 - number}", {"recall": (float(number % 4 == 0), 1.0), "perplexity: x": (30.0, 10.0)})
        for swept in made.systems[2:]:
            made.add(swept, f"q{number}", {"recall": (float(number % 2), 1.0)})
    made.fail(NEST, "q99", ValueError("no"))
    return made


def test_figures(measured):
    results = summarize(measured, {"model": "tiny"})
    assert results.base == "ra"
    assert results.figures["ra"]["recall"].value == pytest.approx(0.25)
    assert results.figures["nest"]["attribution"].value == pytest.approx(sum(range(40)) / 1600)
    assert results.figures["nest"]["perplexity: x"].value == pytest.approx(2.718281828**2)
    gap = results.differences["nest"]["recall"]
    assert (gap.value, gap.excludes_zero) == (pytest.approx(0.75), True)
    assert results.differences["nest"]["perplexity: x"].value == pytest.approx(2.718281828**2 - 2.718281828**3)
    assert "attribution" not in results.differences["nest"]
    assert "ra" not in results.differences


def test_markdown(measured):
    text = summarize(measured, {"model": "tiny", "split": "report"}).to_markdown()
    assert "|  | ra | nest | nest gamma=0.0005 | nest gamma=0.05 |" in text
    row = next(line for line in text.splitlines() if line.startswith("| answer recall (%)"))
    assert row.split("|")[3].strip() == "100.0 [100.0, 100.0]"
    assert row.split("|")[2].strip().startswith("25.0 [")
    assert "**+75.0 [" in text
    assert "1 answers failed" in text
    assert "model: tiny, split: report." in text


def test_files(measured, tmp_path):
    pytest.importorskip("matplotlib")
    results = summarize(measured, {"model": "tiny"}, base="nest")
    paths = {path.name for path in write_results(results, tmp_path / "new")}
    assert paths == {"results.json", "results.md", "results.png", "sweep-gamma.png"}
    saved = json.loads((tmp_path / "new" / "results.json").read_text())
    assert saved["base"] == "nest"
    assert saved["settings"]["nest"]["alpha"] == 0.3
    assert saved["figures"]["ra"]["recall"]["value"] == pytest.approx(0.25)
    assert saved["failed"] == {"nest": {"q99": "no"}}
    for name in ("results.png", "sweep-gamma.png"):
        assert (tmp_path / "new" / name).read_bytes().startswith(b"\x89PNG")


def test_pictures_are_left_out_without_matplotlib(measured, tmp_path, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    paths = {path.name for path in write_results(summarize(measured, {}), tmp_path)}
    assert paths == {"results.json", "results.md"}


def test_what_is_no_number_is_null(measured):
    measured.add(NEST, "q1", {"citation_precision": (0.0, 0.0)})
    results = summarize(measured, {})
    assert json.loads(results.to_json())["figures"]["nest"]["citation_precision"]["value"] is None
    assert "nan" not in results.to_markdown()


def test_nothing_measured_is_an_empty_table():
    assert summarize(Measured([NEST]), {}).figures == {}
