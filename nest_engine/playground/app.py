"""The page: Gradio around a `Bench`. Nothing on it is fetched from elsewhere or told to anyone."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from nest_engine.errors import ConfigError, NestError
from nest_engine.generation import Generation
from nest_engine.playground import samples
from nest_engine.playground.bench import Bench, Texts
from nest_engine.playground.steps import to_table
from nest_engine.rendering import to_html, view_generation
from nest_engine.rendering.html import escape_text

MODES = ("nest", "ra-nest", "lossless", "knn-lm")
_KINDS = [".txt", ".md", ".rst", ".html", ".htm", ".pdf"]
_INTRO = (
    "# nest-rag playground\n"
    "A local model answers from your documents by copying from them. The plain model's answer stands beside it. "
    "Copied is not the same as true."
)
_FONTS = ["system-ui", "-apple-system", "Segoe UI", "Roboto", "Noto Sans", "Liberation Sans", "sans-serif"]
_WAITING = '<p class="nest-note">Working…</p>'
_NOTHING = '<p class="nest-note">The answer comes here.</p>'


def load_gradio() -> Any:
    """Import Gradio, with its usage statistics off.

    Raises:
        ConfigError: If it is not installed.
    """
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    try:
        import gradio
    except ModuleNotFoundError as error:
        raise ConfigError("the playground needs Gradio: pip install 'nest-rag[playground]'") from error
    return gradio


def make_app(bench: Bench) -> Any:
    """Make the page.

    Args:
        bench: What answers.

    Returns:
        A `gradio.Blocks`, to be started with `launch`.

    Raises:
        ConfigError: If Gradio is not installed.
    """
    gr = load_gradio()
    config = bench.engine.config
    with gr.Blocks(title="nest-rag playground", analytics_enabled=False, delete_cache=(3600, 3600)) as app:
        gr.Markdown(_INTRO)
        texts = _texts(gr, bench)
        question = gr.Textbox(samples.QUESTION, label="Question", elem_id="nest-question", lines=2, submit_btn=False)
        settings = _sliders(gr, config)
        ask = gr.Button("Ask", variant="primary", elem_id="nest-ask")
        with gr.Row(equal_height=False):
            plain = _column(gr, "Plain model", "nest-plain")
            nest = _column(gr, "NEST", "nest-nest")
        gr.Markdown("## Step by step")
        steps = gr.HTML(to_table(()), elem_id="nest-steps", apply_default_css=False)
        everything = [question, *texts, *settings]
        private: dict[str, Any] = {"api_visibility": "private", "show_progress": "hidden"}
        for event in (ask.click, question.submit):
            event(_answer(bench), everything, [plain, nest, steps], **private)
        for setting in settings:
            moved = setting.release if hasattr(setting, "release") else setting.change
            moved(_answer_again(bench), [*everything, nest], [nest, steps], trigger_mode="always_last", **private)
    return app


def launch(app: Any, *, host: str = "127.0.0.1", port: int | None = None, wait: bool = True) -> str:
    """Serve the page.

    Args:
        app: From `make_app`.
        host: The address to listen at; by default this machine alone can reach it.
        port: The port; by default the first free one from 7860 on.
        wait: Serve until the process is interrupted; else return at once.

    Returns:
        The page's address.

    Raises:
        ConfigError: If the address is not to be had.
    """
    gr = load_gradio()
    try:
        _, address, _ = app.queue(api_open=False).launch(
            server_name=host,
            server_port=port,
            share=False,
            inbrowser=False,
            prevent_thread_lock=True,
            quiet=True,
            show_error=False,
            ssr_mode=False,
            pwa=False,
            mcp_server=False,
            enable_monitoring=False,
            run_history=False,
            footer_links=[],
            max_file_size="50mb",
            theme=gr.themes.Base(primary_hue="blue", neutral_hue="slate", font=_FONTS, font_mono=["monospace"]),
            css=files("nest_engine.playground").joinpath("app.css").read_text(encoding="utf-8"),
        )
    except OSError as error:
        raise ConfigError(f"cannot listen at {host}:{port or 7860}: {error}; choose another --port") from error
    if wait:
        app.block_thread()
    return str(address)


def _texts(gr: Any, bench: Bench) -> list[Any]:
    given = len(bench.passages)
    with gr.Accordion(f"Documents{f' (besides {given} passages given at the start)' if given else ''}", open=not given):
        with gr.Row():
            pasted = gr.Textbox(
                "" if given else samples.TEXT, label="Text", lines=7, max_lines=14, scale=2, elem_id="nest-text"
            )
            uploaded = gr.File(
                label="Files", file_count="multiple", file_types=_KINDS, type="filepath", elem_id="nest-files"
            )
    return [pasted, uploaded]


def _sliders(gr: Any, config: Any) -> list[Any]:
    with gr.Row():
        mode = gr.Dropdown(list(MODES), value=config.mode if config.mode in MODES else "nest", label="Mode")
        gamma = gr.Slider(
            -6, 0, value=_power(config.gamma), step=0.1, label="Gamma, as a power of ten", elem_id="nest-gamma",
            info="Lower keeps more of a draft",
        )  # fmt: skip
        delta = gr.Slider(
            0, 1, value=config.delta, step=0.01, label="Delta", elem_id="nest-delta",
            info="Spans start where lambda is at most this",
        )  # fmt: skip
        alpha = gr.Slider(
            0, 1, value=config.alpha, step=0.01, label="Alpha", elem_id="nest-alpha",
            info="Higher trusts the documents more",
        )  # fmt: skip
    return [mode, gamma, delta, alpha]


def _column(gr: Any, title: str, name: str) -> Any:
    with gr.Column(min_width=300, elem_classes="nest-column"):
        gr.Markdown(f"## {title}")
        return gr.HTML(_NOTHING, elem_id=name, apply_default_css=False)


def _power(gamma: float) -> float:
    import math

    return round(math.log10(gamma), 1)


def _show(generation: Generation) -> str:
    return to_html(view_generation(generation))


def _trouble(error: NestError) -> str:
    return f'<p class="nest-trouble" role="alert">{escape_text(str(error))}</p>'


def _ask(
    bench: Bench, question: str, pasted: str, uploaded: Sequence[str] | None, mode: str, gamma: float, delta: float,
    alpha: float,
) -> Generation:  # fmt: skip
    title = samples.TITLE if pasted == samples.TEXT else Texts.title
    texts = Texts(tuple(Path(path) for path in uploaded or ()), pasted, title)
    return bench.ask(question, texts, mode=mode, gamma=10**gamma, delta=delta, alpha=alpha)


def _answer(bench: Bench) -> Any:
    """What a click on the button does: the plain answer first, then NEST's."""

    def answer(question: str, *rest: Any) -> Iterator[tuple[str, str, str]]:
        yield _WAITING, _NOTHING, to_table(())
        plain = _NOTHING
        try:
            plain = _show(bench.plain(question))
            yield plain, _WAITING, to_table(())
            generation = _ask(bench, question, *rest)
        except NestError as error:
            yield plain, _trouble(error), to_table(())
        else:
            yield plain, _show(generation), to_table(generation.trace)

    return answer


def _answer_again(bench: Bench) -> Any:
    """What moving a slider does, once there is an answer."""

    def again(*rest: Any) -> Iterator[tuple[str, str]]:
        *everything, shown = rest
        if shown == _NOTHING:
            yield shown, to_table(())
            return
        yield _WAITING, to_table(())
        try:
            generation = _ask(bench, *everything)
        except NestError as error:
            yield _trouble(error), to_table(())
        else:
            yield _show(generation), to_table(generation.trace)

    return again
