"""What a model wrote by itself, traced back to the passages."""

from __future__ import annotations

import itertools

import pytest

from nest_engine.citations.matching import Matcher
from tests.texts import BREAD, CHINESE, LIGHTHOUSE, passages
from tests.tiny import tiny_engine


def trace(answer: str, sources: list[str], words: int = 6, gaps=None) -> list[tuple[str, int]]:
    found = list(Matcher(sources, words).matches(answer, gaps or [(0, len(answer))]))
    for segment in found:
        source = sources[segment.passage][segment.source_start : segment.source_start + segment.length]
        assert source == answer[segment.start : segment.end]
        assert segment.kind == "matched"
    return [(answer[s.start : s.end], s.passage) for s in found]


def test_a_run_is_maximal_and_ends_at_word_borders():
    piece = " ".join(LIGHTHOUSE.split(" ")[3:12]).rstrip(".")
    assert piece in LIGHTHOUSE
    assert trace(f"So they say: {piece}xyz and nothing else.", [LIGHTHOUSE]) == [(piece.rsplit(" ", 1)[0], 0)]
    assert trace(f"So they say {piece}", [BREAD, LIGHTHOUSE]) == [(piece, 1)]


def test_short_runs_do_not_count():
    piece = " ".join(LIGHTHOUSE.split(" ")[3:8])
    assert trace(f"Yes: {piece}!", [LIGHTHOUSE]) == []
    assert trace(f"Yes: {piece}!", [LIGHTHOUSE], words=5) != []


def test_two_characters_count_as_a_word_in_scripts_without_spaces():
    piece = CHINESE[4:20]
    assert [p for _, p in trace(f"A {piece} B", [CHINESE])] == [0]
    assert trace(f"A {CHINESE[4:12]} B", [CHINESE]) == []


def test_only_gaps_are_traced():
    piece = " ".join(LIGHTHOUSE.split(" ")[:9])
    answer = f"{piece} and {piece}"
    assert len(trace(answer, [LIGHTHOUSE])) == 2
    assert len(trace(answer, [LIGHTHOUSE], gaps=[(0, len(piece))])) == 1


def test_of_equally_long_runs_the_first_passage_is_cited():
    piece = " ".join(LIGHTHOUSE.split(" ")[:9])
    assert trace(piece, [BREAD, LIGHTHOUSE, LIGHTHOUSE]) == [(piece, 1)]


def saying(engine, text: str):
    """A logits processor under which the model says a text and ends."""
    ids = [*engine.model.tokenizer.encode(text).ids, *engine.model.lm.end_ids]
    starts: list[int] = []

    def process(tokens, logits):
        starts[:] = starts or [tokens.shape[1]]
        logits = logits.clone()
        logits[:, ids[min(tokens.shape[1] - starts[0], len(ids) - 1)]] = 1e4
        return logits

    return process


@pytest.mark.parametrize("mode", ["ra", "lossless"])
def test_own_words_are_cited_as_matched_and_told_apart(mode):
    engine = tiny_engine("llama")
    piece = " ".join(LIGHTHOUSE.split(" ")[2:14])
    text = f"I think that {piece}, or so."
    pieces = list(
        engine.stream(
            "Q?", passages=passages("bread", "lighthouse"), mode=mode, logits_processors=[saying(engine, text)]
        )
    )
    answer = pieces[-1].generation
    assert answer.text == text
    assert "".join(p.text for p in pieces) == text
    assert all(not p.citations for p in pieces[:-1])
    assert pieces[-1].citations == answer.citations
    kinds = {c.kind for c in answer.citations}
    assert kinds == ({"matched"} if mode == "ra" else {"copied"}) or kinds == {"copied", "matched"}
    assert {c.passage_id for c in answer.citations} == {"lighthouse"}
    covered = sorted((c.start, c.end) for c in answer.citations)
    assert all(a[1] <= b[0] for a, b in itertools.pairwise(covered)), "no range is cited twice"
    off = engine.generate(
        "Q?", passages=passages("lighthouse"), mode="ra", min_match_words=0, logits_processors=[saying(engine, text)]
    )
    assert off.citations == ()
