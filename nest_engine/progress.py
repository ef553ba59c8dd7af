"""Progress bars for long work, on standard error, only where they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tqdm.auto import tqdm


@contextmanager
def progress_bar(what: str, total: int, *, enabled: bool) -> Iterator[Callable[[int], None] | None]:
    """Show a bar while a block runs.

    Args:
        what: What is going on, shown before the bar.
        total: Units of work.
        enabled: Whether to show it.

    Yields:
        A function to call with the units done since the last call, or None.
    """
    if not enabled:
        yield None
        return
    with tqdm(total=total, desc=what, leave=False) as bar:

        def report(done: int) -> None:
            bar.update(done)

        yield report
