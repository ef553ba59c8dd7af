"""The steps of an answer as a table of HTML: what was drafted, what was kept, what was refused (the paper's figure 1).

All texts go through `escape_text`, as in the answer itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib.resources import files

from nest_engine.rendering.html import escape_text
from nest_engine.trace import Draft, TraceStep

_LONGEST = 160
"""Characters of a dropped text that are shown: what was not looked at matters least."""

_HEADINGS = (
    ("step", "Step"),
    ("token", "At token"),
    ("weight", "Lambda"),
    ("event", "What happened"),
    ("draft", "Draft"),
    ("text", "Added to the answer"),
)
_NOTE = (
    "Lambda is the weight of the model against the documents: 1 is the model alone. A draft is copied "
    "up to the first token that is refused; what comes behind it is dropped unread."
)
_EMPTY = '<p class="nest-note">No steps yet. Ask a question.</p>'


def to_table(steps: Sequence[TraceStep]) -> str:
    """Write steps as a piece of HTML, with its style.

    Args:
        steps: `Generation.trace`.
    """
    return f"<style>{_style()}</style>{_table(steps) if steps else _EMPTY}"


@cache
def _style() -> str:
    return files("nest_engine.playground").joinpath("steps.css").read_text(encoding="utf-8").strip()


def _table(steps: Sequence[TraceStep]) -> str:
    head = "".join(f'<th scope="col" class="nest-{name}">{words}</th>' for name, words in _HEADINGS)
    at, rows = 0, []
    for step in steps:
        rows.append(_row(step, at))
        at += len(step.tokens)
    # Focusable, so that the keyboard can scroll it.
    return (
        '<div class="nest-steps" role="region" aria-label="Steps of the answer" tabindex="0">'
        f"<table><caption>{len(steps)} steps for {at} tokens. {_NOTE}</caption>"
        f"<thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


def _row(step: TraceStep, at: int) -> str:
    cells = (
        ("token", str(at + 1)),
        ("weight", _weight(step.weight)),
        ("event", escape_text(_event(step))),
        ("draft", _draft(step.draft) if step.draft else "–"),
        ("text", f'<span dir="auto">{escape_text(step.text)}</span>' if step.text else "–"),
    )
    body = "".join(f'<td class="nest-{name}">{cell}</td>' for name, cell in cells)
    kind = ' class="nest-copying"' if step.draft and step.draft.accepted else ""
    return f'<tr{kind}><th scope="row" class="nest-step">{step.number}</th>{body}</tr>'


def _weight(weight: float | None) -> str:
    if weight is None:
        return "–"
    bar = f'<span class="nest-bar" aria-hidden="true"><span style="width:{weight:.0%}"></span></span>'
    return f"{weight:.2f}{bar}"


def _event(step: TraceStep) -> str:
    """What happened, in words."""
    draft = step.draft
    if draft is None:
        if not step.tokens:
            return "the answer ends"
        return (
            "the model’s token; a neighbor has it too" if step.tokens[0].origin == "neighbor" else "the model’s token"
        )
    words = f"{draft.accepted} of {len(draft.tokens)} tokens accepted"
    if draft.is_rejected:
        return f"{words}, one rejected" + (", then the model’s token" if step.tokens[draft.accepted :] else "")
    return words if draft.accepted == len(draft.tokens) else f"{words}, then the answer ends"


def _draft(draft: Draft) -> str:
    rejected = draft.rejected
    parts = [
        f'<mark><span class="nest-said">accepted: </span>{escape_text(draft.accepted_text)}</mark>'
        if draft.accepted
        else "",
        f'<del><span class="nest-said">rejected: </span>{escape_text(rejected.text)}</del>' if rejected else "",
        f'<span class="nest-dropped"><span class="nest-said">dropped: </span>{_cut(draft.dropped_text)}</span>'
        if draft.dropped_text
        else "",
    ]
    start = draft.start
    title = start.title or start.passage_id
    place = f"<bdi>{escape_text(title)}</bdi>, passage {start.passage + 1}, token {start.position + 1}"
    return f'<span class="nest-from">{place}</span><span dir="auto">{"".join(parts)}</span>'


def _cut(text: str) -> str:
    return escape_text(text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…")
