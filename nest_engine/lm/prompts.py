"""What the model reads: the method's prompts, inside the chat template, as segments of token ids."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from jinja2 import TemplateError

from nest_engine.errors import ContextOverflowError, PromptError
from nest_engine.lm.tokenizer import Tokenizer
from nest_engine.passages import Passage

logger = logging.getLogger(__name__)

Task = Literal["question", "brief", "article", "chat", "raw"]
"""How a prompt is worded.

`question` and `article` use the paper's wording; `brief` puts the background first and asks for
one sentence; `chat` passes the text or messages on as they are; `raw` uses no chat template at all.
"""

Message = Mapping[str, Any]
"""A chat message: `{"role": "system" | "user" | "assistant" | ..., "content": str}`."""

_MARK = "\ue000{}\ue001"
"""Stands for the text of message {} while a chat template is rendered."""


@dataclass(frozen=True)
class Prompt:
    """A prompt ready to be read.

    Attributes:
        ids: Token ids.
        query: The text that passages are searched for.
        passages: Passages that stand in it, best first.
    """

    ids: list[int]
    query: str
    passages: tuple[Passage, ...]


def to_messages(prompt: str | Sequence[Message]) -> list[Message]:
    """Turn a prompt into chat messages and check it.

    Raises:
        PromptError: If it is empty or white space, or a message is malformed.
    """
    messages: list[Message] = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)
    for message in messages:
        if not isinstance(message, Mapping) or not isinstance(message.get("content"), str) or not message.get("role"):
            raise PromptError("each message needs a 'role' and a text 'content': {'role': 'user', 'content': '...'}")
    if not any(message["content"].strip() for message in messages):
        raise PromptError("the prompt is empty: ask a question or give a text to complete")
    return messages


def find_query(messages: Sequence[Message]) -> str:
    """The text to search passages for: the last user message, else the last message with text."""
    spoken = [m for m in messages if m["content"].strip()]
    asked = [m for m in spoken if m["role"] == "user"]
    query: str = (asked or spoken)[-1]["content"]
    return query.strip()


class PromptBuilder:
    """Builds prompts for one model."""

    def __init__(self, tokenizer: Tokenizer, context_window: int) -> None:
        """Build with `tokenizer`, for prompts and answers of at most `context_window` tokens together."""
        self._tokenizer = tokenizer
        self._window = context_window

    def build(
        self,
        prompt: str | Sequence[Message],
        *,
        task: Task,
        passages: Sequence[Passage] = (),
        query: str | None = None,
        new_tokens: int = 0,
        template_arguments: Mapping[str, Any] | None = None,
    ) -> Prompt:
        """Word, render and tokenize a prompt.

        What does not fit is dropped with a warning: the passages that rank lowest, then the
        oldest turns; never a system message or the last user turn.

        Args:
            prompt: A text, or chat messages.
            task: How the text is worded.
            passages: What to put into the prompt as background, best first.
            query: What the passages were searched for, by default `find_query`'s.
            new_tokens: Room to leave for the answer, in tokens.
            template_arguments: More variables for the chat template.

        Raises:
            PromptError: If the prompt is empty.
            ContextOverflowError: If it does not fit even so.
        """
        messages, kept = to_messages(prompt), list(passages)
        query = query if query is not None else find_query(messages)
        while True:
            ids = self._encode(self._with_background(messages, kept, task), task, template_arguments or {})
            if len(ids) + new_tokens <= self._window:
                return Prompt(ids, query, tuple(kept))
            messages, kept = self._shorten(messages, kept, len(ids), new_tokens)

    def _shorten(
        self, messages: list[Message], passages: list[Passage], length: int, new_tokens: int
    ) -> tuple[list[Message], list[Passage]]:
        """Drop what matters least."""
        if passages:
            logger.warning("prompt too long: passage %s is left out of it", passages[-1].id)
            return messages, passages[:-1]
        last_user = max((i for i, m in enumerate(messages) if m["role"] == "user"), default=len(messages) - 1)
        oldest = next((i for i, m in enumerate(messages[:last_user]) if m["role"] != "system"), None)
        if oldest is not None:
            end = oldest + 1
            # A chat must not begin with an answer: it goes with its question.
            while end < last_user and messages[end]["role"] not in ("user", "system"):
                end += 1
            for message in messages[oldest:end]:
                logger.warning("prompt too long: the oldest turn (%s) is left out of it", message["role"])
            return messages[:oldest] + messages[end:], passages
        raise ContextOverflowError(
            f"the prompt has {length} tokens and may be followed by {new_tokens}, but the model's context window is "
            f"{self._window}: shorten the prompt or lower max_new_tokens"
        )

    def _with_background(self, messages: list[Message], passages: Sequence[Passage], task: Task) -> list[Message]:
        """Word the last user turn for the task, with the passages in it."""
        last = max((i for i, m in enumerate(messages) if m["role"] == "user"), default=len(messages) - 1)
        content = _word(messages[last]["content"], passages, task)
        return [*messages[:last], {**messages[last], "content": content}, *messages[last + 1 :]]

    def _encode(self, messages: Sequence[Message], task: Task, arguments: Mapping[str, Any]) -> list[int]:
        if task == "raw" or not self._tokenizer.has_chat_template:
            text = "\n".join(message["content"] for message in messages)
            return self._tokenizer.prefix + self._tokenizer.encode(text).ids
        return self._encode_chat(messages, arguments)

    def _encode_chat(self, messages: Sequence[Message], arguments: Mapping[str, Any]) -> list[int]:
        """Render the template around marks, then tokenize its own parts with control tokens and the texts without."""
        contents = [str(message["content"]) for message in messages]
        marked = [{**message, "content": _MARK.format(i)} for i, message in enumerate(messages)]
        try:
            rest = self._tokenizer.render_chat(marked, **arguments)
        except TemplateError as error:
            raise PromptError(
                f"the model's chat template refuses these messages: {error}. Some models know no system message: put "
                "its text into the first user message; and many want user and assistant to take turns"
            ) from error
        ids: list[int] = []
        for i, content in enumerate(contents):
            before, mark, after = rest.partition(_MARK.format(i))
            if not mark:  # a template may drop a message or repeat it
                continue
            ids += self._tokenizer.encode_template(before) + self._tokenizer.encode(content).ids
            rest = after
        return ids + self._tokenizer.encode_template(rest)


def join_passages(passages: Sequence[Passage]) -> str:
    """Passages as background text: blank lines between them, each with its title on a line before it."""
    return "\n\n".join(f"{p.title}\n{p.text}" if p.title else p.text for p in passages)


def _word(text: str, passages: Sequence[Passage], task: Task) -> str:
    """The paper's zero-shot prompts (appendix), and ours: `brief` and what `chat` says of passages."""
    background = join_passages(passages)
    if task == "question":
        if not background:
            return f"Question: {text} Answer:"
        return (
            "Answer the question with the background context as reference. "
            f"Background: {background}\n Question: {text} Answer:"
        )
    if task == "brief":
        if not background:
            return f"Answer in one sentence.\nQuestion: {text}"
        return f"{background}\n\nAnswer in one sentence, from the text above.\nQuestion: {text}"
    if task == "article":
        if not background:
            return f"Write an article.\n Article:{text}"
        return f"Write an article with the background context as reference. Background: {background}\n Article:{text}"
    if not background:
        return text
    return f"Answer with the background context as reference. Background: {background}\n\n{text}"
