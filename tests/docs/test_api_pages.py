"""Every public name is on a page of the API reference, and every page names what exists."""

from __future__ import annotations

import importlib
import pkgutil
import re
from pathlib import Path

import pytest

import nest_engine.errors

PAGES = Path(__file__).resolve().parents[2] / "docs" / "api"
PACKAGES = ("nest_engine", "langchain_nest", "llama_index_nest")


def entries(package: str) -> list[str]:
    """What the page of a package documents, as dotted names."""
    return re.findall(r"^::: ([\w.]+)$", (PAGES / f"{package}.md").read_text(encoding="utf-8"), re.MULTILINE)


def test_one_page_for_each_package():
    assert {path.stem for path in PAGES.iterdir()} == set(PACKAGES)


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_once(package):
    names = importlib.import_module(package).__all__
    assert {f"{package}.{name}" for name in names} <= set(entries(package))
    assert len(entries(package)) == len(set(entries(package)))


@pytest.mark.parametrize("package", PACKAGES)
def test_every_entry_exists_and_has_a_docstring(package):
    for entry in entries(package):
        assert pkgutil.resolve_name(entry).__doc__, entry


def test_every_error_is_explained_where_people_look():
    text = (PAGES.parent / "troubleshooting.md").read_text(encoding="utf-8")
    errors = [name for name, value in vars(nest_engine.errors).items() if isinstance(value, type)]
    assert len(errors) > 10
    for name in errors:
        assert f"`{name}`" in text, f"{name} is not in docs/troubleshooting.md"
