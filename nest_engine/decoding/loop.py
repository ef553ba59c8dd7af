"""The decode loop: select a span, verify it, mask it (sections 5 and 6 of METHOD).

It knows token ids, tensors and places, never text.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Literal

from nest_engine.config import NestConfig
from nest_engine.datastore.token_index import Place, TokenIndex
from nest_engine.decoding.drafters import Drafter, make_drafter
from nest_engine.decoding.mixture import Mixture, mix
from nest_engine.decoding.randomness import uniform
from nest_engine.decoding.reader import LogitsProcessor, Reader
from nest_engine.decoding.recorder import Recorder
from nest_engine.decoding.sampling import draw, warp
from nest_engine.lm.protocol import LanguageModel

Finish = Literal["end", "length"]

Refresh = Callable[[Sequence[int]], TokenIndex | None]
"""From the tokens of the answer so far to a new datastore, or None to keep the old one."""


@dataclass(frozen=True)
class Emission:
    """One token of the answer.

    Attributes:
        token: Its id.
        place: Where it was copied from; None where it is the LM's own.
        weight: Lambda at its position. The first token of a span and the rest were judged with theirs.
        is_neighbor: Whether some neighbor had it as value although it is the LM's own.
    """

    token: int
    place: Place | None
    weight: float
    is_neighbor: bool = False


class _End(Exception):  # noqa: N818 - it is a signal and not an error
    """The answer ends with the token before."""


class DecodeLoop:
    """Generates one answer, a token at a time.

    Attributes:
        reader: The tokens so far, and counts of what was read.
        steps: Rounds of the method so far: a token chosen by itself, or one n-gram of a span
            with the token that replaces its first rejected one.
        finish: Why the answer ended, once it has.
        mix_seconds: Time of searching the datastore and mixing, in seconds.
    """

    def __init__(
        self,
        lm: LanguageModel,
        prompt: Sequence[int],
        index: TokenIndex | None,
        config: NestConfig,
        processors: Sequence[LogitsProcessor] = (),
        drafter: Drafter | None = None,
        refresh: Refresh | None = None,
        recorder: Recorder | None = None,
    ) -> None:
        """Prepare to answer.

        Args:
            lm: The model.
            prompt: Token ids of the prompt, at least one.
            index: The datastore; None in the modes without one.
            config: The settings.
            processors: The caller's logits processors.
            drafter: Proposes spans; by default the mode's own.
            refresh: Called at the end of an n-gram once `refresh_every` further tokens are emitted.
            recorder: Is told of each round; by default nobody is.
        """
        self.reader = Reader(lm, prompt, processors)
        self.steps = 0
        self.finish: Finish | None = None
        self.mix_seconds = 0.0
        self._config = config
        self._end_ids = lm.end_ids
        self._prompt_length = len(prompt)
        self._index = index
        self._drafter = drafter or make_drafter(index, config)
        self._mixed_index = index if config.uses_keys else None
        self._refresh = refresh
        self._recorder = recorder or Recorder()
        self._refreshed_at = 0
        self._masked: set[Place] = set()  # masked places of passages that were searched before
        self._mixture: Mixture | None = None
        self._mixture_key = (0, 0, 0)  # reading, version of the masks, first row
        self._accepted_before = 0  # guesses that had come true when the last pass was made
        self._sentence_ended = False

    @property
    def _position(self) -> int:
        """Position of the next token in the answer."""
        return len(self.reader.tokens) - self._prompt_length

    def run(self) -> Generator[Emission]:
        """Yield the tokens of the answer, without the one that ends it."""
        try:
            while self._position < self._config.max_new_tokens:
                self._begin_round()
                self._refresh_index()
                yield from self._step()
            self.finish = "length"
        except _End:
            self.finish = "end"

    def _begin_round(self) -> None:
        self.steps += 1
        self._recorder.begin(self._position)

    def _refresh_index(self) -> None:
        """Search passages again during a long answer; what is masked stays so."""
        every = self._config.refresh_every
        if self._refresh is None or every is None or self._position - self._refreshed_at < every:
            return
        self._refreshed_at = self._position
        index = self._refresh(self.reader.tokens[self._prompt_length :])
        if index is None:
            return
        if self._index is not None:
            index.mask([*self._masked, *self._index.masked_places])
            self._masked.update(self._index.masked_places)
        self._index = index
        self._drafter = make_drafter(index, self._config)
        self._mixed_index = index if self._config.uses_keys else None
        self._mixture = None

    def _step(self) -> Iterator[Emission]:
        """Choose a token; emit it alone, or as the start of a span (Eq. 5 and 6)."""
        mixture, row = self._mix()
        token = self._choose(mixture, row)
        self._recorder.choose(token, mixture, row)
        start = None
        if self._drafter is not None:
            begins = self._position == 0 or self._sentence_ended
            start = self._drafter.start(token, mixture, row, self.reader.tokens, begins=begins)
        if start is None or not start.with_chosen or token in self._end_ids:
            yield self._emit_own(token, mixture, row)
        if start is not None and self._index is not None:
            weight = float(mixture.weights[row]) if start.with_chosen else None
            yield from self._follow(self._index, start.place, weight)

    def _follow(self, index: TokenIndex, place: Place, weight: float | None) -> Iterator[Emission]:
        """Copy from a place on, n-gram by n-gram, until a rejection or the passage's end (algorithm 1).

        Args:
            index: The datastore.
            place: Where the span starts.
            weight: Lambda of the span's first token if it was chosen already; None to verify it.
        """
        tokens = index.token_ids[place.passage]
        start = place.position
        while start < len(tokens) and self._position < self._config.max_new_tokens:
            draft = self._draft(index, place.passage, start)
            if not draft:
                return
            if weight is None:  # else the round that chose the first token goes on
                self._begin_round()
            accepted = 0
            try:
                for emission in self._verify_draft(index, draft, weight):
                    yield emission
                    if emission.place is None:
                        return
                    accepted += 1
            finally:
                if self._config.mode != "lossless":
                    index.mask(draft[:accepted])
            start, weight = start + len(draft), None

    def _draft(self, index: TokenIndex, passage: int, start: int) -> list[Place]:
        """Places of the next n tokens, cut at the passage's end and before what is masked.

        What is masked is never retrieved again, as part of a draft neither: a span that runs
        into text that was copied before would begin to loop.
        """
        end = min(start + self._config.span_tokens, len(index.token_ids[passage]))
        places = (Place(passage, position) for position in range(start, end))
        return list(takewhile(lambda place: not index.is_masked(place), places))

    def _verify_draft(
        self, index: TokenIndex, draft: Sequence[Place], first_weight: float | None
    ) -> Iterator[Emission]:
        """Emit the tokens of a draft that are accepted, then the token that replaces the first rejected one (Eq. 7).

        Args:
            index: The datastore that the draft comes from.
            draft: Places of the draft's tokens, in one passage.
            first_weight: Lambda of a first token that is already accepted; None to verify it too.
        """
        tokens = [int(index.token_ids[place.passage][place.position]) for place in draft]
        self._recorder.draft(draft[0], tokens)
        for number, (token, place) in enumerate(zip(tokens, draft, strict=True)):
            if self._position >= self._config.max_new_tokens:
                return
            if number == 0 and first_weight is not None:
                weight = first_weight
            else:
                mixture, row = self._mix(tokens[number:])
                if not self._accept(token, mixture, row):
                    self._recorder.reject()
                    yield self._emit_own(self._choose(mixture, row), mixture, row)
                    return
                weight = float(mixture.weights[row])
            self._end_before_cut(index, place)
            self.reader.push(token)
            # The LM alone decides where a lossless answer ends.
            self._sentence_ended = self._config.mode != "lossless" and index.ends_sentence(place)
            yield self._record(Emission(token, place, weight))

    def _accept(self, token: int, mixture: Mixture, row: int) -> bool:
        """Whether a draft token is kept (Eq. 7); in lossless mode, whether the LM alone says the same."""
        if self._config.mode == "lossless":
            return token == self._choose(mixture, row)
        p = mixture.probability(token, row)
        chance = min(1.0, p / (self._config.gamma * mixture.best_probabilities[row]))
        if self._config.sampling:
            return uniform(self._config.seed, self._position, "accept") <= chance
        return chance > 0.5

    def _choose(self, mixture: Mixture, row: int) -> int:
        """The likeliest token, or a drawn one. In lossless mode the mixture is the LM alone."""
        if not self._config.sampling:
            return mixture.best_tokens[row]
        u = uniform(self._config.seed, self._position, "choose")
        return draw(warp(mixture.distribution(row), self._config), u)

    def _emit_own(self, token: int, mixture: Mixture, row: int) -> Emission:
        """Emit a token that belongs to the LM.

        Raises:
            _End: If it is an end token.
        """
        if token in self._end_ids:
            raise _End
        hit = len(mixture.neighbors_with(token, row)) > 0
        self.reader.push(token)
        self._sentence_ended = False
        return self._record(Emission(token, None, float(mixture.weights[row]), hit))

    def _record(self, emission: Emission) -> Emission:
        self._recorder.emit(emission)
        return emission

    def _mix(self, draft: Sequence[int] = ()) -> tuple[Mixture, int]:
        """p_M for the next token: the mixture, and the row in it.

        Args:
            draft: The tokens that may follow: some of them are read in the same forward pass.

        Raises:
            _End: If a copied sentence has just ended and the LM would end the answer here.
        """
        reader = self.reader
        if not reader.is_read:
            reader.read(self._guess(draft))
            self._accepted_before = reader.counts.accepted
        version = self._mixed_index.version if self._mixed_index is not None else 0
        reading, masks, first = self._mixture_key
        if self._mixture is None or (reading, masks) != (reader.readings, version) or reader.row < first:
            start = time.perf_counter()
            logits, queries = reader.rows()
            self._mixture = mix(logits, queries, self._mixed_index, self._config)
            self.mix_seconds += time.perf_counter() - start
            self._mixture_key = (reader.readings, version, reader.row)
        row = reader.row - self._mixture_key[2]
        self._end_sentence(self._mixture, row)
        return self._mixture, row

    def _guess(self, draft: Sequence[int]) -> Sequence[int]:
        """What to read ahead: a matter of speed only."""
        # What lies behind the last token of the answer need not be known.
        room = max(0, self._config.max_new_tokens - self._position - 1)
        reader, ahead = self.reader, draft[:0]
        if self._drafter is not None and reader.readings:
            self._drafter.learn(reader.guessed, reader.counts.accepted - self._accepted_before)
            ahead = self._drafter.guess(reader.tokens, draft)
        return (ahead or reader.foresee())[:room]

    def _end_before_cut(self, index: TokenIndex, place: Place) -> None:
        """End behind a copied sentence where copying on from a place would be cut by the limit in mid-sentence."""
        if not self._config.whole_sentences or not self._sentence_ended:
            return
        if index.rest_of_sentence(place) > self._config.max_new_tokens - self._position:
            raise _End

    def _end_sentence(self, mixture: Mixture, row: int) -> None:
        """Passages hold no end token: end where a copied sentence did, if the LM would end there too."""
        if not self._sentence_ended:
            return
        if mixture.lm_tokens[row] in self._end_ids:
            raise _End
        least = self._config.end_probability
        if least is not None and mixture.lm_probability(self._end_ids, row) >= least:
            raise _End
