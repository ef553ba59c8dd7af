"""What the reports of `bench` and `eval` share: facts about a run, and files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nest_engine.engine import NestEngine


def engine_facts(engine: NestEngine) -> dict[str, Any]:
    """What figures depend on: model, dtype, threads, torch; nothing about whose machine it was."""
    import torch

    return {
        "model": engine.model.name.replace("\\", "/").rsplit("/", 1)[-1],
        "dtype": str(engine.model.lm.weight_dtype).removeprefix("torch."),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
    }


def write_texts(folder: Path, texts: Mapping[str, str]) -> Iterator[Path]:
    """Write texts into a folder, which is made if needed.

    Args:
        folder: The folder.
        texts: By file name.

    Yields:
        The files written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (folder / name).write_text(text + "\n", encoding="utf-8")
        yield folder / name


def find_figure_class() -> Any:
    """The class of matplotlib's figures; None where matplotlib is not installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return None
    return Figure
