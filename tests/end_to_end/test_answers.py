"""The main job on real input: the demo model answers from documents, cites them, and stops."""

from __future__ import annotations

import itertools

import pytest

from nest_engine import NestEngine
from nest_engine.retrieval import FaissSource
from tests.texts import passages

pytestmark = pytest.mark.demo_model

ON_TOPIC = (
    "When was the lighthouse at Cape Morwen built?",
    "What burned in the lamp of the lighthouse?",
    "How long must the dough rest?",
    "Where does the river Ansel rise?",
    "How hot must the oven be for the bread?",
)
OFF_TOPIC = ("hello", "thanks", "Tell me a joke.", "Who won the tennis final last night?", "What is 17 times 23?")
LIMIT = 96


@pytest.fixture(scope="module")
def source() -> FaissSource:
    return FaissSource.from_passages(passages("lighthouse", "bread", "river", "emoji", "crlf", "spaces", "control"))


@pytest.fixture(scope="module")
def answers(demo_engine: NestEngine, source: FaissSource):
    return [demo_engine.generate(question, source=source, max_new_tokens=LIMIT) for question in ON_TOPIC]


def test_on_topic_questions_are_answered_with_verbatim_citations(answers):
    texts = {p.id: p.text for p in passages()}
    for answer in answers:
        assert answer.citations
        assert answer.stats.attributed_tokens > answer.stats.tokens / 2
        for c in answer.citations:
            assert answer.text[c.start : c.end] == c.text == texts[c.passage_id][c.source_start : c.source_end]
    numbers = [c.number for c in answers[0].citations]
    assert numbers[0] == 1


def test_most_answers_are_drawn_from_the_right_document(answers):
    expected = ("lighthouse", "lighthouse", "bread", "river", "bread")
    right = [any(c.passage_id == e for c in a.citations) for a, e in zip(answers, expected, strict=True)]
    assert sum(right) >= 4


def test_most_answers_end_by_themselves(answers):
    assert sum(answer.finish_reason == "end" for answer in answers) > len(answers) / 2


def test_drafts_save_forward_passes(answers):
    tokens, calls = sum(a.stats.tokens for a in answers), sum(a.stats.lm_calls for a in answers)
    assert tokens > 2 * calls


def test_counts_add_up(answers):
    for answer in answers:
        s = answer.stats
        assert s.tokens == s.lm_calls + s.accepted - (answer.finish_reason == "end")
        assert s.accepted <= s.drafted
        assert s.attributed_tokens + s.neighbor_hits <= s.tokens
        assert s.steps <= s.tokens + 1
        parts = s.seconds.retrieve + s.seconds.encode + s.seconds.prefill + s.seconds.decode
        assert s.seconds.total == pytest.approx(parts)


@pytest.mark.parametrize("question", OFF_TOPIC)
def test_small_talk_and_far_questions_give_no_citations(demo_engine, source, question):
    answer = demo_engine.generate(question, source=source, max_new_tokens=8)
    assert answer.citations == ()
    assert answer.passages == ()


def test_a_stream_is_the_answer_in_pieces(demo_engine, source, answers):
    pieces = list(demo_engine.stream(ON_TOPIC[0], source=source, max_new_tokens=LIMIT))
    assert len(pieces) > 3
    assert "".join(piece.text for piece in pieces) == answers[0].text
    assert tuple(itertools.chain.from_iterable(piece.citations for piece in pieces)) == answers[0].citations
    assert pieces[-1].generation.text == answers[0].text


@pytest.mark.parametrize("chunk", [1, 7, 64])
def test_the_draft_chunk_does_not_show(demo_engine, source, answers, chunk):
    answer = demo_engine.generate(ON_TOPIC[0], source=source, max_new_tokens=LIMIT, draft_chunk=chunk)
    assert (answer.text, answer.citations) == (answers[0].text, answers[0].citations)
