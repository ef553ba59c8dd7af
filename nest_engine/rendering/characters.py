"""Characters that hide, reorder or break text, made visible without moving any other."""

from __future__ import annotations

import unicodedata

import regex

REPLACEMENT = "\ufffd"
"""Stands where a hidden or unreadable character stood."""

DROPPED = "\x00"
"""Stands where nothing is shown: the CR of a CRLF. Writers leave it out."""

_JOINERS = "\u200b\u200c\u200d\u2060"
_SOFT_HYPHEN = "\u00ad"
_MARKS_OF_DIRECTION = "\u200e\u200f\u061c"
_SELECTORS = "\ufe00-\ufe0f\U000e0100-\U000e01ef"
_TAGS = "\U000e0020-\U000e007f"
_BLACK_FLAG = "\U0001f3f4"

# Controls but tab and newline, what is invisible by itself (Cf), surrogates without their other half, variation
# selectors, line ends of other systems, and letters that are blank (fillers).
_SUSPECTS = regex.compile(
    rf"\r\n|[\p{{Cc}}\p{{Cf}}\p{{Cs}}\u2028\u2029\u034f\u115f\u1160\u17b4\u17b5\u3164\uffa0{_SELECTORS}--\t\n]",
    regex.VERSION1,
)
_RIGHT_TO_LEFT = regex.compile(r"[\p{L}&&[\p{Bidi_Class=R}\p{Bidi_Class=AL}]]", regex.VERSION1)
_FLAG_TAGS = regex.compile(rf"{_BLACK_FLAG}[{_TAGS}]+")
_LINE_ENDS = "\r\x0b\x0c\x85\u2028\u2029"
# Signs that Unicode counts among the formatting characters, but which are seen: Arabic and Kaithi number signs.
_SEEN = frozenset("\u0600\u0601\u0602\u0603\u0604\u0605\u06dd\u070f\u0890\u0891\u08e2\U000110bd\U000110cd")


def visible(text: str) -> str:
    """Return `text` so that no character of it hides, reorders or ends anything, at the same length.

    Line ends become newlines, the CR of a CRLF becomes `DROPPED`; controls, overrides of the
    writing direction and zero-width characters become `REPLACEMENT`. What spelling needs stays:
    joiners and breaks between letters that are not ASCII and in emoji, soft hyphens in words,
    variation selectors, direction marks in text that has letters written from right to left.

    Args:
        text: Any text. Ranges of it, in characters (code points), are ranges of the result.
    """
    has_right_to_left = _RIGHT_TO_LEFT.search(text) is not None
    flags = [match.span() for match in _FLAG_TAGS.finditer(text)]

    def replace(match: regex.Match[str]) -> str:
        found = match[0]
        if found == "\r\n":
            return DROPPED + "\n"
        if found in _LINE_ENDS:
            return "\n"
        at = match.start()
        if found in _SEEN or any(start < at < end for start, end in flags):
            return found
        if found in _MARKS_OF_DIRECTION:
            return found if has_right_to_left else REPLACEMENT
        return found if _is_spelling(text, at) else REPLACEMENT

    return str(_SUSPECTS.sub(replace, text))


def _is_spelling(text: str, at: int) -> bool:
    """Whether a joiner, break or selector says how its neighbors are written, instead of hiding between them."""
    before, after = text[at - 1 : at] if at else "", text[at + 1 : at + 2]
    if text[at] in _JOINERS:
        return _is_joined(before) and _is_joined(after)
    if text[at] == _SOFT_HYPHEN:
        return before.isalpha() and after.isalpha()
    if unicodedata.category(text[at]) == "Mn" and text[at] != "\u034f":  # a variation selector
        return before != "" and (before in "0123456789#*" or ord(before) > 0x7F) and not _is_hidden(before)
    return False


def _is_joined(character: str) -> bool:
    """Whether joiners mean anything beside this character: not in ASCII, nor beside white space."""
    return bool(character) and ord(character) > 0x7F and not character.isspace()


def _is_hidden(character: str) -> bool:
    return _SUSPECTS.fullmatch(character) is not None


def character_end(text: str, at: int) -> int:
    """Return where the character that a reader sees at `at - 1` ends: behind its accents, say.

    Args:
        text: The text.
        at: A place in it, in code points.
    """
    if at <= 0 or at >= len(text) or (text[at].isascii() and text[at - 1].isascii()):
        return at
    # Grapheme clusters are found from a place where one surely begins.
    start = max(text.rfind(" ", 0, at), text.rfind("\n", 0, at), 0)
    for cluster in regex.finditer(r"\X", text, pos=start):
        if cluster.end() >= at:
            return int(cluster.end())
    return at


def one_line(text: str) -> str:
    """Return `text` visible, with each stretch of white space as one blank."""
    return " ".join(visible(text).replace(DROPPED, "").split())


def shorten(text: str, limit: int) -> tuple[str, str]:
    """Cut the middle out of a text that is too long.

    Args:
        text: The text.
        limit: Longest text that stays whole, in characters.

    Returns:
        Beginning and end; the end is empty where nothing is cut.
    """
    if len(text) <= limit:
        return text, ""
    half = limit // 2
    return text[: character_end(text, half)], text[character_end(text, len(text) - half) :]
