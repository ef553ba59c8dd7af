"""Tells that memory ran out from other failures of a forward pass."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from nest_engine.errors import OutOfMemoryError

_SIGNS = ("out of memory", "can't allocate memory", "not enough memory", "failed to allocate")


@contextmanager
def memory_guard(tokens: int) -> Iterator[None]:
    """Turn a failed allocation in the block into an error that says what to do.

    Args:
        tokens: Length of what is read, for the message.

    Raises:
        OutOfMemoryError: If memory ran out.
    """
    try:
        yield
    except (MemoryError, torch.OutOfMemoryError) as error:
        raise _error(tokens) from error
    except RuntimeError as error:  # the CPU's allocator has no class of its own
        if any(sign in str(error).lower() for sign in _SIGNS):
            raise _error(tokens) from error
        raise


def _error(tokens: int) -> OutOfMemoryError:
    return OutOfMemoryError(
        f"memory ran out while the model read {tokens} tokens: use fewer or shorter passages (top_passages, "
        "prompt_passages), a shorter prompt, a smaller model, or dtype='bfloat16'; the engine can be used on"
    )
