"""Run a blocking iterator in a thread of its own, and let the event loop go on meanwhile."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import AsyncGenerator, Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


async def start_in_thread(make: Callable[[], Generator[T, None, None]]) -> AsyncGenerator[T, None]:
    """Make a generator in a thread and iterate over it from the event loop.

    Every step runs in the same thread, one after the other, in a copy of the caller's context, so
    that traces stay nested. When the result is closed or its consumer is cancelled, the generator
    is closed behind the step that is running: no further work is done.

    Args:
        make: Makes the generator; its errors are raised here, before anything is iterated.
    """
    loop = asyncio.get_running_loop()
    context = contextvars.copy_context()
    # One worker: what is submitted later runs later, which is what makes closing safe.
    worker = ThreadPoolExecutor(1, thread_name_prefix="nest")
    making = worker.submit(context.run, make)
    try:
        items = await asyncio.wrap_future(making, loop=loop)
    except BaseException:
        worker.submit(_close_made, making)
        worker.shutdown(wait=False)
        raise
    return _iterate(items, worker, context)


async def _iterate(
    items: Generator[T, None, None], worker: ThreadPoolExecutor, context: contextvars.Context
) -> AsyncGenerator[T, None]:
    loop = asyncio.get_running_loop()
    try:
        while True:
            # A list, because neither StopIteration nor a sentinel of T's type can cross a future.
            step: list[T] = await loop.run_in_executor(worker, context.run, _next, items)
            if not step:
                return
            yield step[0]
    finally:
        worker.submit(items.close)
        worker.shutdown(wait=False)


def _next(items: Generator[T, None, None]) -> list[T]:
    for item in items:
        return [item]
    return []


def _close_made(making: object) -> None:
    """Close a generator whose consumer was cancelled while it was being made."""
    items = getattr(making, "result", lambda: None)()
    if items is not None:
        items.close()
