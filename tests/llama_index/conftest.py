"""The store tests need many large packages: they run only where they are asked for (`make test-stores`)."""

from __future__ import annotations

from pathlib import Path

import pytest

STORES = Path(__file__).parent / "stores"


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    asked = any("stores" in argument for argument in (*config.args, config.option.markexpr or ""))
    return True if collection_path == STORES and not asked else None
