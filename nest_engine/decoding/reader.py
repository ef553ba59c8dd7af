"""Reads known tokens together with guesses, and forgets the guesses that turn out wrong."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch

from nest_engine.lm.protocol import LanguageModel, Reading

LogitsProcessor = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""As in transformers: (int64 [1, length] tokens so far, float [1, vocabulary] logits) -> logits."""


@runtime_checkable
class Foreseeing(Protocol):
    """A logits processor that often knows what comes next."""

    def foresee(self, tokens: Sequence[int]) -> Sequence[int]:
        """Tokens that will most likely follow `tokens`, possibly none."""
        ...


@dataclass
class Counts:
    """What was read.

    Attributes:
        lm_calls: Forward passes, that of the prompt included.
        drafted: Guessed tokens that were read.
        accepted: Guessed tokens that became part of the answer.
        lm_seconds: Time of the forward passes, in seconds.
    """

    lm_calls: int = 0
    drafted: int = 0
    accepted: int = 0
    lm_seconds: float = 0.0


class Reader:
    """The tokens that are known, and what the LM says behind them.

    A forward pass reads the one known token that has not been read, and guesses behind it.
    The loop then takes one position after the other; while the guesses come true, no
    further pass is needed. What is guessed can thus change how fast an answer comes and
    never what it says.

    Attributes:
        tokens: The known tokens: the prompt, then the answer so far.
        reading: What the last forward pass says; its rows belong to the last known token that
            it read and to each guess behind it.
        readings: Number of forward passes so far.
        guessed: Number of guesses in the last of them.
        counts: What was read.
    """

    def __init__(self, lm: LanguageModel, prompt: Sequence[int], processors: Sequence[LogitsProcessor] = ()) -> None:
        """Begin behind a prompt, which the first pass reads."""
        self._context = lm.open()
        self._processors = tuple(processors)
        self.tokens = list(prompt)
        self._read: list[int] = []
        self._base = 0
        self.reading: Reading | None = None
        self.readings = 0
        self.guessed = 0
        self.counts = Counts()

    @property
    def row(self) -> int:
        """Row of `reading` that belongs to the next token, counted from 0."""
        return len(self.tokens) - self._base - 1

    @property
    def is_read(self) -> bool:
        """Whether `reading` has a row for the next token."""
        return self.reading is not None and self.row < len(self.reading.logits)

    @property
    def guesses(self) -> list[int]:
        """The guesses that stand behind the known tokens in what was read."""
        return self._read[len(self.tokens) :]

    def rows(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits float [n, vocabulary] and queries float [n, key_dim], from the next token's row on."""
        if self.reading is None:
            raise RuntimeError("nothing is read yet")
        return self.reading.logits[self.row :], self.reading.queries[self.row :]

    def read(self, guesses: Sequence[int] = ()) -> None:
        """Read the known tokens that have not been read, and guesses behind them."""
        self._context.crop(len(self._read))
        known = self.tokens[len(self._read) :]
        start = time.perf_counter()
        reading = self._context.read([*known, *guesses], last_only=not self._read and not guesses)
        self.counts.lm_seconds += time.perf_counter() - start
        self._base = len(self._read) + len(known) - 1
        self._read += [*known, *guesses]
        rows = len(guesses) + 1
        self.reading = self._process(Reading(reading.logits[-rows:], reading.queries[-rows:]), guesses)
        self.readings += 1
        self.guessed = len(guesses)
        self.counts.lm_calls += 1
        self.counts.drafted += len(guesses)

    def foresee(self) -> Sequence[int]:
        """Tokens that a processor knows to follow, if one does: a grammar's literals, for example.

        Such a processor has a method `foresee(tokens)`. What it says is a guess like any other.
        """
        for processor in self._processors:
            if isinstance(processor, Foreseeing) and (ahead := processor.foresee(self.tokens)):
                return ahead
        return ()

    def push(self, token: int) -> None:
        """Make a token known; if it was guessed, what is read behind it stays good."""
        ahead = self.guesses
        if ahead and ahead[0] == token:
            self.counts.accepted += 1
        elif ahead:
            del self._read[len(self.tokens) :]
            self._drop_rows()
        self.tokens.append(token)

    def _drop_rows(self) -> None:
        """Forget what was read behind wrong guesses."""
        if self.reading is not None:
            keep = self.row + 1
            self.reading = Reading(self.reading.logits[:keep], self.reading.queries[:keep])

    @torch.inference_mode()
    def _process(self, reading: Reading, guesses: Sequence[int]) -> Reading:
        """Apply the caller's processors at each position, with the prefix that holds if the guesses are right."""
        if not self._processors:
            return reading
        tokens = torch.tensor([[*self.tokens, *guesses]], device=reading.logits.device)
        rows = []
        for number, logits in enumerate(reading.logits.clone()):
            scores = logits[None]
            for processor in self._processors:
                scores = processor(tokens[:, : len(self.tokens) + number], scores)
            rows.append(scores[0])
        return Reading(torch.stack(rows).to(reading.logits.dtype), reading.queries)
