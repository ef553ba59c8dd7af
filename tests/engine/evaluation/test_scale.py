"""Costs against size: what is measured. How long it takes no test can tell."""

from nest_engine.cli import main
from nest_engine.evaluation.scale import measure_costs


def test_every_kind_of_search_is_measured_at_every_size():
    costs = list(measure_costs([20, 200], queries=2, dim=16))
    assert [(c.passages, c.search) for c in costs] == [(n, s) for n in (20, 200) for s in ("dense", "sparse", "hybrid")]
    assert all(c.milliseconds > 0 for c in costs)


def test_the_command_prints_a_table(capsys):
    assert main(["scale", "20", "--queries", "1", "--quiet"]) == 0
    assert capsys.readouterr().out.count("| 20 |") == 3
    assert main(["scale", "0"]) == 2
