"""Text to token ids and back, exact to the character, with no text ever acting as a control token."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer as BackendTokenizer

from nest_engine.errors import UnsupportedModelError
from nest_engine.lm.transformers_model import tokenizer_fingerprint


@dataclass(frozen=True)
class TokenizedText:
    """Tokens of a text and where each one ends.

    Attributes:
        ids: Token ids.
        ends: For each token the number of characters (code points) of the text that are
            complete after it. A token that holds only a part of a character does not
            complete it, so its end is where the token before it ended. Token i stands for
            `text[ends[i - 1]:ends[i]]`, the first one for `text[:ends[0]]`.
    """

    ids: list[int]
    ends: list[int]


class Tokenizer:
    """A model's tokenizer, in two forms: for templates with control tokens, and for text, which never has any."""

    def __init__(self, tokenizer: Any) -> None:
        """Wrap a fast tokenizer of transformers.

        Raises:
            UnsupportedModelError: If it has no fast back end, which the character offsets come from.
        """
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if not isinstance(backend, BackendTokenizer):
            raise UnsupportedModelError(
                f"{type(tokenizer).__name__} is a slow tokenizer without character offsets; "
                "convert it to a fast one (a folder with tokenizer.json)"
            )
        self._tokenizer = tokenizer
        serialized = backend.to_str()
        self.fingerprint = tokenizer_fingerprint(serialized)
        self._control_ids, self._plain = _without_control_tokens(serialized, set(tokenizer.all_special_ids))
        self._unknown_id = _unknown_id(tokenizer)
        self.prefix = self._find_prefix()

    @property
    def control_ids(self) -> frozenset[int]:
        """Ids that no text may produce: special tokens and added tokens that are not white space."""
        return self._control_ids

    @property
    def has_chat_template(self) -> bool:
        """Whether the model comes with a chat template."""
        return bool(getattr(self._tokenizer, "chat_template", None))

    @property
    def template_calls_tools(self) -> bool:
        """Whether the chat template introduces tools, and writes calls in `<tool_call>` marks."""
        template = str(getattr(self._tokenizer, "chat_template", None) or "")
        return "tools" in template and "<tool_call>" in template

    def serialize(self) -> str:
        """The tokenizer in the JSON form of the tokenizers library."""
        state: str = self._tokenizer.backend_tokenizer.to_str()
        return state

    def encode(self, text: str) -> TokenizedText:
        """Tokenize text of a user or a passage; `<|im_end|>` and its like are ordinary characters here.

        Args:
            text: Any text; lone surrogates are read as U+FFFD. Characters that the vocabulary
                lacks are left out: `<unk>` is a control token.
        """
        if not text:
            return TokenizedText([], [])
        encoding = self._plain.encode(_encodable(text), add_special_tokens=False)
        known = []
        for token, (start, end) in zip(encoding.ids, encoding.offsets, strict=True):
            if token == self._unknown_id and text[start:end].strip() != self._tokenizer.unk_token:
                continue
            if token in self._control_ids:
                return self._encode_apart(text, start, end)
            known.append((token, (start, end)))
        return TokenizedText([token for token, _ in known], _ends([range_ for _, range_ in known], len(text)))

    def encode_template(self, text: str) -> list[int]:
        """Tokenize a part of a chat template, control tokens included."""
        ids: list[int] = self._tokenizer(text, add_special_tokens=False, split_special_tokens=False)["input_ids"]
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """Text of some tokens, control tokens left out, nothing cleaned up."""
        text: str = self._tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text

    def render_chat(self, messages: Sequence[Mapping[str, Any]], **template_arguments: Any) -> str:
        """Apply the chat template, with the header of the answer behind the messages."""
        text: str = self._tokenizer.apply_chat_template(
            [dict(message) for message in messages], tokenize=False, add_generation_prompt=True, **template_arguments
        )
        return text

    def _encode_apart(self, text: str, start: int, end: int) -> TokenizedText:
        """Tokenize a text whose characters from `start` to `end` look like a control token, so that they do not.

        The text is cut inside that piece, and both parts are tokenized for themselves.
        """
        cut = start + 1 if end - start > 1 else end
        if end - start <= 1:
            raise UnsupportedModelError(f"the tokenizer reads {text[start:end]!r} as a control token")
        left, right = self.encode(text[:cut]), self.encode(text[cut:])
        return TokenizedText(left.ids + right.ids, left.ends + [cut + e for e in right.ends])

    def _find_prefix(self) -> list[int]:
        """What the tokenizer puts before every text (BOS), if anything."""
        ids: list[int] = self._tokenizer("a", add_special_tokens=True)["input_ids"]
        prefix = []
        for token in ids:
            if token not in self._control_ids:
                break
            prefix.append(token)
        return prefix


def _unknown_id(tokenizer: Any) -> int | None:
    """The id of `<unk>`, where it has no other meaning: some models use one token for it and for the end."""
    unknown: int | None = tokenizer.unk_token_id
    return None if unknown in (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id) else unknown


def _encodable(text: str) -> str:
    """The text with lone surrogates, which no encoder takes, replaced one for one."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace") if _has_surrogates(text) else text


def _has_surrogates(text: str) -> bool:
    return any("\ud800" <= character <= "\udfff" for character in text) if not text.isascii() else False


def _ends(offsets: Sequence[tuple[int, int]], length: int) -> list[int]:
    """Turn a back end's offsets into rising ends that cover the text: see `TokenizedText.ends`.

    Several tokens of one character all carry that character's range: only the last of them
    completes it. Characters that no token claims, such as a space that is trimmed off the
    offsets or stripped by a normalizer, go to the token behind them.
    """
    ends: list[int] = []
    for i, (_, end) in enumerate(offsets):
        following = offsets[i + 1][0] if i + 1 < len(offsets) else length
        is_partial = i + 1 < len(offsets) and following < end
        complete = following if is_partial else end
        ends.append(max(complete, ends[-1] if ends else 0))
    return ends


def _without_control_tokens(serialized: str, special: set[int]) -> tuple[frozenset[int], BackendTokenizer]:
    """The ids of control tokens, and the tokenizer with none of them recognized in text.

    Added tokens that are runs of white space stay: they spell ordinary text.
    """
    state = json.loads(serialized)
    added = state.get("added_tokens") or []
    control = [t for t in added if t["special"] or t["id"] in special or t["content"].strip()]
    state["added_tokens"] = [t for t in added if t not in control]
    # A text is read without what the post-processor would add, and never cut or padded.
    state["post_processor"] = _trimming_only(state.get("post_processor"))
    state["truncation"] = state["padding"] = None
    return frozenset({t["id"] for t in control} | special), BackendTokenizer.from_str(json.dumps(state))


def _trimming_only(post_processor: dict[str, Any] | None) -> dict[str, Any] | None:
    return post_processor if post_processor and post_processor.get("type") == "ByteLevel" else None
