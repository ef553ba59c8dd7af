"""What is evaluated on: questions, articles or choices, read from files by their format."""

from __future__ import annotations

import csv
import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

from nest_engine.errors import TaskError
from nest_engine.evaluation.wikitext import Article, read_articles
from nest_engine.jsonl import read_rows, read_text, string_of
from nest_engine.passages import Passage

Format = Literal["squad", "nq-open", "truthfulqa", "wikitext", "jsonl", "mmlu"]
Split = Literal["all", "tune", "report"]

_TRUTHFUL_COLUMNS = ("Question", "Best Answer", "Correct Answers", "Incorrect Answers")
_LETTERS = "ABCD"


@dataclass(frozen=True)
class Question:
    """A question with its answers.

    Attributes:
        id: Id, unique within its task.
        text: The question.
        answers: Right answers, any of which will do; none for small talk and what no passage answers.
        passage_ids: Ids of the passages that hold the answer; empty where this is not known.
        wrong_answers: Answers that are wrong (TruthfulQA).
    """

    id: str
    text: str
    answers: tuple[str, ...]
    passage_ids: tuple[str, ...] = ()
    wrong_answers: tuple[str, ...] = ()


@dataclass(frozen=True)
class Choice:
    """A multiple-choice question.

    Attributes:
        id: Id, unique within its task.
        text: The question.
        choices: What can be chosen.
        answer: Index of the right one, from 0.
    """

    id: str
    text: str
    choices: tuple[str, ...]
    answer: int


Item = Question | Choice | Article
_AnyItem = TypeVar("_AnyItem", Question, Choice, Article)


@dataclass(frozen=True)
class Task:
    """A file of things to evaluate on; the lists that its format does not fill are empty.

    Attributes:
        name: The file's name.
        format: The file's format.
        questions: Questions with answers.
        choices: Multiple-choice questions.
        articles: Texts to predict.
        passages: Passages that the file brings (SQuAD's contexts).
    """

    name: str
    format: Format
    questions: tuple[Question, ...] = ()
    choices: tuple[Choice, ...] = ()
    articles: tuple[Article, ...] = ()
    passages: tuple[Passage, ...] = ()

    @property
    def items(self) -> tuple[Item, ...]:
        """All that is to be evaluated on."""
        return (*self.questions, *self.choices, *self.articles)

    def select(self, split: Split = "all", limit: int | None = None) -> Task:
        """Keep a part of the items.

        Args:
            split: All, or one of two halves: an item's half depends on its id alone.
            limit: Keep this many of them, evenly spread.

        Raises:
            TaskError: If nothing is left.
        """
        kept = replace(
            self,
            questions=_select(self.questions, split, limit),
            choices=_select(self.choices, split, limit),
            articles=_select(self.articles, split, limit),
        )
        if not kept.items:
            raise TaskError(f"{self.name}: no question is left in the split {split!r}; use --split all")
        return kept


def _select(items: Sequence[_AnyItem], split: Split, limit: int | None) -> tuple[_AnyItem, ...]:
    kept = [item for item in items if split in ("all", half_of(item.id))]
    step = max(1, len(kept) // limit) if limit else 1
    return tuple(kept[::step][:limit])


def half_of(item_id: str) -> Split:
    """The half that an item is in, `"tune"` or `"report"`: a coin thrown by a digest of its id."""
    return "report" if hashlib.sha256(item_id.encode("utf-8", "surrogatepass")).digest()[0] % 2 else "tune"


def read_task(path: str | Path, task_format: Format | None = None) -> Task:
    """Read a task from a file.

    Args:
        path: The file.
        task_format: Its format; by default found out by its ending and first line.

    Raises:
        DocumentError: If the file cannot be read.
        TaskError: If it is not in the format; the message starts with `file:line` or the like.
    """
    path = Path(path)
    task_format = task_format or find_format(path)
    task = _READERS[task_format](path)
    if not task.items:
        raise TaskError(f"{path}: nothing to evaluate on in this file; is it really {task_format}? (--format)")
    return task


def find_format(path: Path) -> Format:
    """Find out a task file's format by its ending, and for JSONL and CSV by its first line.

    Raises:
        TaskError: If it cannot be told.
    """
    ending = path.suffix.lower()
    if ending == ".json":
        return "squad"
    if ending in (".txt", ".raw", ".tokens"):
        return "wikitext"
    if ending in (".jsonl", ".ndjson"):
        _, first = next(read_rows(path), ("", {}))
        return "nq-open" if "answer" in first and "answers" not in first else "jsonl"
    if ending == ".csv":
        header = read_text(path).split("\n", 1)[0]
        return "truthfulqa" if "Correct Answers" in header else "mmlu"
    raise TaskError(f"{path}: unknown ending {ending!r}; name its format: --format {'|'.join(get_args(Format))}")


def _read_jsonl(path: Path) -> Task:
    """Our own format: `{"id", "question", "answers": [...], "passage_id"}`; answers are null where there are none."""
    return Task(path.name, "jsonl", questions=_unique(_jsonl_questions(path)))


def _jsonl_questions(path: Path) -> Iterator[tuple[str, Question]]:
    for place, row in read_rows(path):
        text = _required(place, row, "question")
        gold = row.get("passage_ids", row.get("passage_id"))
        passage_ids = (
            () if gold is None else _strings(place, row, "passage_ids" if "passage_ids" in row else "passage_id")
        )
        wrong = _strings(place, row, "wrong_answers") if "wrong_answers" in row else ()
        identity = string_of(place, row, "id") or place.rpartition(":")[2]
        # Null is said on purpose; a missing key and an empty list are mistakes.
        answers = () if row.get("answers", "") is None else _strings(place, row, "answers")
        yield place, Question(identity, text, answers, passage_ids, wrong)


def _read_nq_open(path: Path) -> Task:
    """NQ-open: `{"question", "answer": [...]}`; a question's id is its line number."""
    questions = [
        (place, Question(place.rpartition(":")[2], _required(place, row, "question"), _strings(place, row, "answer")))
        for place, row in read_rows(path)
    ]
    return Task(path.name, "nq-open", questions=_unique(questions))


def _read_squad(path: Path) -> Task:
    """SQuAD: articles of paragraphs of questions; questions without an answer (version 2) are left out."""
    try:
        articles = json.loads(read_text(path))["data"]
    except ValueError as error:
        raise TaskError(f"{path}: not JSON ({error}); is it one object a line? --format jsonl") from error
    except (KeyError, TypeError) as error:
        raise TaskError(
            f'{path}: SQuAD files have a list "data" at the top; for another format see --format'
        ) from error
    questions: list[tuple[str, Question]] = []
    passages: list[Passage] = []
    for place, title, paragraph in _squad_paragraphs(path, articles):
        context = _required(place, paragraph, "context")
        passage = Passage(text=context, title=title, id=place.partition(": ")[2])
        passages.append(passage)
        for number, entry in enumerate(_entries(place, paragraph, "qas")):
            here = f"{place}.qas[{number}]"
            answers = tuple(dict.fromkeys(_required(here, a, "text") for a in _entries(here, entry, "answers")))
            if answers:
                identity = string_of(here, entry, "id") or here.partition(": ")[2]
                questions.append((here, Question(identity, _required(here, entry, "question"), answers, (passage.id,))))
    return Task(path.name, "squad", questions=_unique(questions), passages=tuple(passages))


def _squad_paragraphs(path: Path, articles: Any) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for number, article in enumerate(_entries(f"{path}: ", {"data": articles}, "data")):
        place = f"{path}: data[{number}]"
        title = string_of(place, article, "title")
        for index, paragraph in enumerate(_entries(place, article, "paragraphs")):
            yield f"{place}.paragraphs[{index}]", title, paragraph


def _read_truthfulqa(path: Path) -> Task:
    """TruthfulQA: a CSV file with a header; several answers in a cell stand apart by `"; "`."""
    rows = _csv_rows(path)
    _, header = next(rows, ("", []))
    missing = [column for column in _TRUTHFUL_COLUMNS if column not in header]
    if missing:
        raise TaskError(f"{path}:1: the columns {', '.join(missing)} are missing; the header has {', '.join(header)}")
    questions = []
    for place, cells in rows:
        if len(cells) != len(header):
            raise TaskError(f"{place}: {len(cells)} cells instead of {len(header)}; quote cells that hold commas")
        row = dict(zip(header, cells, strict=True))
        right = tuple(dict.fromkeys([row["Best Answer"].strip(), *_cell(row["Correct Answers"])]))
        wrong = _cell(row["Incorrect Answers"])
        if not row["Question"].strip() or not any(right) or not wrong:
            raise TaskError(
                f"{place}: a question needs a text, correct answers and incorrect answers; fill or remove it"
            )
        questions.append(
            (place, Question(place.rpartition(":")[2], row["Question"], tuple(a for a in right if a), (), wrong))
        )
    return Task(path.name, "truthfulqa", questions=_unique(questions))


def _read_mmlu(path: Path) -> Task:
    """MMLU: a CSV file without a header: question, four choices, the right one's letter."""
    choices = []
    for place, cells in _csv_rows(path):
        if len(cells) != len(_LETTERS) + 2:
            raise TaskError(f"{place}: {len(cells)} cells; MMLU has question,A,B,C,D,letter: quote cells with commas")
        letter = cells[-1].strip().upper()
        if letter not in _LETTERS or not letter:
            raise TaskError(f"{place}: the last cell must be A, B, C or D, not {cells[-1][:20]!r}; is this a header?")
        if not all(cell.strip() for cell in cells):
            raise TaskError(f"{place}: an empty cell; write the question and all four choices")
        choices.append((place, Choice(place.rpartition(":")[2], cells[0], tuple(cells[1:-1]), _LETTERS.index(letter))))
    return Task(path.name, "mmlu", choices=_unique(choices))


def _read_wikitext(path: Path) -> Task:
    """WikiText's raw form: article headings ` = Title = `."""
    return Task(path.name, "wikitext", articles=tuple(read_articles(read_text(path))))


_READERS: dict[Format, Callable[[Path], Task]] = {
    "squad": _read_squad,
    "nq-open": _read_nq_open,
    "truthfulqa": _read_truthfulqa,
    "wikitext": _read_wikitext,
    "jsonl": _read_jsonl,
    "mmlu": _read_mmlu,
}


def _csv_rows(path: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield ("file:line", cells) for every row that is not blank."""
    reader = csv.reader(read_text(path).splitlines(keepends=True), strict=True)
    try:
        for cells in reader:
            if any(cell.strip() for cell in cells):
                yield f"{path}:{reader.line_num}", cells
    except csv.Error as error:
        raise TaskError(f"{path}:{reader.line_num}: not CSV ({error}); check the quotes") from error


def _cell(text: str) -> tuple[str, ...]:
    """The answers of a TruthfulQA cell."""
    return tuple(part.strip() for part in text.split(";") if part.strip())


def _required(place: str, row: dict[str, Any], key: str) -> str:
    text = string_of(place, row, key, required=True)
    if not text.strip():
        raise TaskError(f'{place}: "{key}" is empty; fill or remove it')
    return text


def _strings(place: str, row: dict[str, Any], key: str) -> tuple[str, ...]:
    """Return row[key], a string or a list of them, none empty."""
    if key not in row:
        raise TaskError(f'{place}: the key "{key}" is missing; the line has {", ".join(row) or "no keys"}')
    values = row[key] if isinstance(row[key], list) else [row[key]]
    if key.endswith(("id", "ids")):
        values = [str(value) if isinstance(value, int) else value for value in values]
    if not values or not all(isinstance(value, str) and value.strip() for value in values):
        raise TaskError(f'{place}: "{key}" must be a list of texts, at least one, none of them empty')
    return tuple(values)


def _entries(place: str, row: dict[str, Any], key: str) -> list[dict[str, Any]]:
    """Return row[key], a list of objects."""
    values = row.get(key)
    if not isinstance(values, list) or not all(isinstance(value, dict) for value in values):
        raise TaskError(f'{place}: "{key}" must be a list of objects, as in SQuAD; for another format see --format')
    return values


def _unique(items: Any) -> tuple[Any, ...]:
    """The items of ("place", item) pairs; no id may occur twice."""
    known: dict[str, Any] = {}
    for place, item in items:
        if item.id in known:
            raise TaskError(f"{place}: the id {item.id!r} was used before; give every question its own id")
        known[item.id] = item
    return tuple(known.values())
