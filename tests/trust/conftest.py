"""Short by default; `make soak` runs the long versions."""

from __future__ import annotations

import os

import pytest


@pytest.fixture(scope="session")
def soak() -> bool:
    """Whether the long versions are wanted (NEST_SOAK=1)."""
    return bool(os.environ.get("NEST_SOAK"))
