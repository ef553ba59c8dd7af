"""Answers made by hand, as the engine would give them: for what shows answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nest_engine import Citation, Generation, Passage, ScoredPassage, Stats
from nest_engine.citations.citation import Kind
from nest_engine.generation import Seconds
from tests.texts import BREAD, CRLF, EMOJI, LIGHTHOUSE, RIVER

STATS = Stats("ra-nest", 58, 41, 3, 20, 24, 60, 34, 0.41, 210, 3, Seconds(0.02, 0.0, 0.2, 1.6, 1.82))

Part = str | tuple[int, int, int] | tuple[int, int, int, Kind]
"""The model's own words, or a copy: place of the passage, start and end in it, and its kind."""


def answer_of(passages: Sequence[Passage], parts: Sequence[Part], **changes: Any) -> Generation:
    """Put an answer together from copies and own words.

    Args:
        passages: The passages.
        parts: What the answer is made of.
        **changes: Fields of the generation.
    """
    text, citations, numbers = "", [], dict[str, int]()
    for part in parts:
        if isinstance(part, str):
            text += part
            continue
        passage, (start, end) = passages[part[0]], part[1:3]
        copied = passage.text[start:end]
        number = numbers.setdefault(passage.document_id, len(numbers) + 1)
        kind: Kind = part[3] if len(part) == 4 else "copied"
        offset = None if passage.offset is None else passage.offset + start
        at = (len(text), len(text) + len(copied))
        ids = (passage.id, passage.document_id, passage.title)
        citations.append(Citation(number, kind, *at, *ids, start, start + len(copied), offset, copied))
        text += copied
    scored = tuple(ScoredPassage(passage) for passage in passages)
    return Generation(**{"text": text, "citations": tuple(citations), "stats": STATS, "finish_reason": "end",
                         "passages": scored, **changes})  # fmt: skip


def place(passage: Passage, words: str) -> tuple[int, int]:
    """Where words stand in a passage."""
    start = passage.text.index(words)
    return start, start + len(words)


def island() -> Generation:
    """An answer as one would like it: three sources, copied and matched."""
    sources = [
        Passage(LIGHTHOUSE, title="The lighthouse at Cape Morwen", id="lighthouse", offset=1200,
                metadata={"url": "https://example.org/lighthouse"}),
        Passage(RIVER, title="The river Ansel", id="river", metadata={"source": "river.md"}),
        Passage(BREAD, title="A simple loaf", id="bread", metadata={"source": "https://example.net/bread?loaf=1"}),
    ]  # fmt: skip
    return answer_of(
        sources,
        [
            "Yes, you can visit both in one day. ",
            (0, *place(sources[0], "The lighthouse at Cape Morwen was built in 1871 from grey granite.")),
            " It stands where the land ends. ",
            (0, *place(sources[0], "Today the tower is 42.5 m high and is painted white every spring.")),
            "\n\nFrom there a path follows the water inland: ",
            (1, *place(sources[1], "In summer children swim below the old mill.")),
            " ",
            (1, *place(sources[1], "Nobody knows why they left."), "matched"),
            " Take some bread along, and remember: ",
            (2, *place(sources[2], "Don't cut the bread while it is hot: the crumb needs an hour to set.")),
        ],
    )


HOSTILE = (
    'Before </span></div><script>window.broken = "script"</script> <img src=x onerror="window.broken=1"> '
    '<a href="javascript:window.broken=2">click</a> <b>unclosed <!-- <style>*{display:none} '
    "&lt;script&gt; \" ' ` ]]> ]] ${x} {{y}} \u202egnp.exe\u202c pay\u200bpal \u2066isolated\u2069 "
    "\x1b[31mred\x00\x07 [^1]: javascript:alert(1) [x](javascript:alert(1)) ![y](https://example.org/pixel.png) "
    "<https://example.org> |table| **bold** $math$ after"
)


def hostile() -> Generation:
    """An answer whose documents do all they can to break out."""
    link = ' java\tscript:alert(1)//"><script>window.broken=3</script>'
    bad = Passage(HOSTILE, title="</title><script>window.broken=4</script>\u202e", id='"><img src=x onerror=alert(1)>',
                  metadata={"url": link, "source": "data:text/html,<script>window.broken=5</script>"})  # fmt: skip
    worse = Passage(
        "# Heading\n- item\n1. one\n===\n    code <script>\n> quote",
        title='" onmouseover="window.broken=6',
        id="worse",
        metadata={"url": 'https://example.org/"onmouseover="window.broken=7" <script>'},
    )
    inner = HOSTILE.index("<script>")
    return answer_of(
        [bad, worse],
        ["(javascript:alert(0)) ", (0, 0, len(HOSTILE)), "(javascript:alert(1)): ", (0, inner, inner + 30), "\n",
         (1, 0, len(worse.text)), "\n- <u>end"],
    )  # fmt: skip


def scripts() -> Generation:
    """Hebrew and Arabic, emoji, combining marks and CRLF."""
    hebrew = Passage("המגדלור בקייפ מורוון נבנה בשנת 1871 מגרניט אפור. גובהו 42.5 מטר.", title="המגדלור", id="he")
    arabic = Passage("بُنيت المنارة عام 1871 من الجرانيت الرمادي. يبلغ ارتفاعها 42.5 متراً.", title="المنارة", id="ar")
    emoji = Passage(EMOJI, title="Party 🎉", id="emoji")
    crlf = Passage(CRLF, title="Old file", id="crlf")
    accent = Passage("The cafe\u0301 opens at nine and closes at noon.", title="Cafe\u0301", id="accent")
    family = EMOJI.index("👨") + 1
    return answer_of(
        [hebrew, arabic, emoji, crlf, accent],
        ["לפי המסמך (source), ", (0, 0, 49), " זה הכל.\n", (1, 0, 43), "\n",
         "It says ", (2, 0, family), EMOJI[family : family + 6], " and ", (3, 0, 68), " then ",
         (4, 0, 8), "\u0301 (cut inside a letter)."],
    )  # fmt: skip
