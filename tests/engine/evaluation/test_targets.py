"""Texts to predict: which tokens count, which passages may be retrieved; and what is made of them."""

import numpy as np
import pytest

from nest_engine import NestConfig, Passage
from nest_engine.evaluation import targets
from nest_engine.evaluation.answers import AnswerFile
from nest_engine.evaluation.perplexity import Scorer, TokenParts, gather
from nest_engine.evaluation.prediction import TUNED, choose, predict
from nest_engine.evaluation.runner import Measured
from nest_engine.evaluation.systems import systems_of
from nest_engine.evaluation.tasks import Choice, Question
from nest_engine.evaluation.wikitext import Article
from nest_engine.retrieval import ListSource
from tests.texts import BREAD, LIGHTHOUSE, RIVER
from tests.tiny import tiny_engine

ARTICLES = (
    Article("1", "River", f"{RIVER} The <unk> mill. {LIGHTHOUSE} {RIVER}"),
    Article("2", "Bread", f"{BREAD} {LIGHTHOUSE} {BREAD}"),
    Article("3", "Short", "Too short."),
)


def config_of(mode):
    return NestConfig(mode=mode, top_passages=2, alpha=0.8, mu=0.02)


@pytest.fixture(scope="module")
def engine():
    return tiny_engine(config=config_of("nest"))


@pytest.fixture
def short(monkeypatch):
    monkeypatch.setattr(targets, "PREFIX_TOKENS", 20)
    monkeypatch.setattr(targets, "TARGET_TOKENS", 150)


def test_article_targets(engine, short):
    passages = targets.article_passages(ARTICLES, 25)
    tokenizer = engine.model.tokenizer
    first, second = targets.article_targets(engine, ARTICLES, targets.VARIANTS[0], passages)
    ids = tokenizer.encode(ARTICLES[0].text).ids
    assert first.prompt([]) == [*tokenizer.prefix, *ids[:20]]
    assert list(first.token_ids) == ids[20:170]
    assert ARTICLES[0].text.startswith(first.query)
    background = first.prompt([Passage(text="Background.")])
    assert background[-20:] == ids[:20]
    assert len(background) > 22
    # What is not counted spells just <unk>, and perhaps the space before it.
    hidden = [token for token, counts in zip(first.token_ids, first.counted, strict=True) if not counts]
    assert tokenizer.decode(hidden).strip() == "<unk>"
    assert all(second.counted)


def test_what_may_be_retrieved(engine, short):
    passages = targets.article_passages(ARTICLES, 25)
    own = [p for p in passages if p.document_id == "1"]
    allowed = []
    for variant in targets.VARIANTS:
        first, _ = targets.article_targets(engine, ARTICLES, variant, passages)
        assert first.spare == len(own)
        allowed.append([p for p in passages if first.allows(p)])
    others, beside, everything = allowed
    assert {p.document_id for p in others} == {"2", "3"}
    assert everything == passages
    text = engine.model.tokenizer.encode(ARTICLES[0].text)
    start, end = text.ends[19], text.ends[169]
    # The first passage holds the prefix, but the target's first words as well.
    kept = [p for p in own if p in beside]
    assert kept == [p for p in own if p.offset >= end or p.offset + len(p.text) <= start]
    assert 0 < len(kept) < len(own)


def test_answer_sentence():
    passages = {"r": Passage(text=RIVER, id="r"), "l": Passage(text=LIGHTHOUSE, id="l")}
    question = Question("q", "Why?", ("rye",), ("l", "r"))
    assert targets.answer_sentence(question, passages) == (
        "The mill was built by monks, who ground rye there for three hundred years."
    )
    assert targets.answer_sentence(Question("q", "Why?", ("zebra",), ("r",)), passages) is None
    assert targets.answer_sentence(Question("q", "Why?", ("rye",), ("gone",)), passages) is None


def test_a_target_behind_a_question(engine):
    (target,) = targets.sentence_targets(
        engine, [Question("q", "Why?", ("rye",), ("r",))], {"r": Passage(text=RIVER, id="r")}
    )
    assert target.prompt([]) == engine.build_prompt("Why?")
    assert engine.model.tokenizer.decode(target.token_ids).startswith("The mill was built")
    bare = tiny_engine(chat_template=None)
    (target, *_) = targets.choice_targets(bare, Choice("c", "Why?", ("Yes", "No", "So", "Oh"), 1))
    assert bare.model.tokenizer.decode([*target.prompt([]), *target.token_ids]).endswith("Answer: Yes")


def test_predict_reports_every_system_and_a_tuned_one(engine):
    passages = [Passage(text=RIVER, id="r"), Passage(text=BREAD, id="b")]
    questions = [Question("q1", "Why?", ("rye",), ("r",)), Question("q2", "How long?", ("twelve hours",), ("b",))]
    made = list(targets.sentence_targets(engine, questions, {p.id: p for p in passages}))
    systems = systems_of(["lm", "knn-lm", "nest", "best sentence"], config_of)
    measured = Measured(list(systems))
    predict(Scorer(engine, ListSource(passages), "c", AnswerFile()), systems, made, "answer sentence", measured)
    metric = "perplexity: answer sentence"
    loss = {name: sum(r[metric][0] for r in rows.values()) for name, rows in measured.ratios.items()}
    assert set(loss) == {"lm", "knn-lm", "nest", TUNED}
    assert loss[TUNED] < min(loss["knn-lm"], loss["lm"])
    parts = TokenParts.join([
        gather(engine.model.lm, t.prompt([]), t.token_ids, engine.open_index(passages), config_of("nest")) for t in made
    ])  # fmt: skip
    assert loss["nest"] == pytest.approx(parts.losses(config_of("nest")).sum(), rel=1e-6)
    weight = measured.notes[f"{metric}, tuned knn_weight"]
    assert loss[TUNED] == pytest.approx(parts.losses(config_of("knn-lm").replace(knn_weight=weight)).sum(), rel=1e-6)
    assert measured.ratios["lm"]["q1"][metric][1] == len(made[0].token_ids)


def test_the_choice_of_the_lowest_perplexity_wins(engine):
    texts = ("the mill", "a loaf of bread", "cold water", "grey granite")
    losses = []
    for target in targets.choice_targets(engine, Choice("c", "What?", texts, 0)):
        parts = gather(engine.model.lm, target.prompt([]), target.token_ids, None, config_of("lm"))
        losses.append(float(-np.log(parts.p_lm).mean()))
    best = int(np.argmin(losses))
    systems = systems_of(["lm"], config_of)
    measured = Measured(list(systems))
    choices = [Choice("right", "What?", texts, best), Choice("wrong", "What?", texts, (best + 1) % 4)]
    choose(Scorer(engine, None, "c", AnswerFile()), engine, systems, choices, measured)
    assert measured.ratios["lm"]["right"]["accuracy"] == (1, 1)
    assert measured.ratios["lm"]["wrong"]["accuracy"] == (0, 1)
