"""What an engine tells an observer about each call: enough for Prometheus or OpenTelemetry, and needing neither.

from prometheus_client import Counter, Histogram

tokens = Counter("nest_tokens", "tokens of answers", ["mode"])
seconds = Histogram("nest_seconds", "time of calls", ["mode", "outcome"])

def observe(call: CallMetrics) -> None:
tokens.labels(call.mode).inc(call.tokens)
seconds.labels(call.mode, call.outcome).observe(call.seconds.total)

engine.observer = observe
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from nest_engine.generation import Seconds

logger = logging.getLogger(__name__)

Outcome = Literal["end", "length", "stop", "cancelled", "error"]


@dataclass(frozen=True)
class CallMetrics:
    """Counts and times of one call, whatever became of it.

    Attributes:
        mode: The mode.
        outcome: The answer's finish reason; `"cancelled"` where its stream was closed early, `"error"` where it failed.
        error: Name of the error's class, or empty.
        tokens: Tokens emitted, in tokens.
        attributed_tokens: Those of them that were copied, in tokens.
        citations: Citations given.
        lm_calls: Forward passes.
        drafted: Tokens read ahead, in tokens.
        accepted: Those of them that came true, in tokens.
        prompt_tokens: Length of the prompt, in tokens.
        passages: Passages found and relevant.
        store_hits: Passages whose keys were in the store.
        store_misses: Passages that were encoded.
        seconds: Where the time went.
    """

    mode: str
    outcome: Outcome
    error: str = ""
    tokens: int = 0
    attributed_tokens: int = 0
    citations: int = 0
    lm_calls: int = 0
    drafted: int = 0
    accepted: int = 0
    prompt_tokens: int = 0
    passages: int = 0
    store_hits: int = 0
    store_misses: int = 0
    seconds: Seconds = field(default_factory=Seconds)


Observer = Callable[[CallMetrics], None]
"""Called once behind each call, in the thread that made it: it should be quick."""


class Notifier:
    """Tells an observer, and lets none of its errors reach an answer."""

    def __init__(self) -> None:
        """Begin without an observer."""
        self.observer: Observer | None = None
        self._warned = False

    def tell(self, metrics: CallMetrics) -> None:
        """Call the observer, if there is one; the first error it raises is logged, further ones are not."""
        if self.observer is None:
            return
        try:
            self.observer(metrics)
        except Exception:
            if not self._warned:
                self._warned = True
                logger.warning("the observer of an engine's calls failed; answers go on without it", exc_info=True)
