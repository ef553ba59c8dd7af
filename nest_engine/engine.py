"""`NestEngine`: retrieve passages, open their token datastore, decode, cite."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import torch

from nest_engine.citations.builder import CitationBuilder
from nest_engine.citations.matching import Matcher
from nest_engine.config import PRESETS, NestConfig
from nest_engine.datastore.encoded import EncodedPassage
from nest_engine.datastore.opener import DatastoreOpener, OpenPassages, list_passages
from nest_engine.datastore.store import KeyStore, open_store
from nest_engine.datastore.token_index import TokenIndex
from nest_engine.decoding.loop import DecodeLoop, Refresh
from nest_engine.decoding.reader import Counts, LogitsProcessor
from nest_engine.decoding.recorder import RoundRecorder
from nest_engine.errors import ConfigError, PassageError, SourceError
from nest_engine.generation import FinishReason, Generation, GenerationPiece, Seconds, Stats
from nest_engine.lm.detokenizer import Detokenizer
from nest_engine.lm.loading import LoadedModel, load_model
from nest_engine.lm.prompts import Message, Prompt, PromptBuilder, Task, find_query, to_messages
from nest_engine.metrics import CallMetrics, MetricsHook, Reporter
from nest_engine.passages import Passage, ScoredPassage
from nest_engine.progress import progress_bar
from nest_engine.retrieval.limits import check_sizes
from nest_engine.retrieval.source import PassageSource
from nest_engine.trace import TraceStep, make_trace
from nest_engine.transcript import Transcript

logger = logging.getLogger(__name__)

_REFRESH_TOKENS = 64
"""Length of the latest text that passages are searched for again, in tokens."""

_SIZE_FACTOR = 4
"""How many times larger or smaller than the calibrated one a datastore may be without a warning."""


class NestEngine:
    """Answers prompts with one model, from passages, with citations.

    An engine can be used from several threads: each call has its own cache, masks and
    citations, and only forward passes take turns.

    Attributes:
        config: The settings that calls start from.
        model: The language model and its tokenizer.
    """

    def __init__(
        self,
        model: LoadedModel,
        config: NestConfig | None = None,
        *,
        store: KeyStore | str | Path | None = None,
        progress: bool = False,
        metrics: MetricsHook | None = None,
    ) -> None:
        """Use a loaded model.

        Args:
            model: From `load_model` or `wrap_model`, with the configuration's `key_layer`.
            config: Settings; by default the preset named like the model, else the paper's.
            store: Where keys are kept: a store, or the folder of one on disk; by default in memory.
            progress: Show progress bars for long work, on standard error.
            metrics: Called after each call with its counts and times: see `nest_engine.metrics`.
        """
        self.model = model
        self.config = config if config is not None else _default_config(model.name)
        self._opener = DatastoreOpener(model.lm, model.tokenizer, open_store(store))
        self._progress = progress
        self._reporter = Reporter(metrics)
        self._warned_of_size = False
        self._prompts = PromptBuilder(model.tokenizer, model.lm.context_window)

    @property
    def store(self) -> KeyStore:
        """Where passages' keys are kept; may be set to another store between calls."""
        return self._opener.store

    @store.setter
    def store(self, store: KeyStore) -> None:
        self._opener.store = store

    @property
    def metrics(self) -> MetricsHook | None:
        """What is called after each call: see `nest_engine.metrics`. May be set between calls."""
        return self._reporter.hook

    @metrics.setter
    def metrics(self, hook: MetricsHook | None) -> None:
        self._reporter = Reporter(hook)

    @classmethod
    def from_pretrained(
        cls,
        name: str | Path,
        *,
        config: NestConfig | None = None,
        device: str | torch.device | None = None,
        device_map: Any = None,
        dtype: str | torch.dtype | None = None,
        store: KeyStore | str | Path | None = None,
        model_arguments: Mapping[str, Any] | None = None,
        pack_weights: bool | None = None,
        progress: bool = False,
    ) -> Self:
        """Load a model by name and make an engine of it.

        Args:
            name: A demo model (`"smollm2-135m-instruct"`), a folder, a `.gguf` file, or a hub id.
            config: Settings; by default the preset named like the model, else the paper's.
            device: Where to put the model; by default the CPU.
            device_map: Spread the model over devices, instead of `device`.
            dtype: Number format of the weights; by default float32 on a CPU, else the model's own.
            store: Where keys are kept: a store, or the folder of one on disk; by default in memory.
            model_arguments: More arguments of transformers' `from_pretrained`.
            pack_weights: Keep a second copy of the weights in the order that the CPU reads fastest; by
                default where that pays and the copy is no larger than 2 GiB.
            progress: Show progress bars for long work, on standard error.

        Raises:
            ModelNotFoundError: If there is no such model.
            UnsupportedModelError: If NEST cannot run on it.
            ConfigError: If the arguments contradict each other.
        """
        config = config if config is not None else _default_config(str(name))
        model = load_model(
            name,
            key_layer=config.key_layer,
            device=device,
            device_map=device_map,
            dtype=dtype,
            model_arguments=model_arguments,
            pack_weights=pack_weights,
            progress=progress,
        )
        return cls(model, config, store=store, progress=progress)

    def generate(
        self,
        prompt: str | Sequence[Message],
        *,
        source: PassageSource | None = None,
        passages: Sequence[Passage] | None = None,
        query: str | None = None,
        task: Task | None = None,
        logits_processors: Sequence[LogitsProcessor] = (),
        template_arguments: Mapping[str, Any] | None = None,
        config: NestConfig | None = None,
        trace: bool = False,
        **settings: Any,
    ) -> Generation:
        """Answer a prompt: see `stream` for the arguments and errors."""
        generation = None
        for piece in self.stream(
            prompt,
            source=source,
            passages=passages,
            query=query,
            task=task,
            logits_processors=logits_processors,
            template_arguments=template_arguments,
            config=config,
            trace=trace,
            **settings,
        ):
            generation = piece.generation
        if generation is None:
            raise RuntimeError("a stream ended without its last piece")
        return generation

    def stream(
        self,
        prompt: str | Sequence[Message],
        *,
        source: PassageSource | None = None,
        passages: Sequence[Passage] | None = None,
        query: str | None = None,
        task: Task | None = None,
        logits_processors: Sequence[LogitsProcessor] = (),
        template_arguments: Mapping[str, Any] | None = None,
        config: NestConfig | None = None,
        trace: bool = False,
        **settings: Any,
    ) -> Iterator[GenerationPiece]:
        """Answer a prompt piece by piece. Closing the iterator ends the work.

        Args:
            prompt: A question, or chat messages.
            source: Where to search passages.
            passages: The passages to answer from, instead of a source; all of them are used.
            query: What to search for; by default the last user message.
            task: How the prompt is worded; by default `"question"` for a text and `"chat"` for messages.
            logits_processors: As in transformers; each is a function of the tokens so far.
            template_arguments: More variables for the chat template.
            config: Settings instead of the engine's.
            trace: Write down every step: `Generation.trace` of the last piece has them. The answer is the same.
            **settings: Single settings that differ, such as `mode="lossless"` or `stop=["END"]`.

        Returns:
            The pieces; the last one has the whole `Generation`.

        Raises:
            ConfigError: If a setting is unknown or out of range, or both source and passages are given.
            PromptError: If the prompt is empty or malformed.
            ContextOverflowError: If prompt and token limit do not fit the model's context window.
            SourceError: If the source fails.
        """
        chosen = (config or self.config).replace(**settings)
        if chosen.key_layer != self.config.key_layer:
            raise ConfigError("key_layer is fixed when the engine is made: make another engine for another layer")
        if source is not None and passages is not None:
            raise ConfigError("give source or passages, not both")
        messages = to_messages(prompt)
        call = _Call(
            prompt=messages,
            task=task or ("question" if isinstance(prompt, str) else "chat"),
            query=query if query is not None else find_query(messages),
            config=chosen,
            processors=tuple(logits_processors),
            template_arguments=dict(template_arguments or {}),
            trace=trace,
        )
        # The checks above happen now; what follows, when the first piece is asked for.
        return self._answer(call, source, passages)

    def _answer(
        self, call: _Call, source: PassageSource | None, passages: Sequence[Passage] | None
    ) -> Iterator[GenerationPiece]:
        work = _Work(_Clock(), OpenPassages(self._opener, call.config))
        outcome = "closed"
        try:
            yield from self._work(work, call, source, passages)
            outcome = str(work.finish)
        except Exception as error:
            outcome = type(error).__name__
            raise
        finally:
            self._reporter.report(work.measure(call.config.mode, outcome))

    def _work(
        self, work: _Work, call: _Call, source: PassageSource | None, passages: Sequence[Passage] | None
    ) -> Iterator[GenerationPiece]:
        clock, opened = work.clock, work.opened
        with clock.measure("retrieve"):
            found = self._retrieve(call, source, passages)
        work.found = len(found)
        prompt = self._build_prompt(call, found)
        work.prompt = len(prompt.ids)
        with clock.measure("encode"):
            index = self._open(opened, call, found, source)
            self._compare_size(index, call.config)
        refresh = self._make_refresh(call.config, opened, source)
        recorder = RoundRecorder() if call.trace else None
        loop = DecodeLoop(
            self.model.lm, prompt.ids, index, call.config, call.processors, refresh=refresh, recorder=recorder
        )
        transcript = self._make_transcript(opened, call.config)
        work.loop, work.transcript = loop, transcript
        yield from self._decode(loop, transcript, clock)
        last = transcript.finish()
        reason: FinishReason = "stop" if transcript.stopped else loop.finish or "length"
        work.finish = reason
        stats = _stats(call.config, loop, transcript, clock, len(prompt.ids), len(found))
        steps = self._make_trace(recorder, transcript, opened) if recorder is not None else ()
        generation = Generation(transcript.text, tuple(transcript.citations), stats, reason, tuple(found), steps)
        yield GenerationPiece(last.text, last.citations, generation)

    def _open(
        self, opened: OpenPassages, call: _Call, found: Sequence[ScoredPassage], source: PassageSource | None
    ) -> TokenIndex | None:
        """The datastore of a call: over the passages found, or over all of the source's."""
        config = call.config
        texts = [scored.passage for scored in found]
        if config.datastore == "global" and config.uses_keys and source is not None:
            count = len(list_passages(source))
            with self._encoding_bar(count) as report:
                return opened.add_collection(source, report)
        with self._encoding_bar(len(texts) if config.uses_keys else 0) as report:
            return opened.add(texts, report, call.query)

    def _compare_size(self, index: TokenIndex | None, config: NestConfig) -> None:
        """Warn, once, where a datastore is of another size than the settings were made for: lambda depends on it."""
        expected = config.calibrated_entries
        if index is None or not config.uses_keys or expected is None or self._warned_of_size or not len(index):
            return
        if not 1 / _SIZE_FACTOR <= len(index) / expected <= _SIZE_FACTOR:
            self._warned_of_size = True
            logger.warning(
                "the token datastore has %d entries, and these settings were calibrated on about %d: alpha and tau may "
                "not fit; calibrate again with passages and top_passages like these",
                len(index),
                expected,
            )

    def _make_refresh(self, config: NestConfig, opened: OpenPassages, source: PassageSource | None) -> Refresh | None:
        """What the loop calls to search passages again with the latest text."""
        if source is None or config.refresh_every is None or config.datastore == "global":
            return None

        def refresh(tokens: Sequence[int]) -> TokenIndex | None:
            latest = self.model.tokenizer.decode(tokens[-_REFRESH_TOKENS:]).strip()
            if not latest:
                return None
            found = _distinct(_relevant(search(source, latest, config.top_passages), config.min_relevance, source))
            return opened.add([scored.passage for scored in found], query=latest)

        return refresh

    def _make_transcript(self, opened: OpenPassages, config: NestConfig) -> Transcript:
        matcher = None
        if config.traces_own_words and opened.passages:
            matcher = Matcher([passage.text for passage in opened.passages], config.min_match_words)
        builder = CitationBuilder(opened.passages, opened.token_ends, config.min_citation_words, matcher)
        # A copied sentence brings the space in front of it along; an answer does not begin with one.
        detokenizer = Detokenizer(self.model.tokenizer, skip_leading_space=config.starts_at_sentences)
        return Transcript(detokenizer, builder, config.stop)

    def _make_trace(
        self, recorder: RoundRecorder, transcript: Transcript, opened: OpenPassages
    ) -> tuple[TraceStep, ...]:
        decode = self.model.tokenizer.decode
        ends = transcript.token_ends
        return make_trace(recorder.rounds, transcript.text, ends, opened.passages, opened.token_ends, decode)

    def _decode(self, loop: DecodeLoop, transcript: Transcript, clock: _Clock) -> Iterator[GenerationPiece]:
        emissions = loop.run()
        stage = "prefill"
        while not transcript.stopped:
            with clock.measure(stage):
                emission = next(emissions, None)
                piece = transcript.add(emission) if emission is not None else None
            if piece is None:
                break
            stage = "decode"
            if piece.text or piece.citations:
                yield piece
        emissions.close()

    def build_prompt(
        self, prompt: str | Sequence[Message], *, passages: Sequence[Passage] = (), task: Task | None = None
    ) -> list[int]:
        """The token ids that the model would read for a prompt.

        Args:
            prompt: A question, or chat messages.
            passages: What to put into it as background.
            task: How it is worded: see `stream`.
        """
        task = task or ("question" if isinstance(prompt, str) else "chat")
        return self._prompts.build(prompt, task=task, passages=passages).ids

    def encode(self, passages: Sequence[Passage], config: NestConfig | None = None) -> list[EncodedPassage]:
        """Look up or compute the keys of passages, and keep them in the engine's store.

        Args:
            passages: What to encode.
            config: Settings instead of the engine's (`key_format` matters).

        Returns:
            The encoded passages, in the same order.
        """
        with self._encoding_bar(len(passages)) as report:
            return self._opener.encode(passages, config or self.config, report)

    def open_index(self, passages: Sequence[Passage], config: NestConfig | None = None) -> TokenIndex | None:
        """Open the token datastore of some passages, as a call with them would.

        Args:
            passages: The passages to search in.
            config: Settings instead of the engine's.

        Returns:
            The datastore, or None in a mode that has none or where there are no passages.
        """
        return OpenPassages(self._opener, config or self.config).add(passages)

    def _encoding_bar(self, count: int) -> AbstractContextManager[Callable[[int], None] | None]:
        return progress_bar("encoding passages", count, enabled=self._progress and count > 1)

    def _retrieve(
        self, call: _Call, source: PassageSource | None, passages: Sequence[Passage] | None
    ) -> list[ScoredPassage]:
        config = call.config
        if not config.uses_passages:
            return []
        if passages is not None:
            found = [ScoredPassage(_check_passage(p)) for p in passages]
        elif source is not None and (config.datastore == "passages" or config.reads_passages):
            found = search(source, call.query, config.passages_wanted)
            found = _relevant(found, config.min_relevance, source)
        else:
            found = []
        if not found and not (source is not None and config.datastore == "global"):
            logger.warning("no passages for this prompt: the answer is the plain model's, without citations")
        return _distinct(found)

    def _build_prompt(self, call: _Call, found: Sequence[ScoredPassage]) -> Prompt:
        background = found[: call.config.prompt_passages] if call.config.reads_passages else []
        return self._prompts.build(
            call.prompt,
            task=call.task,
            passages=[scored.passage for scored in background],
            query=call.query,
            new_tokens=call.config.max_new_tokens,
            template_arguments=call.template_arguments,
        )


@dataclass(frozen=True)
class _Call:
    """One call of the engine, checked."""

    prompt: list[Message]
    task: Task
    query: str
    config: NestConfig
    processors: tuple[LogitsProcessor, ...]
    template_arguments: dict[str, Any]
    trace: bool


@dataclass
class _Clock:
    """Adds up the seconds of the stages."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def measure(self, stage: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[stage] = self.seconds.get(stage, 0.0) + time.perf_counter() - start

    def read(self, loop: DecodeLoop | None) -> Seconds:
        total = sum(self.seconds.values())
        lm, mix = (loop.reader.counts.lm_seconds, loop.mix_seconds) if loop is not None else (0.0, 0.0)
        return Seconds(**self.seconds, total=total, lm=lm, mix=mix)


@dataclass
class _Work:
    """How far a call has come: what its metrics are read from, also where it fails."""

    clock: _Clock
    opened: OpenPassages
    found: int = 0
    prompt: int = 0
    loop: DecodeLoop | None = None
    transcript: Transcript | None = None
    finish: FinishReason | None = None

    def measure(self, mode: str, outcome: str) -> CallMetrics:
        counts = self.loop.reader.counts if self.loop is not None else Counts()
        return CallMetrics(
            mode=mode,
            outcome=outcome,
            seconds=self.clock.read(self.loop),
            tokens=self.transcript.tokens if self.transcript is not None else 0,
            attributed_tokens=self.transcript.attributed if self.transcript is not None else 0,
            prompt_tokens=self.prompt,
            lm_calls=counts.lm_calls,
            drafted=counts.drafted,
            accepted=counts.accepted,
            passages=self.found,
            store_hits=self.opened.counts.hits,
            store_misses=self.opened.counts.misses,
        )


def search(source: PassageSource, query: str, k: int) -> list[ScoredPassage]:
    """Search a source and check what it returns.

    Raises:
        SourceError: If the source raises, or returns something else than scored passages, or a passage
            that is too large.
    """
    try:
        found = list(source.search(query, k))
    except SourceError:
        raise
    except Exception as error:
        raise SourceError(f"{type(source).__name__}.search failed: {error}") from error
    for item in found:
        if not isinstance(item, ScoredPassage):
            raise SourceError(
                f"{type(source).__name__}.search returned a {type(item).__name__}; it must return ScoredPassage items"
            )
    check_sizes(found[:k], source)
    return found[:k]


def _relevant(
    found: Sequence[ScoredPassage], min_relevance: float | None, source: PassageSource
) -> list[ScoredPassage]:
    threshold = min_relevance if min_relevance is not None else getattr(source, "min_relevance", None)
    if threshold is None:
        return list(found)
    return [s for s in found if s.relevance is None or s.relevance >= threshold]


def _distinct(found: Sequence[ScoredPassage]) -> list[ScoredPassage]:
    """Each passage once, even where a source returns it twice; equal texts of two documents are two."""
    first: dict[tuple[str, str, str], ScoredPassage] = {}
    for scored in found:
        first.setdefault((scored.passage.document_id, scored.passage.id, scored.passage.text), scored)
    return list(first.values())


def _check_passage(passage: object) -> Passage:
    if not isinstance(passage, Passage):
        raise PassageError(f"passages must be Passage objects, not {type(passage).__name__}: use Passage(text=...)")
    return passage


def _default_config(name: str) -> NestConfig:
    return NestConfig.preset(name) if name in PRESETS else NestConfig()


def _stats(
    config: NestConfig, loop: DecodeLoop, transcript: Transcript, clock: _Clock, prompt_tokens: int, passages: int
) -> Stats:
    counts = loop.reader.counts
    return Stats(
        mode=config.mode,
        tokens=transcript.tokens,
        attributed_tokens=transcript.attributed,
        neighbor_hits=transcript.neighbor_hits,
        steps=loop.steps,
        lm_calls=counts.lm_calls,
        drafted=counts.drafted,
        accepted=counts.accepted,
        lambda_mean=transcript.weights / transcript.tokens if transcript.tokens else 1.0,
        prompt_tokens=prompt_tokens,
        passages=passages,
        seconds=clock.read(loop),
        document_runs=tuple(transcript.document_runs),
    )
