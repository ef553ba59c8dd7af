"""The command line: `nest-engine demo`, `ask`, `playground`, `index`, `store`, `bench`, `scale`, `eval`, `calibrate`.

Answers go to standard output; progress, warnings and errors to standard error.
Exit codes: 0, 2 for a wrong use or any `NestError`, 130 after Ctrl-C.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import hashlib
import json
import logging
import os
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Union, get_args, get_origin, get_type_hints

from nest_engine.config import PRESETS, Mode, NestConfig
from nest_engine.errors import ConfigError, NestError, StoreError
from nest_engine.evaluation import command
from nest_engine.home import nest_home
from nest_engine.jsonl import Question
from nest_engine.passages import Passage

if TYPE_CHECKING:
    from nest_engine.engine import NestEngine
    from nest_engine.generation import Generation
    from nest_engine.retrieval import Bm25Source, FaissSource, HybridSource

    Source = Bm25Source | FaissSource | HybridSource

DEMO_MODEL = "smollm2-135m-instruct"
DEMO_QUESTIONS = (
    "How does the with statement work?",
    "What does the global statement do?",
    "When are the default parameter values of a function evaluated?",
    "What happens when no except clause matches the exception?",
    "hello",
)

# The keys that `--json` prints, in this order. A promise to programs: docs/cli.md describes them.
CITATION_KEYS = ("number", "kind", "start", "end", "passage_id", "title", "source_start", "source_end", "text")
STATS_KEYS = (
    "mode",
    "tokens",
    "attributed_tokens",
    "neighbor_hits",
    "steps",
    "lm_calls",
    "drafted",
    "accepted",
    "lambda_mean",
    "seconds",
)
SECONDS_KEYS = ("retrieve", "encode", "prefill", "decode", "total")

_SOURCE_HELP = (
    "search by meaning, for English (faiss, the default), by words, for any language (bm25), or both (hybrid)"
)

_BENCH_SYSTEMS = (
    "transformers,transformers ra,transformers ra + prompt lookup,lm,ra,knn-lm,nest,nest cold,ra-nest,lossless ra"
)

# What is not a flag made from the configuration: the mode has one of its own.
_NO_FLAGS = {"mode"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        arguments: What follows the program's name; by default that of this process.

    Returns:
        The exit code.
    """
    parser = _parser()
    chosen = parser.parse_args(arguments)
    _log_to_stderr(chosen)
    try:
        return int(chosen.run(chosen))
    except NestError as error:
        if chosen.debug:
            raise
        _complain(error)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader, `head` say, has gone. Python would complain once more when it flushes at exit.
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


# --- commands -------------------------------------------------------------------------


def _demo(chosen: argparse.Namespace) -> int:
    """Answer questions from the Python language reference."""
    from nest_engine.python_reference import python_passages

    _check_files(chosen)
    config = _config(chosen)
    if chosen.store is None:
        chosen.store = nest_home() / "keys"  # the second run finds its keys there
    source = _cached_source(python_passages(), "python-reference", chosen)
    engine = _engine(chosen, config)
    questions: Iterable[str] = chosen.question or ([] if chosen.interactive else DEMO_QUESTIONS)
    if chosen.interactive:
        questions = _then_typed(questions)
    return _answer_all((Question(str(n), text) for n, text in enumerate(questions, 1)), engine, source, chosen)


def _ask(chosen: argparse.Namespace) -> int:
    """Answer questions from the user's documents or passages."""
    _check_files(chosen)
    config = _config(chosen)
    questions = _questions(chosen)
    passages = _passages(chosen, config)
    source = _new_source(passages, chosen) if passages and config.uses_passages else None
    return _answer_all(questions, _engine(chosen, config), source, chosen)


def _playground(chosen: argparse.Namespace) -> int:
    """Serve a page to try documents, questions and settings on."""
    from nest_engine.playground.app import launch, load_gradio, make_app
    from nest_engine.playground.bench import Bench

    load_gradio()  # that it is missing is told before a model is loaded
    config = _config(chosen)
    given = chosen.passages is not None or chosen.docs is not None
    passages = _passages(chosen, config) if given else []
    engine = _engine(chosen, config)
    app = make_app(Bench(engine, lambda found: _new_source(found, chosen), passages, chosen.passage_words))
    address = launch(app, host=chosen.host, port=chosen.port, wait=False)
    print(f"The playground is at {address} (Ctrl-C ends it)", file=sys.stderr)
    app.block_thread()
    return 0


def _index(chosen: argparse.Namespace) -> int:
    """Encode passages into a key store; what is there already is not encoded again."""
    config = _config(chosen)
    passages = _passages(chosen, config)
    engine = _engine(chosen, config)
    engine.encode(passages)
    print(f"{len(passages)} passages are in {chosen.store}", file=sys.stderr)
    return 0


def _store(chosen: argparse.Namespace) -> int:
    """Look after a key store."""
    from nest_engine.datastore.lmdb_store import LmdbKeyStore

    if not chosen.folder.is_dir():
        raise StoreError(f"no key store at {chosen.folder}: make one with nest-engine index --store {chosen.folder}")
    store = LmdbKeyStore(chosen.folder)
    if chosen.action == "verify":
        damaged = store.verify()
        for address in damaged:
            print(address)
        print(f"{len(damaged)} damaged entries; they are encoded again when they are used", file=sys.stderr)
        return 2 if damaged else 0
    if chosen.action == "prune":
        keep = chosen.keep_model or None
        print(f"{store.prune(keep_models=keep, max_bytes=chosen.max_bytes)} entries removed", file=sys.stderr)
        return 0
    print(json.dumps(dataclasses.asdict(store.info()), indent=2))
    return 0


def _bench(chosen: argparse.Namespace) -> int:
    """Measure the modes beside transformers on the same prompts."""
    from nest_engine.evaluation.bench import run_bench, write_report
    from nest_engine.progress import progress_bar

    config = _config(chosen)
    questions = [question.text for question in _questions(chosen)]
    if chosen.limit:
        questions = questions[:: max(1, len(questions) // chosen.limit)][: chosen.limit]
    source = _new_source(_passages(chosen, config), chosen)
    engine = _engine(chosen, config)
    systems = chosen.systems.split(",")
    answers = len(systems) * len(questions) * chosen.repeats
    with progress_bar("measuring", answers, enabled=not chosen.quiet) as report:
        measured = run_bench(
            engine,
            source,
            questions,
            systems=systems,
            gguf=chosen.gguf,
            max_new_tokens=chosen.tokens,
            repeats=chosen.repeats,
            report=report,
        )
    print(measured.to_markdown())
    if chosen.out is not None:
        for path in write_report(measured, chosen.out):
            print(f"written: {path}", file=sys.stderr)
    return 0


def _scale(chosen: argparse.Namespace) -> int:
    """Measure what a search costs against the size of the collection."""
    from nest_engine.evaluation.scale import costs_table, measure_costs
    from nest_engine.progress import progress_bar

    if min(chosen.sizes) < 1 or chosen.queries < 1:
        raise ConfigError("sizes and queries must be at least 1")
    costs = []
    with progress_bar("measuring", 3 * len(chosen.sizes), enabled=not chosen.quiet) as report:
        for cost in measure_costs(chosen.sizes, queries=chosen.queries):
            costs.append(cost)
            if report is not None:
                report(1)
    print(costs_table(costs))
    return 0


def _eval(chosen: argparse.Namespace) -> int:
    """Measure how good the modes' answers are, beside baselines."""
    from nest_engine.evaluation.results import write_results

    results = command.evaluate(chosen, _tools(chosen))
    print(results.to_json() if chosen.json else results.to_markdown())
    for path in write_results(results, chosen.out) if chosen.out is not None else ():
        print(f"written: {path}", file=sys.stderr)
    return 2 if results.failed else 0


def _calibrate(chosen: argparse.Namespace) -> int:
    """Find settings that fit a model and its documents."""
    evidence = command.calibrate(chosen, _tools(chosen))
    print(json.dumps(evidence, indent=2, ensure_ascii=False))
    print(f"written: {chosen.out}; use it with --settings {chosen.out} or NestConfig.load", file=sys.stderr)
    return 0


def _tools(chosen: argparse.Namespace) -> command.Tools:
    from nest_engine.progress import progress_bar

    def config_of(mode: Mode) -> NestConfig:
        return _config(argparse.Namespace(**{**vars(chosen), "mode": mode}))

    def passages(config: NestConfig) -> list[Passage] | None:
        return _passages(chosen, config) if chosen.passages is not None or chosen.docs is not None else None

    return command.Tools(
        config_of=config_of,
        passages=passages,
        engine=lambda config: _engine(chosen, config),
        source=lambda collection: _new_source(collection, chosen),
        bar=lambda what, total: progress_bar(what, total, enabled=not chosen.quiet),
    )


def _questions(chosen: argparse.Namespace) -> list[Question]:
    from nest_engine.jsonl import read_questions

    if (chosen.question is None) == (chosen.questions is None):
        hint = ", in front of --docs" if chosen.docs and not chosen.questions else ""
        raise ConfigError(f"give one question{hint}, or a file of them with --questions")
    if chosen.questions is not None:
        return read_questions(chosen.questions)
    return [Question("1", chosen.question)]


def _passages(chosen: argparse.Namespace, config: NestConfig) -> list[Passage]:
    from nest_engine.documents import read_documents, read_passages, split_document

    if chosen.passages is not None:
        return read_passages(chosen.passages)
    if chosen.docs is None:
        if config.mode == "lm":
            return []
        raise ConfigError("nothing to answer from: give --docs or --passages (or --mode lm for the model alone)")
    on_error: Literal["raise", "skip"] = "skip" if chosen.skip_unreadable else "raise"
    documents = read_documents(chosen.docs, encoding=chosen.encoding, on_error=on_error)
    return [passage for document in documents for passage in split_document(document, chosen.passage_words)]


def _then_typed(first: Iterable[str]) -> Iterator[str]:
    """Yield the given questions, then what the user types, until an empty line or the end of input."""
    yield from first
    while True:
        print("\nQuestion (empty to leave): ", end="", file=sys.stderr, flush=True)
        typed = sys.stdin.readline().strip()
        if not typed:
            return
        yield typed


def _answer_all(
    questions: Iterable[Question], engine: NestEngine, source: Source | None, chosen: argparse.Namespace
) -> int:
    """Answer questions one after the other. One that fails is reported, and the others are still answered."""
    answer = _print_json if chosen.json else _print_answer
    answers: list[tuple[str, Generation]] = []
    code = 0
    try:
        for question in questions:
            try:
                generation = answer(question, engine, source)
            except NestError as error:
                if chosen.debug:
                    raise
                _complain(error, question)
                code = 2
            else:
                answers += [(question.text, generation)] if generation is not None else []
    finally:  # also after Ctrl-C: what has been answered is kept
        _write_files(answers, chosen)
    return code


def _print_answer(question: Question, engine: NestEngine, source: Source | None) -> Generation | None:
    from nest_engine.rendering.terminal import make_writer, print_answer

    write = make_writer(sys.stdout)
    write(f"\nQ: {question.text}\n\n", "bold")
    return print_answer(engine.stream(question.text, source=source), write)


def _check_files(chosen: argparse.Namespace) -> None:
    """Refuse files that cannot be written, before an answer has been waited for."""
    for path in (chosen.html, chosen.markdown):
        if path is not None and (path.is_dir() or not path.absolute().parent.is_dir()):
            raise ConfigError(f"cannot write {path}: give a file in a folder that exists")


def _write_files(answers: Sequence[tuple[str, Generation]], chosen: argparse.Namespace) -> None:
    """Write the answers as HTML and Markdown, where that is asked for."""
    if not answers or not (chosen.html or chosen.markdown):
        return
    from nest_engine.rendering import to_markdown_document, to_page, view_generation

    views = [(question, view_generation(generation)) for question, generation in answers]
    for path, write in ((chosen.html, to_page), (chosen.markdown, to_markdown_document)):
        if path is None:
            continue
        try:
            path.write_text(write(views), encoding="utf-8", newline="\n")
        except OSError as error:
            raise ConfigError(f"cannot write {path}: {error.strerror or error}") from error


def _print_json(question: Question, engine: NestEngine, source: Source | None) -> Generation:
    # Whatever a library may print must not get between the objects.
    with contextlib.redirect_stdout(sys.stderr):
        generation = engine.generate(question.text, source=source)
    print(json.dumps(to_row(question, generation), ensure_ascii=False), flush=True)
    return generation


def to_row(question: Question, generation: Generation) -> dict[str, Any]:
    """Return what `--json` prints for one question: exactly the documented keys.

    Args:
        question: The question.
        generation: Its answer.
    """
    stats = generation.stats.to_dict()
    stats["seconds"] = {key: stats["seconds"][key] for key in SECONDS_KEYS}
    return {
        "id": question.id,
        "question": question.text,
        "text": generation.text,
        "citations": [{key: getattr(citation, key) for key in CITATION_KEYS} for citation in generation.citations],
        "stats": {key: stats[key] for key in STATS_KEYS},
    }


# --- engine and source ----------------------------------------------------------------


def _config(chosen: argparse.Namespace) -> NestConfig:
    """Make the configuration: a preset or a settings file, and on top of it what was given on the command line."""
    names = {field.name for field in dataclasses.fields(NestConfig)}
    settings = {name: value for name, value in vars(chosen).items() if name in names}
    if chosen.settings is not None:
        if chosen.preset is not None:
            raise ConfigError("give --settings or --preset, not both")
        return NestConfig.load(chosen.settings, **settings)
    preset = chosen.preset or (chosen.model if chosen.model in PRESETS else None)
    return NestConfig.preset(preset, **settings) if preset else NestConfig(**settings)


def _engine(chosen: argparse.Namespace, config: NestConfig) -> NestEngine:
    from nest_engine.engine import NestEngine

    with contextlib.redirect_stdout(sys.stderr):
        return NestEngine.from_pretrained(
            chosen.model,
            config=config,
            device=chosen.device,
            dtype=chosen.dtype,
            store=chosen.store,
            progress=not chosen.quiet,
        )


def _source_class(chosen: argparse.Namespace) -> type[Source]:
    from nest_engine.retrieval import Bm25Source, FaissSource, HybridSource

    return {"hybrid": HybridSource, "faiss": FaissSource, "bm25": Bm25Source}[chosen.source]


def _new_source(passages: list[Passage], chosen: argparse.Namespace) -> Source:
    # Unscaled BM25 scores outweigh cosines, and in a user's question most words are common ones.
    options: dict[str, Any] = {"scale": True} if chosen.source == "hybrid" else {}
    with contextlib.redirect_stdout(sys.stderr):
        return _source_class(chosen).from_passages(passages, progress=not chosen.quiet, **options)


def _cached_source(passages: list[Passage], name: str, chosen: argparse.Namespace) -> Source:
    """Open the index of these passages in the user's cache; make it on first use, or when it is damaged."""
    kind = _source_class(chosen)
    content = json.dumps([(passage.id, passage.title, passage.text) for passage in passages])
    folder = nest_home() / "indexes" / f"{name}-{kind.__name__}-{hashlib.sha256(content.encode()).hexdigest()[:16]}"
    if folder.exists():
        try:
            return kind.open(folder)
        except StoreError as error:
            logging.getLogger(__name__).info("indexing again: %s", error)
    source = _new_source(passages, chosen)
    try:
        source.save(folder)
    except StoreError as error:
        logging.getLogger(__name__).warning("the index is not kept: %s", error)
    return source


# --- arguments ------------------------------------------------------------------------


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="nest-engine",
        description="Answers from your documents by a local language model, with verbatim citations.",
    )
    parser.add_argument("--version", action="version", version=f"nest-rag {_version()}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    _add_demo(commands)
    _add_ask(commands)
    _add_playground(commands)
    _add_index(commands)
    _add_store(commands)
    _add_bench(commands)
    _add_scale(commands)
    _add_evaluation(commands)
    return parser


def _add_demo(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    demo = commands.add_parser("demo", help="questions about Python, answered from its language reference")
    demo.add_argument("--question", "-q", action="append", metavar="TEXT", help="ask this; may be repeated")
    demo.add_argument("--interactive", "-i", action="store_true", help="then ask for more questions")
    _add_files(demo)
    _add_common(demo)
    demo.set_defaults(run=_demo)


def _add_ask(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    ask = commands.add_parser("ask", help="questions answered from your own documents")
    ask.add_argument("question", nargs="?", metavar="QUESTION", help="the question")
    ask.add_argument("--questions", type=Path, metavar="FILE.jsonl", help='one {"id", "question"} a line')
    _add_texts(ask)
    _add_files(ask)
    _add_common(ask)
    ask.set_defaults(run=_ask)


def _add_playground(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    playground = commands.add_parser("playground", help="a page to try documents, questions and settings on")
    playground.add_argument("--host", default="127.0.0.1", metavar="H", help="address to listen at (127.0.0.1)")
    playground.add_argument("--port", type=int, metavar="N", help="port (the first free one from 7860 on)")
    _add_texts(playground)
    _add_common(playground)
    playground.set_defaults(run=_playground)


def _add_index(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    index = commands.add_parser("index", help="compute the keys of documents ahead of time, into a key store")
    _add_texts(index)
    _add_common(index)
    next(a for a in index._actions if a.dest == "store").required = True
    index.set_defaults(run=_index, question=None)


def _add_store(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    store = commands.add_parser("store", help="look after a key store")
    store.add_argument("action", choices=("info", "verify", "prune"), help="count, check, or remove entries")
    store.add_argument("folder", type=Path, metavar="DIR", help="the store's folder")
    store.add_argument("--keep-model", action="append", metavar="ID", help="prune: remove all other models' entries")
    store.add_argument("--max-bytes", type=int, metavar="N", help="prune: remove the oldest entries beyond N bytes")
    store.add_argument("--quiet", action="store_true", help="no warnings")
    store.add_argument("--debug", action="store_true", help="tell more, and show where an error comes from")
    store.set_defaults(run=_store)


def _add_bench(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    bench = commands.add_parser("bench", help="measure the modes beside transformers on the same prompts")
    bench.add_argument("--questions", type=Path, required=True, metavar="FILE.jsonl", help="what to ask")
    bench.add_argument("--limit", type=int, metavar="N", help="ask N of them, evenly spread")
    bench.add_argument("--repeats", type=int, default=1, metavar="N", help="ask each N times (1)")
    bench.add_argument("--tokens", type=int, default=64, metavar="N", help="longest answer (64)")
    bench.add_argument("--systems", default=_BENCH_SYSTEMS, metavar="A,B", help=f"what to measure ({_BENCH_SYSTEMS})")
    bench.add_argument("--gguf", type=Path, metavar="FILE", help="model file for the system llama.cpp")
    bench.add_argument("--out", type=Path, metavar="DIR", help="write bench.json, bench.md and bench.png there")
    _add_texts(bench)
    _add_common(bench)
    bench.set_defaults(run=_bench, question=None)


def _add_scale(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    scale = commands.add_parser("scale", help="measure what a search costs against the size of a made-up collection")
    scale.add_argument("sizes", nargs="*", type=int, default=[1_000, 10_000, 100_000], metavar="N", help="passages")
    scale.add_argument("--queries", type=int, default=50, metavar="N", help="queries at each size (50)")
    scale.add_argument("--quiet", action="store_true", help="no progress bar")
    scale.add_argument("--debug", action="store_true", help="tell more, and show where an error comes from")
    scale.set_defaults(run=_scale)


def _add_evaluation(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    evaluation = commands.add_parser("eval", help="measure how good the modes' answers are, beside baselines")
    command.add_arguments(evaluation)
    calibration = commands.add_parser("calibrate", help="find settings that fit a model and its documents")
    command.add_calibration_arguments(calibration)
    for parser, run in ((evaluation, _eval), (calibration, _calibrate)):
        _add_texts(parser)
        _add_common(parser)
        parser.set_defaults(run=run, source="hybrid", max_new_tokens=command.ANSWER_TOKENS)


def _add_texts(parser: argparse.ArgumentParser) -> None:
    texts = parser.add_mutually_exclusive_group()
    texts.add_argument("--docs", nargs="+", type=Path, metavar="PATH", help="txt, md, html and pdf files, and folders")
    texts.add_argument("--passages", type=Path, metavar="FILE.jsonl", help='one {"id", "title", "text"} a line')
    parser.add_argument("--passage-words", type=int, default=150, metavar="N", help="split --docs at N words (150)")
    parser.add_argument("--encoding", metavar="NAME", help="encoding of text files (by default detected)")
    parser.add_argument("--skip-unreadable", action="store_true", help="warn about unreadable files and go on")


def _add_files(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--html", type=Path, metavar="FILE", help="write the answers as a page, sources on hover")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the answers as Markdown with footnotes")


def _add_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", default=DEMO_MODEL, metavar="M", help=f"name, folder, GGUF or hub id ({DEMO_MODEL})")
    parser.add_argument("--mode", choices=get_args(Mode), default=argparse.SUPPRESS, help="what is combined (nest)")
    parser.add_argument("--preset", choices=sorted(PRESETS), help="settings to start from (the model's own)")
    parser.add_argument("--settings", type=Path, metavar="FILE", help="settings that nest-engine calibrate has found")
    parser.add_argument("--source", choices=("faiss", "bm25", "hybrid"), default="faiss", help=_SOURCE_HELP)
    parser.add_argument("--store", type=Path, metavar="DIR", help="keep keys in this folder (by default in memory)")
    parser.add_argument("--device", metavar="D", help="cpu, cuda, cuda:1, mps (cpu)")
    parser.add_argument("--dtype", metavar="T", help="float32, bfloat16, float16 or auto")
    parser.add_argument("--json", action="store_true", help="one JSON object per question, nothing else, on stdout")
    parser.add_argument("--quiet", action="store_true", help="no progress bars and warnings")
    parser.add_argument("--debug", action="store_true", help="tell more, and show where an error comes from")
    _add_settings(parser.add_argument_group("settings of the method (what is not given comes from the preset)"))


def _add_settings(group: argparse._ArgumentGroup) -> None:
    """Make a flag of every setting of the configuration."""
    hints = get_type_hints(NestConfig)
    for field in dataclasses.fields(NestConfig):
        if field.name in _NO_FLAGS:
            continue
        unit = f" [{field.metadata['unit']}]" if field.metadata.get("unit") else ""
        text = (str(field.metadata.get("help", "")) + unit).replace("%", "%%")
        flag = "--" + field.name.replace("_", "-")
        group.add_argument(flag, default=argparse.SUPPRESS, help=text, **_flag_options(hints[field.name]))


def _flag_options(hint: Any) -> dict[str, Any]:
    """Return how argparse reads a value of this type."""
    if get_origin(hint) is Literal:
        return {"choices": get_args(hint)}
    if get_origin(hint) is tuple:
        return {"action": "append", "metavar": "TEXT"}
    alternatives = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    if bool in alternatives:
        return {"action": argparse.BooleanOptionalAction}
    return {"type": _converter(alternatives), "metavar": "X" if float in alternatives else "N"}


def _converter(alternatives: tuple[Any, ...]) -> Callable[[str], Any]:
    """Return a function that reads one of several types: None, a whole number, a number or a text."""

    def convert(text: str) -> Any:
        if type(None) in alternatives and text.lower() == "none":
            return None
        for kind in (int, float, str):
            if kind in alternatives:
                with contextlib.suppress(ValueError):
                    return kind(text)
        raise ValueError(text)

    convert.__name__ = "number"  # argparse names it: "invalid number value"
    return convert


def _version() -> str:
    try:
        return version("nest-rag")
    except PackageNotFoundError:
        return "(not installed)"


# --- messages -------------------------------------------------------------------------


def _log_to_stderr(chosen: argparse.Namespace) -> None:
    level = logging.DEBUG if chosen.debug else logging.ERROR if chosen.quiet else logging.WARNING
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("nest-engine: %(message)s"))
    logger = logging.getLogger("nest_engine")
    logger.handlers, logger.propagate = [handler], False
    logger.setLevel(level)
    if chosen.quiet:
        from transformers.utils import logging as transformers_logging

        transformers_logging.disable_progress_bar()


def _complain(error: NestError, question: Question | None = None) -> None:
    """Print an error in one line."""
    where = f"question {question.id}: " if question else ""
    print(f"nest-engine: {where}{' '.join(str(error).split())}", file=sys.stderr)
