"""A model that runs out of memory in the middle of an answer."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from nest_engine.errors import ModelMemoryError

_SIGNS = ("out of memory", "not enough memory", "can't allocate memory", "alloc_failed")


@contextmanager
def memory_errors() -> Iterator[None]:
    """Turn every way in which torch says that memory ran out into `ModelMemoryError`.

    Raises:
        ModelMemoryError: In place of the block's error, once what the allocator holds back is free again.
    """
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not _is_memory(error):
            raise
        message = str(error).splitlines()[0] if str(error) else type(error).__name__
        raised = ModelMemoryError(
            f"the model ran out of memory ({message}): lower max_new_tokens, prompt_passages or top_passages, "
            "send fewer calls at once, or load the model with dtype='bfloat16'"
        )
        # The traceback holds the tensors of the failed pass: without it they are free before the next call.
        cause = type(error)(str(error))
        error.__traceback__ = None
        gc.collect()
        if torch.cuda.is_initialized():
            torch.cuda.empty_cache()
        raise raised from cause


def _is_memory(error: BaseException) -> bool:
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return any(sign in str(error).lower() for sign in _SIGNS)
