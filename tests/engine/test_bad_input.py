"""Bad input gives a clear, typed error that names the fix, and the engine goes on working."""

from __future__ import annotations

import logging

import pytest
import torch

from nest_engine import NestConfig, NestEngine, Passage, ScoredPassage
from nest_engine.errors import (
    ConfigError,
    ContextOverflowError,
    ModelNotFoundError,
    NestError,
    NonFiniteLogitsError,
    PassageError,
    PromptError,
    SourceError,
)
from nest_engine.retrieval.source import ListSource
from tests.texts import CONTROL, TEXTS, passages
from tests.tiny import STRICT, greedy, tiny_engine

MODES = ("lm", "ra", "knn-lm", "nest", "ra-nest", "lossless")
WINDOW = 400
QUESTION = "Who built the mill?"


@pytest.fixture(scope="module")
def engine() -> NestEngine:
    return tiny_engine(config=NestConfig(max_new_tokens=12), max_position_embeddings=WINDOW)


@pytest.fixture(scope="module")
def usual(engine) -> str:
    """What the engine answers when all is well."""
    return engine.generate(QUESTION, passages=passages("river")).text


@pytest.fixture(autouse=True)
def still_works(engine, usual):
    """After each test the engine answers as it did before."""
    yield
    answer = engine.generate(QUESTION, passages=passages("river"))
    assert answer.text == usual
    assert answer.stats.tokens == 12


# --- prompts ----------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("prompt", ["", "  \n\t", [], [{"role": "user", "content": " "}]])
def test_an_empty_prompt(engine, mode, prompt):
    with pytest.raises(PromptError, match="prompt is empty: ask a question"):
        engine.generate(prompt, passages=passages("river"), mode=mode)


def test_a_malformed_message(engine):
    with pytest.raises(PromptError, match="'role'"):
        engine.generate([{"text": "Why?"}], mode="lm")


def test_errors_of_the_call_come_at_once_and_not_with_the_first_piece(engine):
    for arguments in ({"gamma": 2}, {"gama": 0.5}, {"source": ListSource([]), "passages": []}):
        with pytest.raises(ConfigError):
            engine.stream("Why?", **arguments)
    with pytest.raises(PromptError):
        engine.stream("")


@pytest.mark.parametrize("mode", MODES)
def test_prompt_and_limit_over_the_window(engine, mode):
    with pytest.raises(ContextOverflowError, match=r"context window is 400.*max_new_tokens") as caught:
        engine.generate(QUESTION, passages=passages("river"), mode=mode, max_new_tokens=WINDOW)
    assert "400" in str(caught.value)
    assert isinstance(caught.value, PromptError)
    with pytest.raises(ContextOverflowError, match="shorten the prompt"):
        engine.generate("why " * 500, passages=passages("river"), mode=mode)


def test_prompt_and_limit_that_just_fit(engine):
    room = WINDOW - engine.generate(QUESTION, mode="lm", max_new_tokens=1).stats.prompt_tokens
    answer = engine.generate(QUESTION, passages=passages("river"), max_new_tokens=room, mode="nest", gamma=1e-3)
    assert answer.stats.tokens <= room
    with pytest.raises(ContextOverflowError):
        engine.generate(QUESTION, passages=passages("river"), max_new_tokens=room + 1)


def test_passages_too_many_for_the_prompt_are_left_out_with_a_warning(engine, caplog):
    with caplog.at_level(logging.WARNING):
        answer = engine.generate(QUESTION, passages=passages("lighthouse", "river", "bread"), mode="ra")
    assert answer.stats.tokens > 0
    assert "left out" in caplog.text
    assert len(answer.passages) == 3


# --- passages ---------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("given", ["passages", "source", "nothing"])
def test_no_passages(engine, caplog, mode, given):
    """The plain model's answer, without citations, with a warning where passages were to be used."""
    arguments = {"passages": {"passages": []}, "source": {"source": ListSource([])}, "nothing": {}}[given]
    with caplog.at_level(logging.WARNING):
        answer = engine.generate(QUESTION, mode=mode, **arguments)
    assert answer.citations == ()
    assert answer.stats.attributed_tokens == 0
    assert answer.text == engine.generate(QUESTION, mode="lm").text
    assert answer.stats.lambda_mean == 1
    assert ("no passages" in caplog.text) == (mode != "lm")


def test_the_plain_answer_is_that_of_transformers(engine):
    tokenizer = engine.model.tokenizer
    prompt = engine._prompts.build(QUESTION, task="question").ids
    expected = greedy(engine.model.lm, prompt, 12)
    answer = engine.generate(QUESTION)
    assert answer.text.rstrip("\ufffd") == tokenizer.decode(expected).rstrip("\ufffd")


@pytest.mark.parametrize("text", ["", " ", "\n\t \u00a0", "\u3000"])
def test_an_empty_passage(text):
    with pytest.raises(PassageError, match=r"no text: drop empty"):
        Passage(text)
    with pytest.raises(PassageError, match="'p7'"):
        Passage(text, id="p7")


@pytest.mark.parametrize("text", [None, 3, b"bytes", ["a"]])
def test_a_passage_that_is_no_text(text):
    with pytest.raises(PassageError, match=r"must be a string, not .+; convert"):
        Passage(text)
    with pytest.raises(PassageError, match="title must be a string"):
        Passage("text", title=text)


@pytest.mark.parametrize("item", ["a text", {"text": "a"}, None, ("id", "text"), ScoredPassage(Passage("a"))])
def test_something_else_than_passages(engine, item):
    with pytest.raises(PassageError, match=r"must be Passage objects, not .+Passage\(text="):
        engine.generate(QUESTION, passages=[Passage("fine"), item])


def test_a_passage_longer_than_the_window(engine):
    """It is read in windows and stays one passage."""
    long = Passage(" ".join(TEXTS.values()), id="long")
    assert len(engine.model.tokenizer.encode(long.text).ids) > 2 * WINDOW
    for mode in ("nest", "knn-lm", "lossless"):
        answer = engine.generate(QUESTION, passages=[long], mode=mode, gamma=1e-5, delta=1.0)
        assert answer.stats.tokens == 12
    answer = engine.generate(QUESTION, passages=[long], mode="ra")
    assert answer.text == engine.generate(QUESTION, mode="lm").text, "it fits in no prompt"


def test_a_passage_of_one_token(engine):
    for mode in MODES:
        assert engine.generate(QUESTION, passages=[Passage("a")], mode=mode).stats.tokens == 12


@pytest.mark.parametrize("mode", MODES)
def test_control_tokens_in_passages_titles_and_questions(engine, mode):
    evil = [Passage(CONTROL, title=CONTROL[:80])]
    answer = engine.generate(CONTROL[:60], passages=evil, mode=mode, gamma=1e-6, delta=1.0, max_new_tokens=30)
    assert not any(token in answer.text for token in ("<|im_end|>", "<|im_start|>")) or answer.citations


def test_no_span_emits_a_control_token(engine):
    from nest_engine.decoding.loop import DecodeLoop

    config = engine.config.replace(gamma=1e-9, delta=1.0, max_new_tokens=60)
    texts = passages("control")
    index = engine._opener.index(texts, engine._opener.encode(texts, config), config)
    emissions = list(DecodeLoop(engine.model.lm, [5, 6, 7], index, config).run())
    assert sum(e.place is not None for e in emissions) > 20
    assert not any(e.token in engine.model.tokenizer.control_ids for e in emissions if e.place is not None)


# --- settings ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "hint"),
    [
        ({"mode": "rag"}, "'ra-nest'"),
        ({"gamma": 0}, "above 0 and at most 1"),
        ({"gamma": 1.5}, "above 0 and at most 1"),
        ({"tau": 0}, "above 0"),
        ({"top_passages": 0}, "at least 1"),
        ({"neighbors": 0}, "at least 1"),
        ({"max_new_tokens": 0}, "at least 1"),
        ({"temperature": -1}, "0 (greedy)"),
        ({"alfa": 0.3}, "alpha"),
    ],
)
def test_bad_settings(engine, settings, hint):
    with pytest.raises(ConfigError) as caught:
        engine.generate(QUESTION, passages=passages("river"), **settings)
    assert hint in str(caught.value)
    assert next(iter(settings)) in str(caught.value)


def test_source_and_passages_together(engine):
    with pytest.raises(ConfigError, match="source or passages, not both"):
        engine.generate(QUESTION, source=ListSource(passages("river")), passages=passages("river"))


def test_another_key_layer_needs_another_engine(engine):
    with pytest.raises(ConfigError, match="make another engine"):
        engine.generate(QUESTION, key_layer="penultimate")


# --- sources ----------------------------------------------------------------------------------


class Source:
    """Does what the test wants."""

    def __init__(self, result):
        self.result = result

    def search(self, query, k):
        if isinstance(self.result, Exception):
            raise self.result
        return self.result


@pytest.mark.parametrize("error", [RuntimeError("database is down"), KeyError("x"), SourceError("database is down")])
def test_a_source_that_fails(engine, error):
    with pytest.raises(SourceError) as caught:
        engine.generate(QUESTION, source=Source(error))
    if not isinstance(error, SourceError):
        assert "Source.search failed" in str(caught.value)
        assert caught.value.__cause__ is error


@pytest.mark.parametrize("result", [[Passage("a")], ["text"], [None], [(Passage("a"), 0.5)]])
def test_a_source_that_returns_something_else(engine, result):
    with pytest.raises(SourceError, match="must return ScoredPassage items"):
        engine.generate(QUESTION, source=Source(result))


@pytest.mark.parametrize("result", [None, 3])
def test_a_source_that_returns_no_list(engine, result):
    with pytest.raises(SourceError):
        engine.generate(QUESTION, source=Source(result))


def test_a_source_without_a_search(engine):
    with pytest.raises(SourceError, match="search"):
        engine.generate(QUESTION, source=object())


def test_a_source_that_returns_too_many(engine):
    found = [ScoredPassage(Passage(f"Passage number {i}.")) for i in range(9)]
    assert len(engine.generate(QUESTION, source=Source(found), top_passages=4).passages) == 4


def test_irrelevant_passages_are_dropped(engine):
    found = [ScoredPassage(Passage("near"), relevance=0.6), ScoredPassage(Passage("far"), relevance=0.2)]
    source = Source(found)
    assert len(engine.generate(QUESTION, source=source).passages) == 2
    assert [s.passage.text for s in engine.generate(QUESTION, source=source, min_relevance=0.5).passages] == ["near"]
    source.min_relevance = 0.7
    answer = engine.generate(QUESTION, source=source)
    assert answer.passages == answer.citations == ()
    assert answer.text == engine.generate(QUESTION, mode="lm").text
    assert len(engine.generate(QUESTION, source=source, min_relevance=float("-inf")).passages) == 2


def test_passages_without_a_relevance_are_kept(engine):
    source = Source([ScoredPassage(Passage("no meaning"), score=0.001)])
    assert len(engine.generate(QUESTION, source=source, min_relevance=0.9).passages) == 1


# --- models -----------------------------------------------------------------------------------


def test_a_model_that_is_not_there(tmp_path):
    for name in ("no-such-model", str(tmp_path / "nothing"), tmp_path / "nothing.gguf"):
        with pytest.raises(ModelNotFoundError, match="give a demo model"):
            NestEngine.from_pretrained(name)


@pytest.mark.parametrize("prompt", [QUESTION, [{"role": "user", "content": QUESTION}]])
def test_a_model_without_chat_template(prompt):
    """The plain prompt of the paper, without a template around it."""
    plain = tiny_engine(config=NestConfig(max_new_tokens=8), chat_template=None)
    answer = plain.generate(prompt, passages=passages("river"), mode="ra-nest", gamma=1e-4)
    assert answer.stats.tokens == 8
    wording = f"Question: {QUESTION} Answer:" if isinstance(prompt, str) else QUESTION
    expected = len(plain.model.tokenizer.encode(wording).ids)
    assert plain.generate(prompt, mode="lm").stats.prompt_tokens == expected


def test_a_template_that_refuses_the_messages():
    strict = tiny_engine(config=NestConfig(max_new_tokens=4, mode="lm"), chat_template=STRICT)
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": QUESTION}]
    with pytest.raises(PromptError, match="System role not supported"):
        strict.generate(messages)
    assert strict.generate(messages[1:]).stats.tokens > 0


def test_logits_that_are_not_finite(engine):
    def poison(tokens, logits):
        return logits * float("nan")

    with pytest.raises(NonFiniteLogitsError, match=r"logits processors|float32"):
        engine.generate(QUESTION, passages=passages("river"), logits_processors=[poison])


def test_processors_that_ban_everything(engine):
    with pytest.raises(NonFiniteLogitsError, match="banned"):
        engine.generate(QUESTION, mode="lm", logits_processors=[lambda tokens, logits: logits - torch.inf])


def test_a_processor_that_fails(engine):
    def broken(tokens, logits):
        raise ZeroDivisionError("the caller's own error")

    with pytest.raises(ZeroDivisionError, match="own error"):
        engine.generate(QUESTION, mode="lm", logits_processors=[broken])


def test_a_stream_that_is_closed_early(engine):
    stream = engine.stream(QUESTION, passages=passages("river"), max_new_tokens=40)
    next(stream)
    stream.close()


@pytest.mark.parametrize("text", ["a\ud800b", "\udcff"])
def test_lone_surrogates_in_questions_and_passages(engine, text):
    answer = engine.generate(text, passages=[Passage(text)], gamma=1e-5, delta=1.0)
    assert answer.stats.tokens == 12


def test_a_prompt_of_characters_that_the_vocabulary_lacks():
    """A raw prompt can come out empty; that is the caller's error and not a crash."""
    unknown = tiny_engine(tokenizer="unknown", config=NestConfig(max_new_tokens=4), chat_template=None)
    assert unknown.generate("安塞尔", passages=[Passage("安塞尔 river")]).stats.tokens == 4
    assert unknown.generate("安塞尔", mode="lm", task="raw").stats.tokens >= 0


def test_all_errors_are_ours():
    for error in (ConfigError, PromptError, PassageError, SourceError, ModelNotFoundError, NonFiniteLogitsError):
        assert issubclass(error, NestError)
        assert len(error.__bases__) == 2, "and a built-in error that callers may expect"
