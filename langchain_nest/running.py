"""Engine steps on worker threads, so that the event loop keeps ticking."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import os
from collections.abc import AsyncGenerator, Generator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any, TypeVar

T = TypeVar("T")

_END: Any = object()


@cache
def _workers() -> ThreadPoolExecutor:
    """Threads of our own: a step never waits for anything but the model, so they cannot block each other."""
    return ThreadPoolExecutor(max(2, min(4, os.cpu_count() or 1)), thread_name_prefix="nest-step")


async def arun(steps: Generator[T, None, None]) -> AsyncGenerator[T, None]:
    """Run a generator step by step on worker threads.

    When the caller stops, because it is cancelled or closes the stream, the generator is
    closed: at once, or when the step that is running then has ended.

    Args:
        steps: The generator. Its steps may run on different threads, one after the other.

    Yields:
        What it yields.
    """
    loop = asyncio.get_running_loop()
    context = contextvars.copy_context()
    running: asyncio.Future[T] | None = None
    try:
        while True:
            running = loop.run_in_executor(_workers(), lambda: context.run(next, steps, _END))
            # Shielded: a cancelled future would let go of a thread that is still in the generator.
            item = await asyncio.shield(running)
            running = None
            if item is _END:
                return
            yield item
    finally:
        if running is None or running.done():
            steps.close()
        else:
            running.add_done_callback(lambda done: _close(done, steps))


def _close(done: asyncio.Future[T], steps: Generator[T, None, None]) -> None:
    """Close a generator whose last step nobody waits for; its error, if any, is of no interest."""
    with contextlib.suppress(asyncio.CancelledError):
        done.exception()
    steps.close()
