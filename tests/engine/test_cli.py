"""The command line, with an engine that only pretends: what is printed, where, and the exit codes."""

import io
import json
import logging
import subprocess
import sys

import pytest
from transformers.utils import logging as transformers_logging

from nest_engine import Citation, Generation, Stats, cli
from nest_engine.errors import ContextOverflowError, ModelNotFoundError
from nest_engine.generation import GenerationPiece
from nest_engine.jsonl import Question
from nest_engine.rendering.terminal import AnswerPrinter, make_writer, print_answer, quote, safe


def citation(number, start, end, text, document_start=None):
    return Citation(
        number=number,
        kind="copied",
        start=start,
        end=end,
        passage_id=f"p{number}",
        document_id=f"d{number}",
        title=f"Title {number}",
        source_start=5,
        source_end=5 + len(text),
        document_start=document_start,
        text=text,
    )


STATS = Stats("nest", 8, 4, 1, 3, 4, 6, 4, 0.5)
TEXT = "The tide rises twice. 潮水"
ANSWER = Generation(
    TEXT,
    (citation(1, 4, 21, "tide rises twice.", 105), citation(2, 22, 24, "潮水")),
    STATS,
    "end",
)


def pieces():
    """The answer, streamed: the first citation is final only after the space behind it."""
    yield GenerationPiece("The tide ")
    yield GenerationPiece("rises twice. ")
    yield GenerationPiece("潮", (ANSWER.citations[0],))
    yield GenerationPiece("水", (ANSWER.citations[1],), ANSWER)


class FakeEngine:
    """Answers everything alike and remembers how it was asked."""

    made: list = []

    def __init__(self, name, config, settings):
        self.name, self.config, self.settings, self.asked = name, config, settings, []
        FakeEngine.made.append(self)

    @classmethod
    def from_pretrained(cls, name, *, config=None, **settings):
        if name == "no-such-model":
            raise ModelNotFoundError("no model 'no-such-model':\n give another")
        return cls(name, config, settings)

    def stream(self, prompt, *, source=None):
        self.generate(prompt, source=source)
        return pieces()

    def generate(self, prompt, *, source=None):
        print("a library prints")
        self.asked.append((prompt, source))
        if prompt == "too long":
            raise ContextOverflowError("the prompt does not fit; shorten it")
        if prompt == "interrupt":
            raise KeyboardInterrupt
        return ANSWER


@pytest.fixture(autouse=True)
def fake_engine(monkeypatch, nest_home):
    monkeypatch.setattr("nest_engine.engine.NestEngine", FakeEngine)
    FakeEngine.made = []
    logger = logging.getLogger("nest_engine")
    before = logger.handlers, logger.propagate, logger.level
    yield
    logger.handlers, logger.propagate, logger.level = before
    transformers_logging.enable_progress_bar()


@pytest.fixture
def passages(tmp_path):
    path = tmp_path / "passages.jsonl"
    path.write_text('{"id": "p1", "title": "Tides", "text": "The tide rises twice a day."}\n')
    return str(path)


def ask(*arguments):
    return cli.main(["ask", *arguments])


# --- --json ---------------------------------------------------------------------------


def test_json_is_the_documented_schema(passages, capsys):
    assert ask("Why?", "--passages", passages, "--source", "bm25", "--json", "--quiet") == 0
    out, err = capsys.readouterr()
    row = json.loads(out)
    assert out.count("\n") == 1
    assert "潮水" in out
    assert list(row) == ["id", "question", "text", "citations", "stats"]
    assert (row["id"], row["question"], row["text"]) == ("1", "Why?", TEXT)
    assert [list(c) for c in row["citations"]] == [list(cli.CITATION_KEYS)] * 2
    first = row["citations"][0]
    assert row["text"][first["start"] : first["end"]] == first["text"] == "tide rises twice."
    assert list(row["stats"]) == list(cli.STATS_KEYS)
    assert list(row["stats"]["seconds"]) == list(cli.SECONDS_KEYS)
    assert "a library prints" in err


def test_one_object_per_question_and_one_failure(tmp_path, passages, capsys):
    questions = tmp_path / "q.jsonl"
    rows = [{"id": "a", "question": "Why?"}, {"id": "b", "question": "too long"}, {"id": "c", "question": "When?"}]
    questions.write_text("\n".join(map(json.dumps, rows)))
    code = ask("--questions", str(questions), "--passages", passages, "--source", "bm25", "--json", "--quiet")
    out, err = capsys.readouterr()
    assert code == 2
    assert [json.loads(line)["id"] for line in out.splitlines()] == ["a", "c"]
    assert "nest-engine: question b: the prompt does not fit; shorten it" in err
    assert "Traceback" not in err


# --- settings -------------------------------------------------------------------------


def test_every_setting_has_a_flag():
    flags = ["--alpha", "0.4", "--tau", "0.2", "--delta", "0.6", "--gamma", "0.01", "--max-new-tokens", "9"]
    flags += ["--top-passages", "7", "--prompt-passages", "2", "--no-passages-in-prompt", "--min-relevance=-inf"]
    flags += ["--key-layer", "20", "--key-transform", "pca", "--key-format", "float32", "--neighbors", "5"]
    flags += ["--mu", "none", "--knn-weight", "0.5", "--span-tokens", "8", "--draft-chunk", "2", "--seed", "3"]
    flags += ["--temperature", "0.7", "--top-k", "11", "--top-p", "0.9", "--stop", "a", "--stop", "b\n"]
    flags += ["--min-citation-words", "4", "--mode", "lm", "--device", "cpu", "--model", "some/model"]
    assert ask("Why?", *flags) == 0
    (engine,) = FakeEngine.made
    config = engine.config
    assert (config.alpha, config.tau, config.delta, config.gamma, config.max_new_tokens) == (0.4, 0.2, 0.6, 0.01, 9)
    assert (config.top_passages, config.prompt_passages, config.passages_in_prompt) == (7, 2, False)
    assert (config.min_relevance, config.key_layer, config.key_transform) == (float("-inf"), 20, "pca")
    assert (config.key_format, config.neighbors, config.mu, config.knn_weight) == ("float32", 5, None, 0.5)
    assert (config.span_tokens, config.draft_chunk, config.seed, config.temperature) == (8, 2, 3, 0.7)
    assert (config.top_k, config.top_p, config.stop, config.min_citation_words) == (11, 0.9, ("a", "b\n"), 4)
    assert (config.mode, engine.name, engine.settings["device"]) == ("lm", "some/model", "cpu")


def test_presets():
    assert ask("Why?", "--mode", "lm") == 0
    assert ask("Why?", "--mode", "lm", "--preset", "paper-7b") == 0
    assert ask("Why?", "--mode", "lm", "--preset", "paper-7b", "--gamma", "0.5", "--key-layer", "penultimate") == 0
    demo, paper, changed = (engine.config for engine in FakeEngine.made)
    assert (demo.gamma, paper.gamma, changed.gamma) == (1e-2, 5e-4, 0.5)
    assert changed.key_layer == "penultimate"


# --- wrong use ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["Why?"], "give --docs or --passages"),
        ([], "give one question"),
        (["--docs", "a.txt", "Why?"], "in front of --docs"),
        (["Why?", "--questions", "q.jsonl"], "give one question"),
        (["Why?", "--docs", "gone.txt"], "gone.txt: cannot be read"),
        (["Why?", "--passages", "gone.jsonl"], "gone.jsonl: cannot be read"),
        (["--questions", "gone.jsonl", "--mode", "lm"], "gone.jsonl: cannot be read"),
        (["Why?", "--mode", "lm", "--gamma", "0"], "gamma must be"),
        (["Why?", "--mode", "lm", "--model", "no-such-model"], "no model 'no-such-model': give another"),
        (["too long", "--mode", "lm"], "question 1: the prompt does not fit"),
    ],
)
def test_errors_are_one_line_and_code_two(arguments, message, capsys):
    assert ask(*arguments) == 2
    out, err = capsys.readouterr()
    assert message in err.splitlines()[-1]
    assert err.splitlines()[-1].startswith("nest-engine: ")
    assert "Traceback" not in err
    assert "{" not in out


@pytest.mark.parametrize("arguments", [["--mode", "best"], ["--gamma", "much"], ["--top-k", "2.5"], ["--no-such"]])
def test_wrong_flags(arguments, capsys):
    with pytest.raises(SystemExit) as info:
        ask("Why?", *arguments)
    assert info.value.code == 2
    assert arguments[0] in capsys.readouterr().err


def test_debug_shows_where_an_error_comes_from():
    with pytest.raises(ContextOverflowError):
        ask("too long", "--mode", "lm", "--debug")


def test_interrupt(capsys):
    assert ask("interrupt", "--mode", "lm") == 130
    assert capsys.readouterr().err.endswith("interrupted\n")


def test_reader_that_leaves():
    code = (
        "import sys, nest_engine.cli as cli\n"
        "cli._ask = lambda chosen: sys.stdin.read() or print('x' * 1_000_000, flush=True)\n"
        "sys.exit(cli.main(['ask']))"
    )
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", code], stdin=pipe, stdout=pipe, stderr=pipe) as process:
        process.stdout.close()
        process.stdin.close()
        assert process.stderr.read() == b""
    assert process.returncode == 1


# --- answers for people ---------------------------------------------------------------


def test_answer_with_numbers_sources_and_facts(tmp_path, capsys):
    (tmp_path / "tides.txt").write_text("The tide rises twice a day. It falls twice.")
    assert ask("Why?", "--docs", str(tmp_path), "--source", "bm25", "--quiet") == 0
    out = capsys.readouterr().out
    assert "Q: Why?" in out
    assert "The tide rises twice.[1] 潮水[2]\n" in out
    assert "[1] Title 1\n      d1, characters 105-122: “tide rises twice.”" in out
    assert "[2] Title 2\n      p2, characters 5-7: “潮水”" in out
    assert "50% of 8 tokens copied · 2.0 tokens per LM call" in out
    (engine,) = FakeEngine.made
    (hit,) = engine.asked[0][1].search("tide", 1)
    assert hit.passage.document_id.endswith("tides.txt")


def test_nothing_copied():
    out = io.StringIO()
    generation = Generation("Hi.", (), STATS, "length")
    print_answer([GenerationPiece("Hi.", (), generation)], make_writer(out))
    assert "Hi.\n\nNothing was copied" in out.getvalue()
    assert "cut at the token limit" in out.getvalue()


def test_streaming_is_the_same_however_it_is_cut():
    text = "one two three  four"
    marks = (citation(1, 0, 3, "one"), citation(1, 4, 13, "two three"), citation(2, 15, 19, "four"))
    for cut in range(len(text)):
        out = io.StringIO()
        printer = AnswerPrinter(make_writer(out))
        early = tuple(mark for mark in marks if mark.end < cut)
        printer.add(GenerationPiece(text[:cut]))
        printer.add(GenerationPiece("", early))
        rest = tuple(mark for mark in marks if mark not in early)
        printer.add(GenerationPiece(text[cut:], rest, Generation(text, marks, STATS, "end")))
        if not early:
            assert out.getvalue() == "one[1] two three[1]  four[2]", cut
        assert out.getvalue().replace("[1]", "").replace("[2]", "") == text


def test_documents_cannot_send_control_sequences():
    assert safe("a\x1b[31mb\x07\x9b\r\nc\td") == "a\ufffd[31mb\ufffd\ufffd\nc\td"
    assert safe("\u202egnp.exe\u2069") == "\ufffdgnp.exe\ufffd"


def test_quotes_are_short():
    assert quote("a \n b") == "a b"
    long = quote("x" * 300 + "y" * 300, 50)
    assert len(long) <= 50
    assert (long[0], long[-1]) == ("x", "y")
    assert "…" in long


def test_color_on_a_terminal():
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    out = Terminal()
    print_answer(pieces(), make_writer(out))
    assert "[1]" in out.getvalue()
    assert "潮水" in out.getvalue()


# --- files ----------------------------------------------------------------------------


def test_answers_as_a_page_and_as_markdown(tmp_path, passages, capsys):
    html, markdown = tmp_path / "answer.html", tmp_path / "answer.md"
    given = ["--passages", passages, "--source", "bm25", "--quiet", "--html", str(html), "--markdown", str(markdown)]
    assert ask("Why?", *given) == 0
    assert "Q: Why?" in capsys.readouterr().out
    page = html.read_text("utf-8")
    assert "<title>Why?</title>" in page
    assert '<mark class="nest-quote">潮水</mark>' in page
    assert markdown.read_text("utf-8").startswith("# Why?\n\nThe tide rises twice.[^1] 潮水[^2]\n")


@pytest.mark.parametrize(("second", "code"), [("too long", 2), ("interrupt", 130), ("When?", 0)])
def test_answers_of_many_questions_are_one_page(tmp_path, passages, second, code, capsys):
    questions, html = tmp_path / "q.jsonl", tmp_path / "answers.html"
    questions.write_text("\n".join(json.dumps({"id": q, "question": q}) for q in ("Why?", second)))
    given = ["--questions", str(questions), "--passages", passages, "--source", "bm25", "--json", "--quiet"]
    assert ask(*given, "--html", str(html)) == code
    assert html.read_text("utf-8").count("<h1") == (1 if code else 2)


def test_a_file_that_cannot_be_written_is_refused_at_once(tmp_path, passages, capsys):
    for path in (tmp_path, tmp_path / "none" / "answer.html"):
        assert ask("Why?", "--passages", passages, "--quiet", "--html", str(path)) == 2
        assert "cannot write" in capsys.readouterr().err
    assert not FakeEngine.made


# --- demo -----------------------------------------------------------------------------


@pytest.fixture
def few_passages(monkeypatch):
    from nest_engine.python_reference import python_passages

    few = python_passages()[:3]
    monkeypatch.setattr("nest_engine.python_reference.python_passages", lambda: few)
    return few


def test_demo_asks_its_questions_and_keeps_the_index(few_passages, nest_home, capsys):
    assert cli.main(["demo", "--source", "bm25", "--quiet"]) == 0
    out = capsys.readouterr().out
    assert [f"Q: {question}" in out for question in cli.DEMO_QUESTIONS] == [True] * len(cli.DEMO_QUESTIONS)
    (index,) = (nest_home / "indexes").iterdir()
    before = {path.name: path.stat().st_mtime_ns for path in index.iterdir()}
    assert cli.main(["demo", "--source", "bm25", "--quiet", "-q", "One?", "-q", "Two?"]) == 0
    assert {path.name: path.stat().st_mtime_ns for path in index.iterdir()} == before
    assert [prompt for prompt, _ in FakeEngine.made[-1].asked] == ["One?", "Two?"]


def test_demo_mends_a_damaged_index(few_passages, nest_home):
    assert cli.main(["demo", "--source", "bm25", "--quiet", "-q", "One?"]) == 0
    (index,) = (nest_home / "indexes").iterdir()
    for path in index.iterdir():
        if path.is_file() and path.suffix == ".json":
            path.write_text("{")
    assert cli.main(["demo", "--source", "bm25", "--quiet", "-q", "One?"]) == 0
    assert cli._source_class(cli._parser().parse_args(["demo", "--source", "bm25"])).open(index)


def test_interactive_demo(few_passages, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("Typed?\n\nnever asked\n"))
    assert cli.main(["demo", "--source", "bm25", "--quiet", "--interactive", "-q", "Given?"]) == 0
    assert [prompt for prompt, _ in FakeEngine.made[-1].asked] == ["Given?", "Typed?"]


def test_row_of_a_question():
    assert cli.to_row(Question("x", "Why?"), ANSWER)["id"] == "x"
