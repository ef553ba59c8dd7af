"""`nest-engine playground`: what it listens at, and what it says without Gradio. No model, no page."""

from __future__ import annotations

import sys

import pytest

from nest_engine import cli
from nest_engine.playground import app


@pytest.fixture
def served(monkeypatch):
    """Where pages were served."""
    served = []

    class Page:
        def block_thread(self):
            served.append("waits")

    def launch(page, *, host, port, wait):
        served.append((host, port))
        return f"http://{host}:{port}"

    monkeypatch.setattr(app, "load_gradio", lambda: None)
    monkeypatch.setattr(app, "make_app", lambda bench: Page())
    monkeypatch.setattr(app, "launch", launch)
    monkeypatch.setattr(cli, "_engine", lambda chosen, config: None)
    return served


def test_it_listens_to_this_machine_alone_unless_told_otherwise(served, capsys):
    assert cli.main(["playground"]) == 0
    assert cli.main(["playground", "--host", "0.0.0.0", "--port", "7999"]) == 0
    assert served == [("127.0.0.1", None), "waits", ("0.0.0.0", 7999), "waits"]
    assert "http://0.0.0.0:7999" in capsys.readouterr().err


def test_without_gradio_it_names_the_extra_before_a_model_is_loaded(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "gradio", None)
    monkeypatch.setattr(cli, "_engine", lambda chosen, config: pytest.fail("a model was loaded"))
    assert cli.main(["playground"]) == 2
    assert "nest-rag[playground]" in capsys.readouterr().err
