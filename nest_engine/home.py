"""The folder where the engine keeps what it downloads and computes."""

from __future__ import annotations

import os
from pathlib import Path


def nest_home() -> Path:
    """Folder for models and caches of this user; it need not exist yet.

    It is `$NEST_HOME` where that is set, else `nest-rag` in `$XDG_CACHE_HOME`, else
    `~/.cache/nest-rag`. The environment is read on each call.
    """
    if own := os.environ.get("NEST_HOME"):
        return Path(own).expanduser().resolve()
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "nest-rag"
