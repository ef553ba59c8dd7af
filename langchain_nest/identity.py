"""Names for objects that LangChain's cache and traces can use: equal only for what gives equal answers."""

from __future__ import annotations

import contextlib
import hashlib
import json
import threading
import uuid
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

from langchain_core.documents import Document
from langchain_core.vectorstores import VectorStore, VectorStoreRetriever

from langchain_nest.sources import Sources

_tokens: dict[int, tuple[weakref.ref[Any], str]] = {}
_lock = threading.Lock()


def object_name(value: Any) -> str:
    """A name that no other object ever gets, in this process or another: its address would be used again."""
    kind = type(value).__name__
    with _lock:
        known = _tokens.get(id(value))
        if known is not None and known[0]() is value:
            return known[1]
        name = f"{kind}:{uuid.uuid4().hex}"
        # What cannot be referred to weakly gets a new name each time, which no cache will ever find.
        with contextlib.suppress(TypeError):
            _tokens[id(value)] = (weakref.ref(value), name)
        return name


def describe(value: Any) -> Any:
    """A value of a call in plain words: numbers and texts as they are, everything else by a name."""
    if value is None or isinstance(value, str | int | float | bool):
        return value
    if isinstance(value, Document):
        return _digest([value.id, value.page_content, value.metadata])
    if isinstance(value, Mapping):
        return {str(key): describe(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [describe(item) for item in value]
    if isinstance(value, VectorStoreRetriever):
        return [_store_name(value.vectorstore), value.search_type, describe(value.search_kwargs)]
    if isinstance(value, VectorStore):
        return _store_name(value)
    if hasattr(value, "to_dict") and not isinstance(value, type):
        return describe(value.to_dict())
    return object_name(value)


def describe_sources(sources: Sources, datastore_id: str | None) -> dict[str, Any]:
    """The identity of what is searched.

    Args:
        sources: Where is searched.
        datastore_id: The caller's own name for it, in place of the object's.
    """
    if not sources.any:
        return {}
    found = {
        name: describe(getattr(sources, name))
        for name in ("vectorstore", "retriever", "source", "sparse_retriever")
        if getattr(sources, name) is not None and datastore_id is None
    }
    if datastore_id is not None:
        found["datastore_id"] = datastore_id
    if sources.documents is not None:
        found["documents"] = describe_documents(sources.documents)
    if sources.search_kwargs:
        found["search_kwargs"] = describe(sources.search_kwargs)
    return found


def describe_documents(documents: Sequence[Document]) -> str:
    """A digest of documents: content, ids and metadata, in their order."""
    return _digest([describe(document) for document in documents])


def _store_name(store: VectorStore) -> str:
    """A store's name, which changes when its size does, where that can be seen at no cost."""
    size: Any = None
    for path in (("store", "__len__"), ("index", "ntotal"), ("_collection", "count")):
        with contextlib.suppress(Exception):
            size = getattr(getattr(store, path[0]), path[1])
            size = size() if callable(size) else size
            break
    return f"{object_name(store)}:{size}"


def _digest(value: Any) -> str:
    data = json.dumps(value, sort_keys=True, default=repr, ensure_ascii=True)
    return hashlib.sha256(data.encode()).hexdigest()[:16]
