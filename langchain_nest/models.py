"""What `ChatNest` and `NestLLM` share: settings, the engine, where to search, and one call of it all."""

from __future__ import annotations

import dataclasses
import difflib
import logging
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from langchain_core.callbacks import Callbacks
from langchain_core.documents import Document
from langchain_core.language_models import LangSmithParams
from langchain_core.vectorstores import VectorStore
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr

from langchain_nest.engines import EngineSpec, check_placement, folder, shared_engine
from langchain_nest.identity import describe, describe_sources
from langchain_nest.sources import SOURCE_KINDS, FoundPassages, Sources
from nest_engine import Generation, GenerationPiece, NestConfig, NestEngine, Passage, PassageSource
from nest_engine.datastore.opener import list_passages
from nest_engine.errors import ConfigError
from nest_engine.lm.prompts import Task

logger = logging.getLogger(__name__)

SETTINGS = tuple(f.name for f in dataclasses.fields(NestConfig))
"""Names of the engine's settings."""

_SOURCE_NAMES = tuple(f.name for f in dataclasses.fields(Sources))

# What LangChain or other integrations pass to every model, and means nothing to one that runs here.
_IGNORED_ALWAYS = {
    "api_key", "base_url", "max_retries", "model_provider", "n", "stream", "stream_options", "stream_usage", "user",
}  # fmt: skip


@dataclass(frozen=True)
class Call:
    """One call, its settings put together.

    Attributes:
        engine: The engine.
        model_name: The name that the caller knows the model by.
        config: The settings.
        sources: Where to search.
        query: What to search for.
        task: How the prompt is worded.
        logits_processors: The caller's.
        template_arguments: More variables for the chat template.
        rest: Arguments that are left, for the kind of model to understand.
    """

    engine: NestEngine
    model_name: str
    config: NestConfig
    sources: Sources
    query: str
    task: Task
    logits_processors: tuple[Any, ...]
    template_arguments: dict[str, Any]
    rest: dict[str, Any]

    def find(self, callbacks: Callbacks = None) -> FoundPassages | None:
        """Search the passages for this call."""
        return self.sources.find(self.query, self.config, callbacks)

    async def afind(self, callbacks: Callbacks = None) -> FoundPassages | None:
        """Search the passages for this call without blocking the event loop."""
        return await self.sources.afind(self.query, self.config, callbacks)

    def stream(
        self,
        prompt: str | Sequence[Mapping[str, Any]],
        found: FoundPassages | None,
        *,
        config: NestConfig | None = None,
        processors: Sequence[Any] = (),
        template_arguments: Mapping[str, Any] | None = None,
    ) -> Generator[GenerationPiece, None, None]:
        """Answer a prompt from what was found.

        Args:
            prompt: The prompt.
            found: The passages.
            config: Settings instead of the call's.
            processors: More logits processors, behind the caller's.
            template_arguments: More variables for the chat template.
        """
        settings = config or self.config
        listed = [hit.passage for hit in found.hits] if found is not None and found.use_all else None
        pieces = self.engine.stream(
            prompt,
            source=self._whole(settings) or (found if listed is None else None),
            passages=listed if self._whole(settings) is None else None,
            query=self.query,
            task=self.task,
            logits_processors=[*self.logits_processors, *processors],
            template_arguments={**self.template_arguments, **(template_arguments or {})},
            config=settings,
        )
        # Closing this generator closes the engine's, which ends its work.
        with closing(pieces):  # type: ignore[type-var]
            yield from pieces

    def citable(self, generation: Generation, found: FoundPassages | None) -> list[Passage]:
        """All passages that citations of an answer can refer to."""
        whole = self._whole(self.config)
        passages = [hit.passage for hit in generation.passages] + (found.seen if found is not None else [])
        return passages + (list(list_passages(whole)) if whole is not None and generation.citations else [])

    def _whole(self, config: NestConfig) -> PassageSource | None:
        """A source of the engine that is searched as a whole, and not by its passages for a query."""
        return self.sources.source if config.datastore == "global" else None


class NestModel(BaseModel):
    """Fields and behavior of both models. Every setting of `NestConfig` is a field; None: the engine's own.

    All fields can be given when the model is made, and most of them, like `documents` and every
    setting, also with one call: `model.invoke(prompt, documents=[...], mode="lossless")`, or by `bind`.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True, protected_namespaces=())

    model_id: str = ""
    """A demo model (`"smollm2-135m-instruct"`), a folder, a `.gguf` file, or a hub id. Also as `model`."""
    engine: NestEngine | None = Field(default=None, exclude=True, repr=False)
    """An engine that is loaded already, instead of `model_id`."""
    device: str | int | None = None
    """Where to put the model: `"cpu"`, `"cuda"`, or a CUDA device's number (-1: the CPU)."""
    device_map: Any = None
    """Spread the model over devices, instead of `device`."""
    dtype: str | None = None
    """Number format of the weights, such as `"bfloat16"`."""
    model_kwargs: dict[str, Any] = Field(default_factory=dict)
    """More arguments of transformers' `from_pretrained`."""
    key_store: str | Path | None = None
    """A folder in which the keys of passages are kept, so that they are computed once."""
    nest_config: NestConfig | None = Field(default=None, exclude=True)
    """Settings to start from; by default the preset named like the model, else the paper's."""

    vectorstore: VectorStore | None = Field(default=None, exclude=True, repr=False)
    """A vector store to search."""
    retriever: Any = Field(default=None, exclude=True, repr=False)
    """A retriever to ask, instead of a store."""
    documents: Sequence[Document] | None = Field(default=None, exclude=True, repr=False)
    """Documents to answer from; all of them are used."""
    source: Any = Field(default=None, exclude=True, repr=False)
    """A passage source of the engine."""
    sparse_retriever: Any = Field(default=None, exclude=True, repr=False)
    """A retriever by words, fused with the store or retriever."""
    search_kwargs: dict[str, Any] = Field(default_factory=dict)
    """More arguments of the store's search, such as `filter`."""
    timeout: float | None = None
    """Seconds that a search may take."""
    query_from: Callable[[Any], str] | None = Field(default=None, exclude=True)
    """What to search for, as a function of the messages or the prompt."""
    datastore_id: str | None = None
    """Your name for the content of the store: lets a LangChain cache on disk find answers again.
    Change it when the content changes. Without it, answers are found again for the same store object only."""

    task: Task = "raw"
    """How the prompt is worded: `"chat"`, `"question"`, `"article"` or `"raw"`."""
    template_arguments: dict[str, Any] = Field(default_factory=dict)
    """More variables for the chat template."""
    streaming: bool = False
    """Whether `invoke` streams to callbacks."""

    mode: str | None = None
    top_passages: int | None = None
    prompt_passages: int | None = None
    passages_in_prompt: bool | None = None
    min_relevance: float | None = None
    key_layer: str | int | None = None
    key_transform: str | None = None
    key_format: str | None = None
    neighbors: int | None = None
    mu: float | None = None
    alpha: float | None = None
    tau: float | None = None
    knn_weight: float | None = None
    calibrated_entries: int | None = None
    delta: float | None = None
    span_tokens: int | None = None
    gamma: float | None = None
    draft_chunk: int | None = None
    max_tokens: int | None = None
    """The longest answer, in tokens. Also as `max_new_tokens`."""
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    seed: int | None = None
    stop: Sequence[str] | None = None
    min_citation_words: int | None = None
    min_match_words: int | None = None
    more_settings: dict[str, Any] = Field(default_factory=dict)
    """Settings of `NestConfig` that have no field here; they can be given by name, like the others."""

    _loaded: NestEngine | None = PrivateAttr(default=None)

    def __init__(self, **kwargs: Any) -> None:
        """Check the settings. The model is loaded when it is first used.

        Args:
            **kwargs: The fields, and those of LangChain's base class.

        Raises:
            ConfigError: If a setting is out of range, or two contradict each other.
        """
        for alias, name in (("model", "model_id"), ("model_name", "model_id"), ("max_new_tokens", "max_tokens")):
            if alias in kwargs:
                kwargs.setdefault(name, kwargs.pop(alias))
        if isinstance(kwargs.get("stop"), str):
            kwargs["stop"] = [kwargs["stop"]]
        fields = type(self).model_fields
        more = {name: kwargs.pop(name) for name in SETTINGS if name in kwargs and name not in fields}
        if more:
            kwargs["more_settings"] = {**kwargs.get("more_settings", {}), **more}
        _warn_of_unknown(kwargs, fields)
        super().__init__(**kwargs)
        check_placement(self.device, self.device_map)
        if self.engine is None and not self.model_id:
            raise ConfigError("give model_id= (such as 'smollm2-135m-instruct') or engine=")
        (self.nest_config or NestConfig()).replace(**self._settings())
        self._sources({})

    @classmethod
    def from_model_id(cls, model_id: str, **kwargs: Any) -> Self:
        """Make a model by name, as HuggingFacePipeline does.

        Args:
            model_id: A demo model, a folder, a `.gguf` file, or a hub id.
            **kwargs: The fields of this class. `task` and `backend` of HuggingFacePipeline are not needed, and
                `pipeline_kwargs` are read as settings.
        """
        settings = dict(kwargs.pop("pipeline_kwargs", None) or {})
        settings.pop("return_full_text", None)
        if settings.pop("do_sample", None) is False:
            settings["temperature"] = 0.0
        if kwargs.get("task") == "text-generation":
            kwargs.pop("task")
        kwargs.pop("backend", None)
        return cls(model_id=model_id, **{**settings, **kwargs})

    @property
    def model_name(self) -> str:
        """The name of the model."""
        return self.model_id or (self.engine.model.name if self.engine is not None else "")

    def load(self) -> NestEngine:
        """The engine, loaded at the first call. Models that name the same model share it."""
        if self.engine is not None:
            return self.engine
        if self._loaded is None:
            self._loaded = self._shared(self.model_id)
        return self._loaded

    def _shared(self, model_id: str) -> NestEngine:
        key_layer = self.key_layer if self.key_layer is not None else getattr(self.nest_config, "key_layer", None)
        spec = EngineSpec(
            model_id, self.device, self.device_map, self.dtype, self.model_kwargs, key_layer, folder(self.key_store)
        )
        return shared_engine(spec)

    def _settings(self) -> dict[str, Any]:
        """The settings that are given, by the engine's names."""
        given = {name: getattr(self, "max_tokens" if name == "max_new_tokens" else name, None) for name in SETTINGS}
        return {name: value for name, value in given.items() if value is not None} | self.more_settings

    def _sources(self, given: dict[str, Any]) -> Sources:
        """Where to search: what a call brings replaces what the model has."""
        replaced = {name: given.pop(name) for name in _SOURCE_NAMES if name in given}
        own = {name: getattr(self, name) for name in _SOURCE_NAMES}
        if any(replaced.get(name) is not None for name in SOURCE_KINDS):
            own |= dict.fromkeys((*SOURCE_KINDS, "sparse_retriever"))
        if replaced.get("search_kwargs") is not None:
            replaced["search_kwargs"] = {**own["search_kwargs"], **replaced["search_kwargs"]}
        return Sources(**{**own, **{name: value for name, value in replaced.items() if value is not None}})

    def _prepare(self, prompt: Any, find_query: Callable[[], str], stop: Sequence[str] | None, given: Any) -> Call:
        """Put the settings of one call together, and load the engine.

        Args:
            prompt: The messages or the text, for `query_from`.
            find_query: What to search for where the call does not say it.
            stop: Stop strings, as LangChain passes them.
            given: The arguments of the call.

        Raises:
            ConfigError: If a setting is out of range, or two contradict each other.
        """
        given = {name: value for name, value in given.items() if name not in _IGNORED_ALWAYS}
        model_id = given.pop("model", None) or self.model_id
        engine = self.load() if model_id == self.model_id else self._shared(model_id)
        sources = self._sources(given)
        query_from = given.pop("query_from", None) or self.query_from
        query = given.pop("query", None)
        if query is None:
            query = query_from(prompt) if query_from is not None else find_query()
        config = given.pop("nest_config", None) or self.nest_config or engine.config
        settings = self._settings() | _call_settings(given)
        if stop is not None:
            settings["stop"] = [stop] if isinstance(stop, str) else list(stop)
        given.pop("datastore_id", None)
        return Call(
            engine=engine,
            model_name=model_id or engine.model.name,
            config=config.replace(**{"key_layer": engine.config.key_layer, **settings}),
            sources=sources,
            query=query,
            task=given.pop("task", None) or self.task,
            logits_processors=tuple(given.pop("logits_processors", ())),
            template_arguments={**self.template_arguments, **(given.pop("template_arguments", None) or {})},
            rest=given,
        )

    def _identity(self) -> dict[str, Any]:
        """What answers depend on, in plain words, for caches and traces."""
        engine = self.engine
        return {
            "model_id": self.model_name,
            "engine": None if engine is None else describe(engine),
            "model": [self.device, describe(self.device_map), self.dtype, describe(self.model_kwargs)],
            "task": self.task,
            "template_arguments": describe(self.template_arguments),
            "nest_config": None if self.nest_config is None else dataclasses.asdict(self.nest_config),
            "settings": self._settings(),
            "query_from": describe(self.query_from),
            "datastore": describe_sources(self._sources({}), self.datastore_id),
        }

    def _trace_params(self, stop: Sequence[str] | None, given: Mapping[str, Any]) -> LangSmithParams:
        """Parameters that LangSmith shows."""
        params = LangSmithParams(ls_provider="nest", ls_model_name=given.get("model") or self.model_name)
        config = self.nest_config or NestConfig()
        temperature = given.get("temperature", self.temperature)
        params["ls_temperature"] = config.temperature if temperature is None else temperature
        limit = given.get("max_tokens", given.get("max_new_tokens", self.max_tokens))
        params["ls_max_tokens"] = config.max_new_tokens if limit is None else limit
        stops = stop if stop is not None else self.stop
        if stops:
            params["ls_stop"] = list(stops)
        return params

    def __getstate__(self) -> dict[Any, Any]:
        """The configuration: an engine is loaded again by its name, and not written down."""
        state = super().__getstate__()
        values = dict(state["__dict__"])
        engine = values.get("engine")
        if engine is not None:
            values |= {"engine": None, "model_id": engine.model.name, "nest_config": self.nest_config or engine.config}
        private = {**(state.get("__pydantic_private__") or {}), "_loaded": None}
        return {**state, "__dict__": values, "__pydantic_private__": private}

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        """A copy that shares the engine and the sources, which cannot be copied."""
        return self.model_copy()


def _call_settings(given: dict[str, Any]) -> dict[str, Any]:
    """Take the engine's settings out of the arguments of a call."""
    if "max_tokens" in given:
        given.setdefault("max_new_tokens", given.pop("max_tokens"))
    found = {name: given.pop(name) for name in SETTINGS if name in given}
    # None means "as before" for most; LangChain passes it for what is not set.
    return {name: value for name, value in found.items() if value is not None}


def refuse_unknown(rest: Mapping[str, Any], known: Sequence[str] = ()) -> None:
    """Refuse arguments of a call that nobody understands: they would be without effect.

    Raises:
        ConfigError: If there are any.
    """
    names = [*SETTINGS, *_SOURCE_NAMES, "query", "query_from", "model", "max_tokens", *known]
    for name in rest:
        raise ConfigError(f"no such argument: {name}{_suggest(name, names)}")


def _warn_of_unknown(given: Mapping[str, Any], fields: Mapping[str, Any]) -> None:
    aliases = {field.alias for field in fields.values() if field.alias}
    for name in given:
        if name not in fields and name not in aliases and name not in _IGNORED_ALWAYS:
            logger.warning("no such field: %s is without effect%s", name, _suggest(name, list(fields)))


def _suggest(name: str, names: Sequence[str]) -> str:
    close = difflib.get_close_matches(name, names, n=1)
    return f"; did you mean {close[0]}?" if close else ""
