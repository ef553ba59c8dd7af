"""Rules of the house that no linter knows."""

import ast
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("nest_engine", "langchain_nest", "llama_index_nest")
SOURCES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
DOCS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def tracked():
    """Files that are in the repository, or would be; all files where there is no git."""
    try:
        command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return [path.relative_to(ROOT) for path in ROOT.rglob("*") if path.is_file()]
    return [Path(line) for line in listed.stdout.splitlines()]


def test_top_folders():
    folders = {path.parts[0] for path in tracked() if len(path.parts) > 1}
    assert {folder for folder in folders if not folder.startswith(".")} <= {*PACKAGES, "tests", "docs"}


def test_packages_are_typed_and_packaged():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"] == list(PACKAGES)
    for package in PACKAGES:
        assert (ROOT / package / "py.typed").is_file()
        assert ast.get_docstring(ast.parse((ROOT / package / "__init__.py").read_text()))


def test_ci_runs_every_tier():
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    commands = script.read_text().splitlines()
    assert "set -euo pipefail" in commands
    assert {"make test", "make docs", "make test-stores", "make test-browser"} <= set(commands)


def calls(path):
    """Names of the functions called in a file, such as "print" and "pickle.load"."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func)


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_library_neither_prints_nor_executes(path):
    forbidden = {"eval", "exec", "pickle.load", "pickle.loads", "marshal.loads", "os.system", "breakpoint"}
    if path != ROOT / "nest_engine" / "cli.py":
        forbidden.add("print")
    assert not forbidden & set(calls(path))


def test_no_remote_code():
    for path in SOURCES:
        assert not re.search(r"trust_remote_code\s*=\s*True", path.read_text(encoding="utf-8")), path


def test_texts_speak_of_the_project_alone():
    machine = re.compile(r"/(?:root|work|opt|tmp)/|\.\./shared", re.IGNORECASE)
    for path in [*DOCS, *SOURCES]:
        assert not machine.search(path.read_text(encoding="utf-8")), path


def test_links_in_docs_lead_somewhere():
    for path in DOCS:
        for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", path.read_text(encoding="utf-8")):
            if "://" not in target and not target.startswith("mailto:"):
                assert (path.parent / target).exists(), f"{path.relative_to(ROOT)} links to {target}"


def blocks(path):
    """Python code blocks of a Markdown file."""
    return re.findall(r"^```python\n(.*?)^```", path.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("path", DOCS, ids=lambda path: path.name)
def test_code_in_docs_compiles(path):
    for block in blocks(path):
        compile(block, path.name, "exec")


@pytest.mark.demo_model
def test_readme_example_runs(demo_model_dir, capsys):
    example = blocks(ROOT / "README.md")[0]
    names = {}
    exec(compile(example, "README.md", "exec"), names)
    answer = names["answer"]
    assert answer.citations
    printed = capsys.readouterr().out
    for citation in answer.citations:
        assert answer.text[citation.start : citation.end] == citation.text
        assert citation.text in printed


@pytest.mark.parametrize(("number", "guide"), [(1, "langchain.md"), (2, "llamaindex.md")])
def test_readme_scripts_are_those_of_the_guides(number, guide):
    """Each guide's first script is run by the adapter's own tests."""
    script = blocks(ROOT / "README.md")[number]
    assert script == blocks(ROOT / "docs" / guide)[0]
    assert len([line for line in script.splitlines() if line.strip()]) <= 13


def test_first_screen_of_the_readme():
    first = "\n".join((ROOT / "README.md").read_text(encoding="utf-8").splitlines()[:50])
    for command in ("make demo", "make test", "pip install"):
        assert command in first


def test_importing_the_engine_imports_no_framework():
    code = "import sys, nest_engine; print([m for m in sys.modules if m.startswith(('langchain', 'llama_index'))])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(("reason", "code"), [("../shared/data is missing", 0), ("I am tired", 1)])
def test_an_unlisted_skip_fails(tmp_path, reason, code):
    (tmp_path / "conftest.py").write_text((ROOT / "tests" / "conftest.py").read_text())
    (tmp_path / "test_it.py").write_text(f"import pytest\ndef test_it():\n    pytest.skip({reason!r})\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--rootdir={tmp_path}", str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stdout
    assert ("does not list" in done.stdout) == bool(code)
