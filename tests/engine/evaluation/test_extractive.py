"""The baselines without a model."""

from nest_engine import Passage
from nest_engine.evaluation.extractive import best_sentence, extract, first_tokens, split_sentences
from tests.texts import CHINESE, LIGHTHOUSE
from tests.tiny import tiny_loaded

PASSAGE = Passage(text=LIGHTHOUSE)


def test_sentences_cover_the_text():
    text = "One is 3.5 long.  Two?\nThree"
    assert [text[a:b] for a, b in split_sentences(text)] == ["One is 3.5 long.", "Two?", "Three"]
    assert len(split_sentences(CHINESE)) == 5


def test_the_best_sentence_shares_the_rarest_words():
    start = best_sentence("How far could the new lamp be seen?", PASSAGE)
    assert LIGHTHOUSE[start:].startswith("The new lamp could be seen")
    assert best_sentence("Zebras?", PASSAGE) == 0


def test_extract():
    question = "How high is the tower today?"
    assert extract(question, [PASSAGE], from_best_sentence=False) == LIGHTHOUSE
    assert extract(question, [PASSAGE], from_best_sentence=True).startswith("Today the tower is 42.5 m high")
    assert extract(question, [], from_best_sentence=True) == ""


def test_first_tokens():
    tokenizer = tiny_loaded().tokenizer
    head = first_tokens(LIGHTHOUSE, tokenizer, 7)
    assert LIGHTHOUSE.startswith(head)
    assert tokenizer.encode(head).ids == tokenizer.encode(LIGHTHOUSE).ids[:7]
    assert first_tokens("short", tokenizer, 99) == "short"
