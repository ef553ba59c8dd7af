"""A lock that is given to its waiters in the order they came."""

from __future__ import annotations

import os
import threading
from collections import deque
from types import TracebackType


class FairLock:
    """First come, first served. `threading.Lock` may let one thread pass the others again and again.

    In the child of a fork the lock is free: the thread that held it does not exist there.
    """

    _held: bool

    def __init__(self) -> None:
        """Make a lock that is free."""
        self._reset()

    def acquire(self) -> None:
        """Wait for one's turn."""
        if self._process != os.getpid():
            self._reset()
        with self._inner:
            if not self._held and not self._waiting:
                self._held = True
                return
            turn = threading.Lock()
            turn.acquire()
            self._waiting.append(turn)
        try:
            turn.acquire()
        except BaseException:  # interrupted (Ctrl-C) while waiting
            self._give_up(turn)
            raise

    def release(self) -> None:
        """Give the lock to the one who waits longest."""
        with self._inner:
            if self._waiting:
                self._waiting.popleft().release()
            else:
                self._held = False

    def __enter__(self) -> None:
        """Acquire."""
        self.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Release."""
        self.release()

    def _give_up(self, turn: threading.Lock) -> None:
        with self._inner:
            try:
                self._waiting.remove(turn)
                return
            except ValueError:
                pass  # the turn came in the same moment: pass it on
        self.release()

    def _reset(self) -> None:
        self._process = os.getpid()
        self._inner = threading.Lock()
        self._held = False
        self._waiting: deque[threading.Lock] = deque()
