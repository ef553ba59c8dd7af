"""A logits processor that lets a model write only what a grammar allows."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from nest_engine.config import NestConfig
from nest_engine.constrained.grammar import Grammar
from nest_engine.errors import ConfigError
from nest_engine.lm.loading import LoadedModel

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

_CLOSERS = '"}],:0'
"""What ends a JSON value soonest, in the order in which it is tried."""

_LONGEST_CLOSING = 400
"""Tokens after which the search for a way to the end of a grammar is given up."""

_vocabularies: dict[tuple[str, int, tuple[int, ...]], _Vocabulary] = {}
_vocabularies_lock = threading.Lock()


def constrain(config: NestConfig) -> NestConfig:
    """The settings for an answer that follows a grammar: the plain LM's, with passages only to read.

    Stop strings are left out, as they could end a JSON value in its middle, and so are citations.
    """
    mode = "ra" if config.reads_passages else "lm"
    return config.replace(mode=mode, passages_in_prompt=None, stop=(), min_match_words=0)


class GrammarProcessor:
    """Masks the tokens that a grammar does not allow behind the tokens so far.

    A function of the tokens so far, as the engine's logits processors must be. When the token
    limit comes near, it leads to the end of the grammar by a short way, so that the answer is
    complete if the limit allows for that at all.
    """

    def __init__(self, grammar: Grammar, model: LoadedModel, max_new_tokens: int) -> None:
        """Constrain one answer.

        Args:
            grammar: What the answer may be.
            model: The model that writes it.
            max_new_tokens: Its token limit.

        Raises:
            ConfigError: If llguidance is not installed, or cannot work with the grammar.
        """
        self._grammar = grammar
        self._model = model
        self._limit = max_new_tokens
        self._start: int | None = None  # length of the prompt, in tokens
        self._vocabulary: _Vocabulary | None = None
        self._matcher: LLMatcher | None = None
        self._consumed: list[int] = []
        self._watch_from = 0

    def __call__(self, tokens: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        """Mask logits.

        Args:
            tokens: int64 [1, length], prompt and answer so far. The first call is for the prompt alone.
            logits: Float [1, vocabulary].

        Returns:
            The logits, minus infinity where a token is not allowed.
        """
        ids = tokens[0].tolist()
        if self._start is None:
            self._start = len(ids)
            self._open(int(logits.shape[-1]))
        answer = ids[self._start :]
        if not self._follow(answer):
            # A guess the grammar forbids stands in the prefix: it will be rejected, so this row is never used.
            return logits
        forced = self._closing_token(self._limit - len(answer))
        allowed = torch.from_numpy(self._mask()).to(logits.device)
        if forced is not None:
            allowed = torch.zeros_like(allowed)
            allowed[forced] = True
        return logits.masked_fill(~allowed, float("-inf"))

    def foresee(self, tokens: Sequence[int]) -> Sequence[int]:
        """The tokens of what the grammar leaves no choice about, so that one forward pass reads them all.

        Args:
            tokens: Prompt and answer so far.
        """
        if self._start is None or not self._follow(list(tokens[self._start :])):
            return ()
        return [int(token) for token in _opened(self._matcher).compute_ff_tokens()]

    def _open(self, width: int) -> None:
        self._vocabulary = _vocabulary(self._model, width)
        self._matcher = self._vocabulary.match(self._grammar)
        # Nearer to the limit than this, the way to the end is looked for.
        self._watch_from = 2 * len(self._way_out() or ()) + 48

    def _follow(self, answer: list[int]) -> bool:
        """Bring the matcher behind `answer`; False if the grammar does not allow it."""
        matcher = _opened(self._matcher)
        common = 0
        while common < min(len(answer), len(self._consumed)) and answer[common] == self._consumed[common]:
            common += 1
        if common < len(self._consumed):
            matcher.rollback(len(self._consumed) - common)
        rest = answer[common:]
        done = matcher.try_consume_tokens(rest) if rest else 0
        self._consumed = answer[: common + done]
        return done == len(rest)

    def _mask(self) -> NDArray[np.bool_]:
        mask: NDArray[np.bool_] = _opened(self._vocabulary).allowed(_opened(self._matcher))
        return mask

    def _closing_token(self, left: int) -> int | None:
        """The token to take now so that the grammar is complete in `left` tokens; None while there is time."""
        if left > self._watch_from:
            return None
        way = self._way_out()
        # One token more than the way: the next token of the LM's choice could lengthen it.
        if not way or len(way) + 8 < left:
            return None
        return way[0]

    def _way_out(self) -> list[int] | None:
        """Tokens that complete the grammar soon; None if there is no such way."""
        vocabulary, matcher = _opened(self._vocabulary), _opened(self._matcher).deep_copy()
        way: list[int] = []
        while not matcher.is_accepting():
            token = vocabulary.shortest(vocabulary.allowed(matcher))
            if token is None or len(way) == _LONGEST_CLOSING or not matcher.consume_token(token):
                return None
            way.append(token)
        return way


class _Vocabulary:
    """llguidance's view of a model's tokens."""

    def __init__(self, tokenizer: LLTokenizer, width: int, ends: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._width = width
        self._ends = list(ends)
        texts = [tokenizer.decode_str([i]) for i in range(tokenizer.vocab_size)]
        self._closers = [i for c in _CLOSERS for i, text in enumerate(texts) if text == c]
        self._sizes = np.array([len(t) if t.strip() and "\ufffd" not in t else 0 for t in texts])

    def match(self, grammar: Grammar) -> LLMatcher:
        from llguidance import LLMatcher

        source = LLMatcher.grammar_from_lark(grammar.lark)
        matcher = LLMatcher(self._tokenizer, source)
        if matcher.is_error():
            raise ConfigError(f"this schema cannot be followed while decoding: {matcher.get_error()}")
        return matcher

    def allowed(self, matcher: LLMatcher) -> NDArray[np.bool_]:
        """Bool [vocabulary]: the tokens that may come next; an end token where the grammar is complete."""
        import llguidance.numpy as bits

        words = bits.allocate_token_bitmask(1, self._tokenizer.vocab_size)
        bits.fill_next_token_bitmask(matcher, words)
        found = np.unpackbits(words.view(np.uint8), bitorder="little")[: self._width].astype(bool)
        mask = np.zeros(self._width, dtype=bool)
        mask[: len(found)] = found
        mask[self._ends] = matcher.is_accepting()
        return mask

    def shortest(self, allowed: NDArray[np.bool_]) -> int | None:
        """The allowed token that leads to the end soonest, by a rule of thumb; None if there is none."""
        for token in self._closers:
            if allowed[token]:
                return token
        # Nothing closes here: a literal goes on, and the longest token is most of it.
        sizes = np.where(allowed[: len(self._sizes)], self._sizes, -1)
        best = int(sizes.argmax())
        return best if sizes[best] >= 0 else None


def _vocabulary(model: LoadedModel, width: int) -> _Vocabulary:
    """The vocabulary of a model, made once (about a second)."""
    ends = tuple(sorted(model.lm.end_ids))
    key = (model.tokenizer.fingerprint, width, ends)
    with _vocabularies_lock:
        if key not in _vocabularies:
            _vocabularies[key] = _make_vocabulary(model, width, ends)
        return _vocabularies[key]


def _make_vocabulary(model: LoadedModel, width: int, ends: tuple[int, ...]) -> _Vocabulary:
    try:
        from llguidance import LLTokenizer
    except ImportError as error:
        raise ConfigError("tool calls and structured output need llguidance: pip install 'nest-rag[tools]'") from error
    if not ends:
        raise ConfigError(
            "the model has no end token, so an answer could not end: set eos_token_id in its configuration"
        )
    try:
        tokenizer = LLTokenizer(model.tokenizer.serialize(), n_vocab=width, eos_token=list(ends))
    except ValueError as error:
        raise ConfigError(f"llguidance cannot read the tokenizer of {model.name}: {error}") from error
    return _Vocabulary(tokenizer, width, ends)


def _opened(value: Any) -> Any:
    if value is None:
        raise RuntimeError("the processor was not called yet")
    return value
