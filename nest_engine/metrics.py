"""What an engine reports after each call: give it to Prometheus, OpenTelemetry, or a log.

    def count(call: CallMetrics) -> None:
        answers.labels(call.mode, call.outcome).inc()
        seconds.observe(call.seconds.total)

    engine = NestEngine.from_pretrained("smollm2-135m-instruct")
    engine.metrics = count

The hook's own errors never reach an answer.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from nest_engine.generation import Seconds

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class CallMetrics:
    """One call of an engine, however it ended. Nothing of prompts, passages or answers is in it.

    Attributes:
        mode: The mode.
        outcome: `"end"`, `"length"` or `"stop"` as in `Generation.finish_reason`; `"closed"` where the
            caller left a stream; else the name of the error's class.
        seconds: Where the time went, as in `Stats.seconds`.
        tokens: Tokens of the answer so far.
        attributed_tokens: Those of them that were copied.
        prompt_tokens: Tokens of the prompt.
        lm_calls: Forward passes while answering.
        drafted: Tokens read ahead.
        accepted: Those of them that came true.
        passages: Passages that were found.
        store_hits: Passages whose keys were in the store.
        store_misses: Passages whose keys were computed.
    """

    mode: str
    outcome: str
    seconds: Seconds = field(default_factory=Seconds)
    tokens: int = 0
    attributed_tokens: int = 0
    prompt_tokens: int = 0
    lm_calls: int = 0
    drafted: int = 0
    accepted: int = 0
    passages: int = 0
    store_hits: int = 0
    store_misses: int = 0

    @property
    def acceptance(self) -> float:
        """The share of the tokens read ahead that came true; 0 where none was."""
        return self.accepted / self.drafted if self.drafted else 0.0


MetricsHook = Callable[[CallMetrics], object]
"""Called after each call, in its thread; what it returns is dropped."""


@dataclass
class StoreCounts:
    """Counts what a key store had.

    Attributes:
        hits: Passages that were there.
        misses: Passages that had to be encoded.
    """

    hits: int = 0
    misses: int = 0


class Reporter:
    """Calls the hook; its errors never reach an answer, and are logged once."""

    def __init__(self, hook: MetricsHook | None) -> None:
        """Report to `hook`, or to nobody."""
        self.hook = hook
        self._warned = False

    def report(self, call: CallMetrics) -> None:
        """Hand one call's metrics over."""
        if self.hook is None:
            return
        try:
            self.hook(call)
        except Exception:
            if not self._warned:
                self._warned = True
                logger.warning("the metrics hook failed; this is logged once", exc_info=True)
