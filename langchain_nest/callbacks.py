"""Callbacks for what happens inside a model's run."""

from __future__ import annotations

from typing import TypeVar

from langchain_core.callbacks import (
    AsyncCallbackManager,
    AsyncCallbackManagerForLLMRun,
    CallbackManager,
    CallbackManagerForLLMRun,
)

Manager = TypeVar("Manager", CallbackManager, AsyncCallbackManager)


def child_callbacks(run_manager: CallbackManagerForLLMRun | None) -> CallbackManager | None:
    """Callbacks with which a search appears inside the model's run in traces."""
    if run_manager is None:
        return None
    manager = CallbackManager(handlers=[], parent_run_id=run_manager.run_id)
    return _inherit(manager, run_manager)


def achild_callbacks(run_manager: AsyncCallbackManagerForLLMRun | None) -> AsyncCallbackManager | None:
    """The asynchronous twin of `child_callbacks`."""
    if run_manager is None:
        return None
    manager = AsyncCallbackManager(handlers=[], parent_run_id=run_manager.run_id)
    return _inherit(manager, run_manager)


def _inherit(manager: Manager, run_manager: CallbackManagerForLLMRun | AsyncCallbackManagerForLLMRun) -> Manager:
    """LangChain gives children to runs of chains and tools only; this is how it makes them."""
    manager.set_handlers(run_manager.inheritable_handlers)
    manager.add_tags(run_manager.inheritable_tags)
    manager.add_metadata(run_manager.inheritable_metadata)
    return manager
