"""Every notebook runs from top to bottom, and what is kept of it is clean."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
names = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def outputs(notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    return [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]


def kinds(notebook: nbformat.NotebookNode) -> list[list[str]]:
    """What each cell shows, by kind: a picture, HTML, text."""
    wanted = ("image/png", "text/html", "text/plain")
    return [
        sorted({next((k for k in wanted if k in o.get("data", {})), o.output_type) for o in outputs_of(cell)})
        for cell in notebook.cells
    ]


def outputs_of(cell: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    """A cell's outputs without warnings and progress bars."""
    return [o for o in cell.get("outputs", []) if o.get("name") != "stderr"]


def test_all_are_there():
    expected = {"quick_start", "langchain_existing_store", "llamaindex_existing_index"}
    assert {path.stem for path in NOTEBOOKS} == expected | {"how_nest_works", "calibrate_your_model"}


@pytest.mark.demo_model
@pytest.mark.slow
@names
def test_runs_and_shows_what_is_kept(path, demo_model_dir, tmp_path):
    kept = nbformat.read(path, as_version=4)
    ran = nbformat.from_dict(kept)
    NotebookClient(ran, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    assert kinds(ran) == kinds(kept)
    assert outputs(ran)


@names
def test_what_is_kept_is_clean(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert all(o.output_type != "error" and o.get("name") != "stderr" for o in outputs(notebook))
    text = path.read_text(encoding="utf-8")
    assert not re.search(r"/(?:root|home|work|tmp|opt|usr|Users)/", text)
    assert not re.search(r"\d s(?:<|\*|\b\\n)|seconds?=", text), "times of a machine are of no use to others"
    assert len(text) < 500_000
    assert notebook.cells[0].source.startswith("# ")


@names
def test_links_lead_somewhere(path):
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", cell.source):
                assert "://" in target or (path.parent / target).exists(), target
