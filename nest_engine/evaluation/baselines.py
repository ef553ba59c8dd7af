"""What a user would run instead: transformers' own greedy generation, plain and with prompt lookup; llama.cpp."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import StoppingCriteria, StoppingCriteriaList

from nest_engine.engine import NestEngine
from nest_engine.errors import ConfigError


@dataclass(frozen=True)
class BaselineRun:
    """One generation of a baseline.

    Attributes:
        token_ids: The answer's tokens, without the one that ends it.
        seconds: Time of the whole generation, in seconds.
        decode_seconds: Time after the first token.
    """

    token_ids: list[int]
    seconds: float
    decode_seconds: float


class _FirstToken(StoppingCriteria):
    """Notes when the first token is there; stops nothing."""

    def __init__(self) -> None:
        self.at: float | None = None

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        if self.at is None:
            self.at = time.perf_counter()
        return torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)


def generate_greedily(
    engine: NestEngine, prompt: Sequence[int], max_new_tokens: int, *, prompt_lookup: int | None = None
) -> BaselineRun:
    """Generate with transformers.

    Args:
        engine: Its model is used.
        prompt: Token ids.
        max_new_tokens: The limit, in tokens.
        prompt_lookup: `prompt_lookup_num_tokens`: drafts of this length are copied from the prompt.
    """
    lm = engine.model.lm
    tokens = torch.tensor([list(prompt)], device=lm.device)
    first = _FirstToken()
    extra = {"prompt_lookup_num_tokens": prompt_lookup} if prompt_lookup else {}
    start = time.perf_counter()
    output = lm.generate(
        tokens, max_new_tokens=max_new_tokens, do_sample=False, stopping_criteria=StoppingCriteriaList([first]), **extra
    )
    end = time.perf_counter()
    ids = output[0, len(prompt) :].tolist()
    if ids and ids[-1] in lm.end_ids:
        ids.pop()
    return BaselineRun(ids, end - start, end - (first.at or end))


class LlamaCpp:
    """A GGUF file in llama.cpp, through llama-cpp-python."""

    def __init__(self, gguf: Path, threads: int, end_ids: frozenset[int]) -> None:
        """Load the file.

        Args:
            gguf: The model.
            threads: Threads of a forward pass.
            end_ids: Tokens that end an answer.

        Raises:
            ConfigError: If llama-cpp-python is not installed, or there is no such file.
        """
        try:
            from llama_cpp import Llama
        except ImportError as error:
            raise ConfigError("llama.cpp is measured where llama-cpp-python is installed (it compiles)") from error
        if not gguf.is_file():
            raise ConfigError(f"no file {gguf}: --gguf names the model that llama.cpp runs")
        self._llama = Llama(str(gguf), n_ctx=2048, n_threads=threads, n_threads_batch=threads, verbose=False)
        self._end_ids = end_ids

    def generate_greedily(self, prompt: Sequence[int], max_new_tokens: int) -> BaselineRun:
        """Generate with llama.cpp: see `generate_greedily`."""
        ids: list[int] = []
        start = first = time.perf_counter()
        self._llama.reset()
        for token in self._llama.generate(list(prompt), temp=0.0, top_k=1, repeat_penalty=1.0):
            if not ids:
                first = time.perf_counter()
            if token in self._end_ids:
                break
            ids.append(token)
            if len(ids) == max_new_tokens:
                break
        end = time.perf_counter()
        return BaselineRun(ids, end - start, end - first)
