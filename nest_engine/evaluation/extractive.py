"""Answers without a model: what the best passage says, from its start or from its best sentence on.

Recall rewards copying, so these stand beside every system that copies.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from nest_engine.datastore.relevance import weigh_terms
from nest_engine.datastore.sentences import sentence_bounds
from nest_engine.lm.tokenizer import Tokenizer
from nest_engine.passages import Passage
from nest_engine.retrieval.terms import search_terms


def first_tokens(text: str, tokenizer: Tokenizer, limit: int) -> str:
    """The first tokens of a text, as text.

    Args:
        text: Any text.
        tokenizer: Counts them.
        limit: How many.
    """
    ends = tokenizer.encode(text).ends
    return text[: ends[limit - 1]] if len(ends) > limit else text


def split_sentences(text: str) -> list[tuple[int, int]]:
    """Ranges of the sentences of a text, in characters, without the white space between them."""
    bounds = [0, *sentence_bounds(text)]
    if bounds[-1] < len(text):
        bounds.append(len(text))
    ranges = []
    for start, end in pairwise(bounds):
        sentence = text[start:end]
        if sentence.strip():
            ranges.append((end - len(sentence.lstrip()), start + len(sentence.rstrip())))
    return ranges


def best_sentence(question: str, passage: Passage) -> int:
    """Where the sentence starts that shares most with a question, in characters of the passage's text.

    Shared terms weigh the more, the fewer sentences of the passage have them; of equally good
    sentences the first one wins.
    """
    ranges = split_sentences(passage.text)
    terms = [set(search_terms(passage.text[start:end])) for start, end in ranges]
    weights = weigh_terms(terms, search_terms(question))
    scores = [sum(weight for term, weight in weights.items() if term in sentence) for sentence in terms]
    return ranges[scores.index(max(scores))][0]


def extract(question: str, found: Sequence[Passage], *, from_best_sentence: bool) -> str:
    """The best passage from its start, or from its best sentence on; nothing where none was found."""
    if not found:
        return ""
    start = best_sentence(question, found[0]) if from_best_sentence else 0
    return found[0].text[start:]
