"""Terms for sparse search, in any script."""

from __future__ import annotations

import unicodedata
from itertools import pairwise

import regex

# Scripts written without spaces: their runs become overlapping pairs of characters.
_UNSPACED = regex.compile(r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}ー々]\p{M}*")
_RUNS = regex.compile(rf"(?:{_UNSPACED.pattern})+")
# Unicode word boundaries (UAX 29), and then also at apostrophes and underscores, so that
# "l'homme", "Beyoncé's" and "Super_Bowl" are found by their parts.
_BOUNDARY = regex.compile(r"\b|['’_]+", flags=regex.V1 | regex.WORD)
_MEANINGFUL = regex.compile(r"[\p{L}\p{N}\p{Extended_Pictographic}]")
_ACCENTED = regex.compile(r"(?<=[\p{Latin}\p{Greek}\p{Cyrillic}])\p{Mn}+")


def search_terms(text: str) -> list[str]:
    """Split text into search terms.

    Case, compatibility forms and the accents of Latin, Greek and Cyrillic letters are
    folded: many people leave accents out of queries. Chinese, Japanese, Thai, Lao, Khmer and
    Burmese runs become character pairs (a run of one character stays). Emoji are terms.

    Args:
        text: Any text.

    Returns:
        Terms in the order of the text, with repetitions.
    """
    plain = _fold(text)
    terms: list[str] = []
    end = 0
    for run in _RUNS.finditer(plain):
        terms += _spaced(plain[end : run.start()])
        terms += _pairs(_UNSPACED.findall(run.group()))
        end = run.end()
    return terms + _spaced(plain[end:])


def _fold(text: str) -> str:
    """Casefolded text without accents, in composed compatibility form."""
    decomposed = unicodedata.normalize("NFKD", text.casefold())
    return unicodedata.normalize("NFKC", _ACCENTED.sub("", decomposed))


def _spaced(text: str) -> list[str]:
    """Words of a script with spaces."""
    return [piece for piece in _BOUNDARY.split(text) if piece and _MEANINGFUL.search(piece)]


def _pairs(characters: list[str]) -> list[str]:
    """Overlapping pairs of characters; a lone one as it is."""
    return [a + b for a, b in pairwise(characters)] if len(characters) > 1 else characters
