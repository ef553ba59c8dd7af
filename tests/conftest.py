"""Fixtures that all tests share, and the rule that no test is skipped unnoticed."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from nest_engine import NestEngine

ROOT = Path(__file__).resolve().parent.parent
DEMO_MODEL = "smollm2-135m-instruct"

# The only reasons for which a test may be skipped (regular expressions, matched in full), each with what it costs.
ALLOWED_SKIPS = {
    r"\.\./shared/data is missing": "large public data sets; small texts in the tests cover the same rules",
    r"no CUDA device": "runs on the CPU cover the same code",
}

# Before torch is imported. More threads than cores make it several times slower, and tokenizers that have
# started threads warn about every later subprocess. Workers inherit what their parent set for itself alone.
_CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
_WORKERS = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
_THREADS = str(max(1, min(_CORES // _WORKERS, 4)))
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ["OMP_NUM_THREADS"] = _THREADS
else:
    os.environ.setdefault("OMP_NUM_THREADS", _THREADS)
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# No test needs the model hub; a name that is no model must fail at once, not after a timeout.
os.environ.setdefault("HF_HUB_OFFLINE", "1")


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of public data sets beside the checkout; skips where it is missing."""
    folder = ROOT.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("../shared/data is missing")
    return folder


@pytest.fixture(scope="session")
def demo_model_dir() -> Path:
    """The demo model's folder; fetched on first use, then kept in the user's cache."""
    from nest_engine.lm.catalog import fetch

    return fetch(DEMO_MODEL, progress=False)


@pytest.fixture(scope="session")
def demo_engine(demo_model_dir: Path) -> NestEngine:
    """The demo model, loaded once for all tests. Give settings per call, do not change it."""
    from nest_engine import NestEngine

    return NestEngine.from_pretrained(DEMO_MODEL, device="cpu", progress=False)


@pytest.fixture
def nest_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder for one test."""
    monkeypatch.setenv("NEST_HOME", str(tmp_path / "nest-home"))
    return tmp_path / "nest-home"


class SkipGuard:
    """Fails the session when a test is skipped for a reason that is not in `ALLOWED_SKIPS`."""

    def __init__(self) -> None:
        self.unlisted: list[tuple[str, str]] = []

    def see(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        if not report.skipped or hasattr(report, "wasxfail"):
            return
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        reason = reason.removeprefix("Skipped: ")
        if not any(re.fullmatch(allowed, reason) for allowed in ALLOWED_SKIPS):
            self.unlisted.append((report.nodeid, reason))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.see(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self.see(report)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.unlisted and session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self.unlisted:
            return
        terminalreporter.section("skipped for a reason that tests/conftest.py does not list", red=True, bold=True)
        for nodeid, reason in self.unlisted:
            terminalreporter.line(f"{nodeid}: {reason}")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with slow tests come first: begun last, one of them would run alone at the end."""
    slow = {item.path for item in items if item.get_closest_marker("slow") or item.get_closest_marker("demo_model")}
    items.sort(key=lambda item: item.path not in slow)


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(SkipGuard(), "nest-skip-guard")
