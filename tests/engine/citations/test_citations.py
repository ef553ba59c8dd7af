"""Every citation is verbatim on both sides, in every script, wherever spans start and end.

Most tests drive `Transcript` directly: they emit slices of passages, token by token, between
tokens of the model's own, as the decode loop does.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from nest_engine import Citation, Passage
from nest_engine.citations.builder import CitationBuilder
from nest_engine.citations.runs import Run, Segment, verbatim_segments
from nest_engine.datastore.opener import OpenPassages
from nest_engine.datastore.token_index import Place
from nest_engine.decoding.loop import Emission
from nest_engine.lm.detokenizer import Detokenizer
from nest_engine.lm.tokenizer import Tokenizer
from nest_engine.transcript import Transcript
from nest_engine.words import count_words
from tests.texts import TEXTS, passages
from tests.tiny import TOKENIZERS, tiny_engine, tiny_tokenizer

EXACT = ("bytes", "metaspace", "unigram")
BY_NAME = {name: Tokenizer(tiny_tokenizer(name)) for name in TOKENIZERS}


class Writer:
    """Writes an answer from slices of passages and own tokens, and checks every piece of it."""

    def __init__(self, tokenizer: Tokenizer, texts: Sequence[Passage], *, min_words: int = 0, stop: Sequence[str] = ()):
        self.passages = list(texts)
        self.tokens = [tokenizer.encode(p.text) for p in texts]
        self.tokenizer = tokenizer
        ends = [np.array(t.ends, dtype=np.int32) for t in self.tokens]
        self.transcript = Transcript(Detokenizer(tokenizer), CitationBuilder(texts, ends, min_words), stop)
        self.min_words = min_words
        self.pieces: list[str] = []
        self.citations: list[Citation] = []
        self.runs: list[tuple[int, int, int]] = []  # passage, and range of the answer that a run may fill

    def copy(self, passage: int, start: int, end: int) -> Writer:
        """Emit tokens `start` to `end` of a passage as a span."""
        before = len(self.transcript._detokenizer.text)
        for position in range(start, min(end, len(self.tokens[passage].ids))):
            self._add(Emission(self.tokens[passage].ids[position], Place(passage, position), 0.2))
        self.runs.append((passage, before, len(self.transcript._detokenizer.text)))
        return self

    def own(self, tokens: str | Iterable[int]) -> Writer:
        """Emit tokens of the model's own."""
        for token in self.tokenizer.encode(tokens).ids if isinstance(tokens, str) else tokens:
            self._add(Emission(token, None, 0.8))
        return self

    def finish(self) -> list[Citation]:
        """End the answer; check it and return its citations."""
        self._take(self.transcript.finish())
        assert "".join(self.pieces) == self.transcript.text
        assert self.citations == self.transcript.citations
        self._check()
        return self.citations

    @property
    def text(self) -> str:
        return self.transcript.text

    def _add(self, emission: Emission) -> None:
        if not self.transcript.stopped:
            self._take(self.transcript.add(emission))

    def _take(self, piece) -> None:
        self.pieces.append(piece.text)
        self.citations += piece.citations
        given_out = len("".join(self.pieces))
        assert all(c.end <= given_out for c in piece.citations), "a citation of text that is not given out yet"

    def _check(self) -> None:
        last = 0
        known: dict[str, int] = {}
        for citation in self.citations:
            source = (citation.passage_id, citation.document_id)
            passage = next(p for p in self.passages if (p.id, p.document_id) == source)
            assert self.text[citation.start : citation.end] == citation.text
            assert passage.text[citation.source_start : citation.source_end] == citation.text
            assert citation.text == citation.text.strip()
            assert citation.text
            assert count_words(citation.text) >= self.min_words
            assert citation.start >= last, "in reading order, without overlap"
            last = citation.end
            number = known.setdefault(citation.document_id, len(known) + 1)
            assert citation.number == number
            assert citation.kind == "copied"
            assert citation.title == passage.title
            assert any(
                self.passages[number] is passage and start <= citation.start and citation.end <= end
                for number, start, end in self._merged_runs()
            ), "nothing but copied text is cited"

    def _merged_runs(self) -> list[tuple[int, int, int]]:
        """Runs, and those that stand one behind the other as one."""
        runs: list[tuple[int, int, int]] = []
        for passage, start, end in self.runs:
            joined = [(passage, first, end) for number, first, last in runs if (number, last) == (passage, start)]
            runs += [(passage, start, end), *joined]
        return runs


def one(texts: Sequence[Passage] | str, kind: str = "bytes", **arguments) -> Writer:
    texts = [Passage(texts)] if isinstance(texts, str) else texts
    return Writer(BY_NAME[kind], texts, **arguments)


# --- verbatim, wherever spans start and end ---------------------------------------------------


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("kind", EXACT)
def test_a_whole_text_is_cited_whole(kind, name):
    writer = one(TEXTS[name], kind).copy(0, 0, 10_000)
    citations = writer.finish()
    if kind == "unigram" and name == "control":
        return  # it reads `<s>` as two texts, with a space between them that is not in the passage
    (citation,) = citations
    assert citation.text == TEXTS[name].strip()


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("kind", ["bytes", "metaspace"])
def test_every_slice_between_own_tokens(kind, name):
    """Spans that begin and end anywhere, inside characters too, lose no more than the character at either end."""
    tokens = BY_NAME[kind].encode(TEXTS[name])
    for start in range(0, len(tokens.ids), 3):
        for size in (1, 2, 5, 17):
            end = min(start + size, len(tokens.ids))
            writer = one(TEXTS[name], kind).own("ab").copy(0, start, end).own("cd")
            citations = writer.finish()
            first = tokens.ends[start - 1] if start else 0
            whole = TEXTS[name][first : tokens.ends[end - 1]]
            cited = "".join(c.text for c in citations)
            lost = len("".join(whole.split())) - len("".join(cited.split()))
            assert lost <= 2, (start, end, whole, citations)
            if whole.isascii() and whole.strip():
                assert cited == whole.strip()


def test_a_cut_character_costs_itself_alone():
    """With byte fallback the answer's characters can be complete later than the passage's, behind a broken byte."""
    answer, source = "ab\ufffd\u05dc\u05d5 cd", "\u05c1\u05dc\u05d5"
    run = Run(0, 0, 2, 0, ends=[2, 2, 2, 3, 5], source_ends=[1, 1, 2, 2, 3])
    assert list(verbatim_segments(run, answer, source)) == [Segment(0, 3, 1, 2)]


@pytest.mark.parametrize("kind", TOKENIZERS)
@given(data=st.data())
@settings(max_examples=120, deadline=None)
def test_any_answer(kind, data):
    texts = passages(*data.draw(st.lists(st.sampled_from(sorted(TEXTS)), min_size=1, max_size=3, unique=True)))
    stop = data.draw(st.sampled_from([(), ("the",), ("。", " a"), ("é", "👩")]))
    writer = Writer(BY_NAME[kind], texts, min_words=data.draw(st.integers(0, 4)), stop=stop)
    for _ in range(data.draw(st.integers(1, 4))):
        if data.draw(st.booleans()):
            writer.own(data.draw(st.lists(st.integers(0, 520), max_size=4)))
        passage = data.draw(st.integers(0, len(texts) - 1))
        start = data.draw(st.integers(0, len(writer.tokens[passage].ids) - 1))
        writer.copy(passage, start, start + data.draw(st.integers(1, 20)))
    writer.finish()
    assert not any(s in writer.text for s in stop)


@pytest.mark.shared_data
@pytest.mark.parametrize("language", ["en", "es", "zh"])
@pytest.mark.parametrize("kind", TOKENIZERS)
def test_public_passages(shared_data, kind, language):
    lines = (shared_data / f"xquad.{language}.passages.jsonl").read_text(encoding="utf-8").splitlines()
    texts = [Passage(row["text"], title=row["title"], id=row["id"]) for row in map(json.loads, lines[::16])]
    random = np.random.default_rng(0)
    shown = 0
    for number, passage in enumerate(texts):
        writer = Writer(BY_NAME[kind], texts, min_words=3)
        for _ in range(3):
            other = int(random.integers(len(texts)))
            size = len(writer.tokens[number].ids)
            start = int(random.integers(size))
            writer.own(random.integers(5, 500, size=2).tolist()).copy(
                number, start, start + int(random.integers(2, 60))
            )
            writer.copy(other, 3, 12)
        shown += len(writer.finish())
        assert passage.text == texts[number].text
    assert shown > len(texts) * (1 if kind in ("unigram", "normalizing") else 2) / 2


@pytest.fixture(scope="module")
def demo_tokenizer(demo_model_dir) -> Tokenizer:
    return Tokenizer(AutoTokenizer.from_pretrained(demo_model_dir))


@pytest.mark.demo_model
@pytest.mark.parametrize("name", TEXTS)
def test_slices_with_the_demo_models_tokenizer(demo_tokenizer, name):
    tokenizer = demo_tokenizer
    size = len(tokenizer.encode(TEXTS[name]).ids)
    for start in range(0, size - 9, 4):
        writer = Writer(tokenizer, passages(name)).own(" So").copy(0, start, start + 23).own([start + 17])
        assert writer.finish()


@pytest.mark.demo_model
@pytest.mark.shared_data
@pytest.mark.parametrize("language", ["en", "es", "zh"])
def test_public_passages_with_the_demo_models_tokenizer(shared_data, demo_tokenizer, language):
    tokenizer = demo_tokenizer
    lines = (shared_data / f"xquad.{language}.passages.jsonl").read_text(encoding="utf-8").splitlines()
    for row in map(json.loads, lines[::8]):
        writer = Writer(tokenizer, [Passage(row["text"])])
        size = len(writer.tokens[0].ids)
        for start in range(0, size, 29):
            writer.own([200 + start]).copy(0, start, start + 29)
        citations = writer.finish()
        assert sum(len(c.text) for c in citations) > 0.8 * len(row["text"])


# --- merging, trimming, lengths ---------------------------------------------------------------

SENTENCE = "The old mill grinds rye every Friday in spring."


def positions(text: str, part: str) -> tuple[int, int]:
    """First and last token of a part of a text, in the `bytes` tokenizer."""
    ends = BY_NAME["bytes"].encode(text).ends
    at = text.index(part)
    return next(i for i, e in enumerate(ends) if e > at), next(i for i, e in enumerate(ends) if e >= at + len(part)) + 1


def test_runs_that_go_on_in_the_passage_merge():
    size = len(BY_NAME["bytes"].encode(SENTENCE).ids)
    (citation,) = one(SENTENCE).copy(0, 0, 5).copy(0, 5, 9).copy(0, 9, size).finish()
    assert (citation.start, citation.end) == (citation.source_start, citation.source_end) == (0, len(SENTENCE))


def test_runs_with_an_own_token_between_do_not_merge():
    first, second = one(SENTENCE).copy(0, 0, 6).own("x").copy(0, 6, 10_000).finish()
    assert first.source_end <= second.source_start
    assert first.end < second.start


def test_an_own_token_that_says_what_the_passage_says_is_not_copied():
    """It belongs to the model, though the text is contiguous on both sides."""
    ids = BY_NAME["bytes"].encode(SENTENCE).ids
    writer = one(SENTENCE).copy(0, 0, 6).own([ids[6]]).copy(0, 7, 10_000)
    assert len(writer.finish()) == 2
    assert writer.text == SENTENCE


def test_runs_that_skip_a_token_of_the_passage_do_not_merge():
    assert len(one(SENTENCE).copy(0, 0, 6).copy(0, 7, 10_000).finish()) == 2


def test_a_run_that_begins_again_does_not_merge():
    assert len(one(SENTENCE).copy(0, 0, 8).copy(0, 0, 8).finish()) == 2


def test_runs_of_two_passages_do_not_merge():
    texts = [Passage(SENTENCE, id="a"), Passage(SENTENCE, id="b")]
    first, second = one(texts).copy(0, 0, 8).copy(1, 8, 10_000).finish()
    assert [first.passage_id, second.passage_id] == ["a", "b"]


def test_white_space_at_the_ends_is_trimmed():
    text = "One two three.\n\n  Four five six.  \n"
    start, _ = positions(text, "\n\n")
    _, end = positions(text, "six.  \n")
    (citation,) = one(text).own("x").copy(0, start, end).finish()
    assert citation.text == "Four five six."
    assert text[citation.source_start : citation.source_end] == "Four five six."


def test_a_run_of_white_space_is_no_citation():
    text = "one \n\n   \t two"
    start, end = positions(text, "\n\n   \t")
    assert one(text).own("x").copy(0, start, end).own("y").finish() == []


@pytest.mark.parametrize(
    ("text", "words"), [("one two three", 3), ("don't stop", 2), ("安塞尔河发源", 3), ("👩‍🚀 🎉 !!", 0), ("a 3.5", 2)]
)
def test_shorter_runs_are_counted_but_not_shown(text, words):
    for least in range(words + 2):
        writer = one(text, min_words=least).copy(0, 0, 10_000)
        assert len(writer.finish()) == (words >= least)
        assert writer.transcript.attributed == writer.transcript.tokens == len(writer.tokens[0].ids)


def test_a_short_run_takes_no_number():
    texts = passages("river", "bread")
    first, second = one(texts, min_words=3).copy(0, 0, 1).copy(1, 0, 30).own("x").copy(0, 0, 30).finish()
    assert [(first.document_id, first.number), (second.document_id, second.number)] == [("bread", 1), ("river", 2)]


# --- numbers and documents --------------------------------------------------------------------


def test_numbers_follow_the_reading_order_and_are_one_per_document():
    texts = [
        Passage("one two three four", id="a", document_id="D"),
        Passage("five six seven eight", id="b", document_id="E"),
        Passage("nine ten eleven twelve", id="c", document_id="D"),
    ]
    citations = (
        one(texts).copy(1, 0, 99).own(".").copy(2, 0, 99).own(".").copy(0, 0, 99).own(".").copy(1, 0, 99).finish()
    )
    assert [(c.passage_id, c.number) for c in citations] == [("b", 1), ("c", 2), ("a", 2), ("b", 1)]


def test_equal_texts_in_two_documents_stay_two_sources():
    texts = [Passage(SENTENCE, document_id="A"), Passage(SENTENCE, document_id="B")]
    first, second = one(texts).copy(0, 0, 99).own("x").copy(1, 0, 99).finish()
    assert (first.document_id, first.number) == ("A", 1)
    assert (second.document_id, second.number) == ("B", 2)


def test_equal_texts_in_two_documents_both_reach_the_datastore():
    """They have the same id by default, which is made from their content, and are two sources all the same."""
    texts = [Passage(SENTENCE, document_id="A"), Passage(SENTENCE, document_id="B"), Passage(SENTENCE, document_id="A")]
    engine = tiny_engine()
    answer = engine.generate("Which mill?", passages=texts, max_new_tokens=2)
    assert [scored.passage.document_id for scored in answer.passages] == ["A", "B"]
    opened = OpenPassages(engine._opener, engine.config)
    index = opened.add(texts[:2])
    assert [passage.document_id for passage in opened.passages] == ["A", "B"]
    assert {index.place(entry).passage for entry in range(len(index))} == {0, 1}


def test_the_place_in_the_document():
    document = "Chapter one.\n\n" + SENTENCE + " The end."
    known = Passage(SENTENCE, id="p", document_id="D", offset=document.index(SENTENCE))
    start, end = positions(SENTENCE, "grinds rye every")
    (citation,) = one([known]).own("x").copy(0, start, end).finish()
    assert document[citation.document_start : citation.document_start + len(citation.text)] == citation.text
    (citation,) = one([Passage(SENTENCE)]).copy(0, 0, 99).finish()
    assert citation.document_start is None


def test_the_title_is_never_cited():
    """Offsets refer to the text alone, also where the title says the same."""
    texts = [Passage(SENTENCE, title=SENTENCE)]
    (citation,) = one(texts).copy(0, 0, 99).finish()
    assert (citation.source_start, citation.source_end) == (0, len(SENTENCE))


# --- stop strings and streaming ---------------------------------------------------------------


def test_a_stop_string_cuts_the_citation():
    writer = one(SENTENCE, stop=["every"]).copy(0, 0, 99)
    (citation,) = writer.finish()
    assert writer.text == "The old mill grinds rye "
    assert citation.text == "The old mill grinds rye"


def test_a_stop_string_over_two_tokens_and_two_runs():
    texts = [*passages("river"), Passage(SENTENCE)]
    writer = one(texts, stop=["mill grin"]).copy(0, 0, 20).own(" ").copy(1, 0, 99)
    first, second = writer.finish()
    assert second.text == "The old"
    assert writer.text.endswith("The old ")
    assert first.document_id == "river"


def test_what_is_too_short_after_the_cut_is_not_shown():
    assert one(SENTENCE, stop=["mill"], min_words=3).copy(0, 0, 99).finish() == []


def test_a_stop_string_at_the_very_start():
    writer = one(SENTENCE, stop=["The"]).copy(0, 0, 99)
    assert writer.finish() == []
    assert writer.text == ""


def test_text_is_held_back_only_while_a_stop_string_may_begin():
    writer = one("we eat an apple and anchovies", stop=["and then"])
    writer.copy(0, 0, 99)
    given_out = "".join(writer.pieces)
    assert given_out == "we eat an apple and anchovies"
    writer.finish()


def test_a_citation_waits_while_a_stop_string_may_begin_in_it():
    """It is given out whole when the stop string does not come, and cut when it does."""
    for own, expected in ((["x"], "we eat apples and"), (["hen"], "we eat apples")):
        writer = one("we eat apples and", stop=["and then"]).copy(0, 0, 99).own(" t")
        assert writer.citations == []
        writer.own(own[0])
        assert [c.text for c in writer.finish()] == [expected]


def test_a_citation_comes_with_the_piece_that_completes_it():
    """As soon as the run is over, and not only at the end."""
    writer = one(passages("river", "bread")).copy(0, 0, 30)
    assert writer.citations == []
    writer.own("x")
    assert len(writer.citations) == 1
    writer.copy(1, 0, 30)
    assert len(writer.citations) == 1
    assert len(writer.finish()) == 2


# --- tokenizers that change what they read ----------------------------------------------------


def test_a_normalizing_tokenizer_is_cited_where_it_is_verbatim():
    """It says `the first office`, the passage `The ﬁrst office`: only what is equal is cited."""
    text = "The ﬁrst office in Velmar opens at nine on weekdays."
    citations = one(text, "normalizing").copy(0, 0, 99).finish()
    cited = [c.text for c in citations]
    assert any("elmar opens at nine on weekdays." in c for c in cited)
    assert not any("ﬁ" in c or "T" in c for c in cited)


def test_a_sentencepiece_answer_begins_without_its_space():
    """The decoder strips the space before an answer's first word; the ranges stay right."""
    (citation,) = one(SENTENCE, "metaspace").copy(0, 2, 99).finish()
    assert citation.start == 0
    assert citation.source_start > 0


@pytest.mark.parametrize("kind", EXACT)
def test_a_text_that_begins_with_spaces(kind):
    text = "   Three spaces lead.  Two  spaces stand."
    (citation,) = one(text, kind).own("So:").copy(0, 0, 99).finish()
    assert citation.text == text.strip()


def test_control_tokens_of_the_model_between_copied_ones():
    assert len(one(SENTENCE).copy(0, 0, 6).own([1]).copy(0, 6, 99).finish()) == 2


# --- the whole engine -------------------------------------------------------------------------


@pytest.mark.parametrize("kind", TOKENIZERS)
@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
def test_the_engines_citations_streamed_and_at_once(architecture, kind):
    engine = tiny_engine(architecture, kind)
    texts = [*passages(), Passage(TEXTS["river"], id="again", title="River")]
    shown = 0
    for seed in range(4):
        arguments = {
            "passages": texts, "gamma": 1e-6, "delta": 1.0, "max_new_tokens": 60, "min_citation_words": 1,
            "temperature": 0.9, "seed": seed,
        }  # fmt: skip
        answer = engine.generate("the river", **arguments)
        pieces = list(engine.stream("the river", **arguments))
        assert "".join(piece.text for piece in pieces) == answer.text
        assert tuple(c for piece in pieces for c in piece.citations) == answer.citations
        assert pieces[-1].generation.text == answer.text
        assert all(piece.generation is None for piece in pieces[:-1])
        by_id = {passage.id: passage for passage in texts}
        for citation in answer.citations:
            passage = by_id[citation.passage_id]
            assert answer.text[citation.start : citation.end] == citation.text
            assert passage.text[citation.source_start : citation.source_end] == citation.text
        shown += len(answer.citations)
    assert shown > 0


@pytest.mark.parametrize("kind", ["bytes", "metaspace"])
def test_an_answer_that_starts_at_a_sentence_begins_without_its_space(kind):
    engine = tiny_engine("llama", kind)
    text = "The mill is old. The river bends at the mill and freezes in winter."
    settings = {"span_start": "sentence", "delta": 1.0, "gamma": 1e-6, "alpha": 2.0, "max_new_tokens": 24}
    question = "Where does the river freeze in winter?"
    answer = engine.generate(question, passages=[Passage(text)], **settings)
    assert answer.text.startswith("The river bends")
    first = answer.citations[0]
    assert (first.start, first.source_start) == (0, text.index("The river"))
    assert "".join(p.text for p in engine.stream(question, passages=[Passage(text)], **settings)) == answer.text
