"""Tasks from files: every format, and errors that name the place and the fix."""

import json
from pathlib import Path

import pytest

from nest_engine.errors import DocumentError, TaskError
from nest_engine.evaluation.tasks import half_of, read_task
from nest_engine.evaluation.wikitext import detokenize


def write(tmp_path, name, content):
    path = tmp_path / name
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path


SQUAD = {
    "data": [
        {
            "title": "Tides",
            "paragraphs": [
                {
                    "context": "The tide rises twice a day.",
                    "qas": [
                        {
                            "id": "q1",
                            "question": "How often?",
                            "answers": [{"text": "twice"}, {"text": "twice a day"}, {"text": "twice"}],
                        },
                        {"id": "q2", "question": "Why not?", "is_impossible": True, "answers": []},
                    ],
                }
            ],
        }
    ]
}


def test_squad(tmp_path):
    task = read_task(write(tmp_path, "dev.json", SQUAD))
    (question,) = task.questions
    (passage,) = task.passages
    assert (task.format, question.id, question.text) == ("squad", "q1", "How often?")
    assert question.answers == ("twice", "twice a day")
    assert question.passage_ids == (passage.id,)
    assert (passage.title, passage.text) == ("Tides", "The tide rises twice a day.")


def test_nq_open(tmp_path):
    path = write(
        tmp_path, "nq.jsonl", '{"question": "a?", "answer": ["x", "y"]}\n\n{"question": "b?", "answer": ["z"]}'
    )
    task = read_task(path)
    assert task.format == "nq-open"
    assert [(q.id, q.text, q.answers) for q in task.questions] == [("1", "a?", ("x", "y")), ("3", "b?", ("z",))]


def test_our_jsonl(tmp_path):
    rows = [
        {"id": "a", "question": "Who?", "answers": ["Ada"], "passage_id": "p1"},
        {"question": "Where?", "answers": "here", "passage_ids": ["p1", 2]},
    ]
    task = read_task(write(tmp_path, "dev.jsonl", "\n".join(map(json.dumps, rows))))
    assert [(q.id, q.answers, q.passage_ids) for q in task.questions] == [
        ("a", ("Ada",), ("p1",)),
        ("2", ("here",), ("p1", "2")),
    ]


TRUTHFUL = (
    "Type,Category,Question,Best Answer,Correct Answers,Incorrect Answers,Source\n"
    'Adversarial,Myths,"What happens, if any?",Nothing,Nothing happens; Nothing,"You die; You sleep, soon",http://x\n'
)


def test_truthfulqa(tmp_path):
    (question,) = read_task(write(tmp_path, "TruthfulQA.csv", TRUTHFUL)).questions
    assert question.text == "What happens, if any?"
    assert question.answers == ("Nothing", "Nothing happens")
    assert question.wrong_answers == ("You die", "You sleep, soon")


def test_mmlu(tmp_path):
    path = write(tmp_path, "math.csv", '"1, 2, what?",3,4,5,6,A\nOne?,1,2,3,4,d\n')
    first, second = read_task(path).choices
    assert (first.text, first.choices, first.answer) == ("1, 2, what?", ("3", "4", "5", "6"), 0)
    assert second.answer == 3


WIKITEXT = "\n".join(
    f" {line} "  # every line of the file begins and ends with a space
    for line in (
        "",
        "= Homarus <unk> =",
        "",
        "A lobster , H. americanus , weighs 0 @.@ 7 kg ( 1 @.@ 5 lb ) . It isn 't a <unk> .",
        "",
        "= = Description = =",
        "= = = Claws = = =",
        'It has " two " claws .',
        "= M @-@ 82 =",
        "A road .",
    )
)


def test_wikitext(tmp_path):
    first, second = read_task(write(tmp_path, "wiki.valid.txt", WIKITEXT)).articles
    assert (first.id, first.title) == ("1", "Homarus <unk>")
    assert first.text == (
        "A lobster, H. americanus, weighs 0.7 kg (1.5 lb). It isn't a <unk>.\n\nDescription\n\nClaws\n\n"
        'It has "two" claws.'
    )
    ((start, end),) = first.unknown
    assert first.text[start:end] == "<unk>"
    assert (second.title, second.text) == ("M-82", "A road.")


@pytest.mark.parametrize(
    ("line", "plain"),
    [
        (' 1 @,@ 000 – 2 @,@ 000 people ; " so " , he said : yes ! ', '1,000 – 2,000 people; "so", he said: yes!'),
        (" the king 's men do n't [ sic ] pay $ 5 . ", "the king's men don't [sic] pay $5."),
        (" e @-@ mail @-@ based ", "e-mail-based"),
    ],
)
def test_detokenize(line, plain):
    assert detokenize(line) == plain


@pytest.mark.parametrize(
    ("name", "content", "place", "message"),
    [
        ("a.json", {"rows": []}, "a.json", "--format"),
        ("a.json", "{}{}", "a.json", "not JSON"),
        ("a.json", {"data": [{"title": "t", "paragraphs": 3}]}, "data[0]", "paragraphs"),
        ("a.json", {"data": []}, "a.json", "nothing to evaluate"),
        ("a.jsonl", '{"question": "a?", "answers": ["x"]}\n{"question": "b?"}', "a.jsonl:2", '"answers" is missing'),
        ("a.jsonl", '{"question": "a?", "answers": []}', "a.jsonl:1", "at least one"),
        ("a.jsonl", '{"question": " ", "answers": ["x"]}', "a.jsonl:1", "empty"),
        ("a.jsonl", '{"question": "a?", "answer": ["x"]}\n\n{"question": "a?", "answer": [3]}', "a.jsonl:3", "texts"),
        ("a.jsonl", '{"id": "a", "question": "a?", "answers": ["x"]}\n' * 2, "a.jsonl:2", "used before"),
        ("a.csv", "Question,Correct Answers\na,b\n", "a.csv:1", "Best Answer, Incorrect Answers"),
        ("a.csv", TRUTHFUL + "x,y\n", "a.csv:3", "7"),
        ("a.csv", TRUTHFUL + "x,y,Why?,a,b,,z\n", "a.csv:3", "incorrect answers"),
        ("a.csv", "q,1,2,3,4,A\nq,1,2,3,E\n", "a.csv:2", "5 cells"),
        ("a.csv", "q,1,2,3,4,E\n", "a.csv:1", "A, B, C or D"),
        ("a.csv", 'q,1,2,3,4,A\n"q,1,2,3,4,A\n', "a.csv:2", "quotes"),
        ("a.xml", "<a/>", "a.xml", "--format squad|nq-open"),
    ],
)
def test_errors_name_the_place_and_the_fix(tmp_path, name, content, place, message):
    with pytest.raises(TaskError) as caught:
        read_task(write(tmp_path, name, content))
    assert place in str(caught.value)
    assert message in str(caught.value)


def test_a_missing_file_is_a_document_error(tmp_path):
    with pytest.raises(DocumentError, match="cannot be read"):
        read_task(tmp_path / "no.json")


def test_halves_are_stable_and_about_equal(tmp_path):
    rows = [{"id": f"q{n}", "question": "a?", "answers": ["x"]} for n in range(400)]
    task = read_task(write(tmp_path, "a.jsonl", "\n".join(map(json.dumps, rows))))
    tune, report = task.select("tune"), task.select("report")
    assert {q.id for q in tune.questions} | {q.id for q in report.questions} == {r["id"] for r in rows}
    assert len(tune.questions) + len(report.questions) == 400
    assert 160 < len(tune.questions) < 240
    assert [half_of(i) for i in ("56beb4343aeaaa14008c925b", "1", "2")] == ["tune", "report", "tune"]


def test_a_limit_is_evenly_spread(tmp_path):
    rows = [{"id": str(n), "question": "a?", "answers": ["x"]} for n in range(10)]
    task = read_task(write(tmp_path, "a.jsonl", "\n".join(map(json.dumps, rows))))
    assert [q.id for q in task.select(limit=3).questions] == ["0", "3", "6"]
    assert len(task.select(limit=50).questions) == 10


@pytest.mark.shared_data
def test_the_shared_files_are_read(shared_data):
    questions = read_task(shared_data / "xquad.en.dev.jsonl").questions
    assert len(questions) == 612
    assert questions[0].passage_ids == ("00-0",)
    articles = read_task(shared_data / "wikitext-2.valid.txt").articles
    assert len(articles) == 60
    assert all("@-@" not in a.text and "@.@" not in a.text for a in articles)


def test_the_small_talk_of_the_docs_has_no_answers():
    task = read_task(Path(__file__).parents[3] / "docs" / "small_talk.jsonl")
    assert len(task.questions) == 30
    assert not any(question.answers for question in task.questions)
