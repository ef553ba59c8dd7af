"""`create_nest_chain`: retrieval and a cited answer, with the keys of LangChain's `create_retrieval_chain`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any

from langchain_core.documents import Document
from langchain_core.messages import AIMessageChunk, BaseMessage, HumanMessage
from langchain_core.prompts import BasePromptTemplate
from langchain_core.runnables import Runnable, RunnableGenerator, RunnableLambda, RunnablePassthrough
from langchain_core.runnables.utils import AddableDict

from langchain_nest.chat_models import ChatNest
from langchain_nest.citations import message_citations
from langchain_nest.llms import NestLLM
from langchain_nest.models import NestModel
from nest_engine.errors import ConfigError


def create_nest_chain(
    llm: ChatNest | NestLLM,
    retriever: Runnable[Any, list[Document]],
    *,
    prompt: BasePromptTemplate[Any] | None = None,
) -> Runnable[dict[str, Any], dict[str, Any]]:
    """Make a chain that retrieves documents and answers from them, with citations.

    Its input is a dict with `input`, the question, and optionally `chat_history`, a list of
    messages. Its output has the keys of `create_retrieval_chain`, `input`, `context` and `answer`,
    and `citations`, in LangChain's standard form. It streams: `answer` comes in pieces.

    Args:
        llm: The model. Its own sources are not searched.
        retriever: A retriever, which gets the question, or any runnable from the input to documents.
        prompt: A prompt template over the input, without the context: the documents go to the
            model by another way. By default the history and the question.

    Returns:
        The chain.

    Raises:
        ConfigError: If the model is no model of this package.
    """
    if not isinstance(llm, ChatNest | NestLLM):
        raise ConfigError(
            f"create_nest_chain needs ChatNest or NestLLM, not {type(llm).__name__}: other models do not tell what "
            "they copy; use create_retrieval_chain for them"
        )
    model = llm if isinstance(llm, ChatNest) else _as_chat(llm)
    search: Runnable[Any, Any] = retriever
    if not _reads_dicts(retriever):
        search = RunnableLambda(_question, name="question") | retriever

    def answer(inputs: Mapping[str, Any]) -> Runnable[Any, Any]:
        asked: Any = _messages(inputs) if prompt is None else prompt.invoke(dict(inputs))
        bound = model.bind(documents=list(inputs["context"]), query=_question(inputs))
        return RunnableLambda(lambda _: asked, name="prompt") | bound

    retrieved = RunnablePassthrough.assign(context=search.with_config(run_name="retrieve_documents"))
    answered = retrieved.assign(message=RunnableLambda(answer, name="answer"))
    return (answered | RunnableGenerator(_split, _asplit, name="citations")).with_config(run_name="nest_chain")


def _reads_dicts(retriever: Runnable[Any, Any]) -> bool:
    """Whether a runnable takes the whole input, as `create_retrieval_chain` does for what is no retriever."""
    from langchain_core.retrievers import BaseRetriever

    return not isinstance(retriever, BaseRetriever)


def _question(inputs: Mapping[str, Any]) -> str:
    question = inputs.get("input")
    if not isinstance(question, str):
        raise ConfigError("the chain's input needs a text 'input': chain.invoke({'input': 'your question'})")
    return question


def _messages(inputs: Mapping[str, Any]) -> list[BaseMessage]:
    history: Sequence[BaseMessage] = inputs.get("chat_history") or []
    return [*history, HumanMessage(_question(inputs))]


def _as_chat(llm: NestLLM) -> ChatNest:
    """A chat model with the settings of a text model, prompts worded alike: only messages carry citations."""
    # Only what was given: LangChain takes a `streaming=False` that is given for a wish not to stream at all.
    fields = {name: getattr(llm, name) for name in NestModel.model_fields if name in llm.model_fields_set}
    return ChatNest(**{"task": llm.task, **fields}, cache=llm.cache, callbacks=llm.callbacks, tags=llm.tags)


class _Splitter:
    """Turns the chain's pieces with a message into pieces with `answer` and `citations`."""

    def __init__(self) -> None:
        self._message: Any = None

    def add(self, piece: Mapping[str, Any]) -> AddableDict:
        plain = {key: value for key, value in piece.items() if key != "message"}
        message = piece.get("message")
        if message is not None:
            self._message = message if self._message is None else self._message + message
            plain["answer"] = message.text
        return AddableDict(plain)

    def finish(self) -> AddableDict:
        message = self._message
        if isinstance(message, AIMessageChunk) or message is not None:
            return AddableDict(citations=message_citations(message))
        return AddableDict(citations=[])


def _split(pieces: Iterator[Mapping[str, Any]]) -> Iterator[AddableDict]:
    splitter = _Splitter()
    for piece in pieces:
        yield splitter.add(piece)
    yield splitter.finish()


async def _asplit(pieces: AsyncIterator[Mapping[str, Any]]) -> AsyncIterator[AddableDict]:
    splitter = _Splitter()
    async for piece in pieces:
        yield splitter.add(piece)
    yield splitter.finish()
