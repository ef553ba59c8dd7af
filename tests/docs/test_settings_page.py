"""The page of settings has every setting, with the unit, range and default that the code has."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from nest_engine import NestConfig
from nest_engine.config import _RANGES, PRESETS

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "settings.md").read_text(encoding="utf-8")
FIELDS = {field.name: field for field in dataclasses.fields(NestConfig)}


def tables(text: str) -> list[list[list[str]]]:
    """Tables of a Markdown text, as rows of cells; the second row, of dashes, is left out."""
    found = re.findall(r"(?:^\|.*\|\n)+", text, re.MULTILINE)
    rows = [
        [[cell.strip() for cell in re.split(r"(?<= )\|(?= )", line.strip("|"))] for line in table.splitlines()]
        for table in found
    ]
    return [[table[0], *table[2:]] for table in rows]


def documented() -> dict[str, list[str]]:
    """Unit, range, default and effect by setting."""
    header = ["setting", "unit", "range", "default", "effect"]
    rows = [row for table in tables(PAGE) if [c.strip("| ") for c in table[0]] == header for row in table[1:]]
    return {row[0].strip("`"): row[1:] for row in rows}


def presets() -> dict[str, dict[str, str]]:
    """Values by preset and setting, as they are written."""
    (table,) = [table for table in tables(PAGE) if table[0][0] == "preset"]
    names = [cell.strip("`") for cell in table[0][1:]]
    return {row[0].strip("`"): dict(zip(names, row[1:], strict=True)) for row in table[1:]}


def test_every_setting_once():
    assert sorted(documented()) == sorted(FIELDS)
    assert len(re.findall(r"^\| `\w+` \|", PAGE.partition("## Presets")[0], re.MULTILINE)) == len(FIELDS)


@pytest.mark.parametrize("name", FIELDS)
def test_unit_range_and_default(name):
    unit, allowed, default, effect = documented()[name]
    assert unit == FIELDS[name].metadata["unit"]
    assert allowed == _RANGES[name][1]
    assert default == f"`{FIELDS[name].default!r}`"
    assert len(effect) > 20


def test_every_preset_with_every_value_it_sets():
    assert list(presets()) == list(PRESETS)
    for name, settings in PRESETS.items():
        written = presets()[name]
        assert set(settings) <= set(written)
        config = NestConfig.preset(name)
        assert written == {setting: f"`{getattr(config, setting)!r}`" for setting in written}
