"""Code in the docs cannot drift: what it imports from this project exists, and takes the arguments it is given."""

from __future__ import annotations

import ast
import inspect
import pkgutil
import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from llama_index_nest.sources import SOURCE_NAMES
from nest_engine import NestConfig

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
OURS = ("nest_engine", "langchain_nest", "llama_index_nest")
SETTINGS = {field.name for field in fields(NestConfig)}

# What constructors take by name besides their fields, as the adapters read it from their keyword arguments.
BY_NAME = {
    "langchain_nest.chat_models": {"model", "model_name"},
    "llama_index_nest.llms": {*SOURCE_NAMES, "embed_model"},
}

# Names that the guides use for what the reader has, by what they are.
KNOWN = {
    "engine": "nest_engine.NestEngine",
    "model": "langchain_nest.ChatNest",
    "llm": "llama_index_nest.NestLLM",
}


def blocks(path: Path) -> list[str]:
    """Python code of a page, block by block."""
    text = path.read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


WITH_CODE = [path for path in PAGES if blocks(path)]


def imported(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Name in the code and dotted name, of what comes from this project."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in OURS:
            yield from ((alias.asname or alias.name, f"{node.module}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((alias.asname or alias.name, alias.name) for alias in node.names if alias.name in OURS)


def wrong_arguments(call: ast.Call, function: Any) -> set[str]:
    """Keyword arguments of a call that the function does not take; settings count as taken where it takes any."""
    given = {keyword.arg for keyword in call.keywords if keyword.arg is not None}
    known = parameters(function)
    taken = set(known)
    if any(p.kind is p.VAR_KEYWORD for p in known.values()):
        taken |= SETTINGS
    if isinstance(function, type):
        taken |= set(getattr(function, "model_fields", ())) | BY_NAME.get(function.__module__, set())
    return given - taken


def parameters(function: Any) -> dict[str, inspect.Parameter]:
    if isinstance(function, type):
        function = function.__init__  # pydantic gives a class a signature of its fields
    return dict(inspect.signature(function).parameters)


def calls(tree: ast.AST, names: dict[str, str]) -> Iterator[tuple[ast.Call, str]]:
    """Calls of what comes from this project, with the dotted name of what is called."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            head, _, rest = ast.unparse(node.func).partition(".")
            if head in names:
                yield node, f"{names[head]}.{rest}" if rest else names[head]


@pytest.mark.parametrize("path", WITH_CODE, ids=lambda path: path.name)
def test_imports_exist(path):
    for block in blocks(path):
        for _, dotted in imported(ast.parse(block)):
            pkgutil.resolve_name(dotted)


@pytest.mark.parametrize("path", WITH_CODE, ids=lambda path: path.name)
def test_arguments_exist(path):
    names: dict[str, str] = {}
    for block in blocks(path):
        tree = ast.parse(block)
        names |= dict(imported(tree))
        # The engine of the LlamaIndex guide is a query engine.
        known = {name: dotted for name, dotted in KNOWN.items() if path.name != "llamaindex.md" or name == "llm"}
        for call, dotted in calls(tree, {**known, **names}):
            try:
                function = pkgutil.resolve_name(dotted)
            except (AttributeError, ModuleNotFoundError):
                if dotted.rpartition(".")[0] in KNOWN.values():
                    continue  # a method of the framework's own, or what a call returns
                raise
            wrong = wrong_arguments(call, function)
            framework = getattr(function, "__module__", "").split(".")[0] not in OURS
            assert framework or not wrong, f"{path.name}: {ast.unparse(call.func)} takes no {', '.join(sorted(wrong))}"


@pytest.mark.parametrize(
    ("code", "wrong"),
    [
        ("ChatNest(model='m', vectorstore=1, gamma=0.1)", set()),
        ("ChatNest(modle='m', gama=0.1)", {"modle", "gama"}),
        ("NestEngine.from_pretrained('m', devise='cpu')", {"devise"}),
        ("NestEngine.generate(1, 'q', source=2, gamma=1, sauce=3)", {"sauce"}),
        ("NestQueryEngine.from_args(1, llm=2, markers=True)", set()),
    ],
)
def test_the_check_finds_what_is_wrong(code, wrong):
    names = {
        "ChatNest": "langchain_nest.ChatNest",
        "NestEngine": "nest_engine.NestEngine",
        "NestQueryEngine": "llama_index_nest.NestQueryEngine",
    }
    ((call, dotted),) = calls(ast.parse(code), names)
    assert wrong_arguments(call, pkgutil.resolve_name(dotted)) == wrong
