"""Token ids to text, piece by piece, as they come."""

from __future__ import annotations

from nest_engine.lm.tokenizer import Tokenizer

_INCOMPLETE = "\ufffd"
_LONGEST_CHARACTER = 4
"""UTF-8 bytes of a character at most: of as many tokens, the first one is complete or broken for good."""


class Detokenizer:
    """Turns a growing list of tokens into a growing text.

    A token's text can depend on the one before it (a space that is stripped at the start of
    a text), and one character can be spread over several tokens. So a few tokens are decoded
    again with each new one, and characters are given out when they are complete.
    """

    def __init__(self, tokenizer: Tokenizer, *, skip_leading_space: bool = False) -> None:
        """Begin an empty text, without the white space that its first tokens may begin with if so wanted."""
        self._tokenizer = tokenizer
        self._skip_leading_space = skip_leading_space
        self._ids: list[int] = []
        self._shown = 0  # tokens whose text is given out
        self._anchor = 0  # where decoding starts again, before `_shown`
        self.ends: list[int] = []
        self.text = ""

    def add(self, token: int) -> str:
        """Add a token and return the characters that are complete by it, possibly none."""
        self._ids.append(token)
        new = self._complete()
        if new is None and len(self._ids) - self._shown >= _LONGEST_CHARACTER:
            new = self._give_up() + (self._complete() or "")
        return self._keep(new or "")

    def _complete(self) -> str | None:
        """Give out what is waiting, unless its last character is incomplete."""
        before = self._tokenizer.decode(self._ids[self._anchor : self._shown])
        now = self._tokenizer.decode(self._ids[self._anchor :])
        if now.endswith(_INCOMPLETE):
            return None
        if len(now) > len(before):
            self._anchor, self._shown = self._shown, len(self._ids)
        return now[len(before) :]

    def _give_up(self) -> str:
        """Give out broken characters, up to where one may begin that can still be completed.

        A token can hold the end of one character and the start of the next, and a cut there would
        break a whole character. (With byte fallback, a cut can also mend one: decoded at once, one
        broken byte spoils all bytes of its run.) Where no cut is free of harm, wait on.
        """
        before = self._tokenizer.decode(self._ids[self._anchor : self._shown])
        now = self._tokenizer.decode(self._ids[self._anchor :])
        for cut in range(len(self._ids) - _LONGEST_CHARACTER + 1, self._shown, -1):
            head = self._tokenizer.decode(self._ids[self._anchor : cut])
            rest = self._tokenizer.decode(self._ids[cut:])
            if (head + rest).count(_INCOMPLETE) <= now.count(_INCOMPLETE):
                self._anchor = self._shown = cut
                return head[len(before) :]
        return ""

    def flush(self) -> str:
        """Return what is left of an incomplete character at the end, as replacement characters."""
        before = self._tokenizer.decode(self._ids[self._anchor : self._shown])
        rest = self._tokenizer.decode(self._ids[self._anchor :])[len(before) :]
        self._shown = self._anchor = len(self._ids)
        rest = self._without_leading_space(rest)
        self.text += rest
        if self.ends:
            self.ends[-1] = len(self.text)
        return rest

    def _keep(self, new: str) -> str:
        new = self._without_leading_space(new)
        self.text += new
        self.ends.append(len(self.text))
        return new

    def _without_leading_space(self, new: str) -> str:
        return new.lstrip() if self._skip_leading_space and not self.text else new
