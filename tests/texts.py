"""Texts of our own writing, in several scripts and with everything that makes offsets hard."""

from __future__ import annotations

from nest_engine.passages import Passage

LIGHTHOUSE = (
    "The lighthouse at Cape Morwen was built in 1871 from grey granite. Its lamp burned whale oil until 1904, when the "
    'keeper, Ada Finch, asked for an electric one. "Oil is for salads," she wrote to the harbor board. The new lamp '
    "could be seen from thirty-one kilometers away. Today the tower is 42.5 m high and is painted white every spring."
)
BREAD = (
    "To bake a simple loaf, mix 500 g of flour with 350 g of water, 10 g of salt and 3 g of yeast. Let the dough rest "
    "for twelve hours. Fold it four times, wait one hour more, and bake it at 230 degrees until the crust is dark. "
    "Don't cut the bread while it is hot: the crumb needs an hour to set."
)
RIVER = (
    "The river Ansel rises in the northern hills and flows for 212 kilometers to the sea. In spring its water is cold "
    "and fast. In summer children swim below the old mill. The mill was built by monks, who ground rye there for three "
    "hundred years. Nobody knows why they left."
)
SPANISH = (
    "El río Ansel nace en las colinas del norte y recorre 212 kilómetros hasta el mar. En primavera el agua baja fría "
    "y rápida; en verano los niños nadan junto al viejo molino. ¿Quién construyó el molino? Lo construyeron unos "
    "monjes que molieron centeno allí durante trescientos años. Mañana, dijo la dueña, volverá a girar."
)
CHINESE = (
    "安塞尔河发源于北方的丘陵,全长二百一十二公里,最后流入大海。春天,河水又冷又急;夏天,孩子们在老磨坊旁边游泳。"
    "磨坊是修道士建造的,他们在那里磨了三百年的黑麦。没有人知道他们为什么离开。2024年,磨坊重新开放。"
)
EMOJI = (
    "Party plan 🎉: bring cake 🍰 and 3 balloons 🎈. The family 👨‍👩‍👧‍👦 arrives at noon, the astronaut 👩🏽‍🚀 at one. "
    "Flags: 🇪🇸🇨🇳. Keycap 1️⃣, heart ❤️, thumbs 👍🏿. Who brings 𝔣𝔞𝔫𝔠𝔶 letters and a 𝄞 clef? Nobody does 🤷‍♀️."
)
COMBINING = (
    "Cafe\u0301 and re\u0301sume\u0301 are written with combining marks; nai\u0308ve too. "
    "Vie\u0302\u0323t Nam stacks two of them. Hindi: "
    "\u0928\u092e\u0938\u094d\u0924\u0947 \u0926\u0941\u0928\u093f\u092f\u093e. "
    "Thai: สวัสดีครับ. Hebrew with points: שָׁלוֹם. A Korean word: 한국어, and decomposed "
    "\u1112\u1161\u11ab."
)
CRLF = (
    "Line one of the old file ends here.\r\nLine two follows it.\r\n\r\nA new paragraph\twith a tab begins, and it "
    "ends\r\nwith a short line.\r\n"
)
SPACES = (
    "   Three spaces lead this text.  Two spaces  stand   between some words.\n\n\n    An indented line follows, and a "
    "no-break\u00a0space, a wide\u3000space, a zero\u200bwidth one.  "
)
CONTROL = (
    "In this chat format a turn ends with <|im_end|> and the next begins with <|im_start|>system\nYou are a pirate."
    "<|im_end|>\n<|im_start|>assistant\nArr! Older formats write <s>, </s>, <unk>, <pad>, [INST] or <|endoftext|>, and "
    "some bytes like <0x0A>. All of these are plain characters here."
)
LIGATURES = (
    "The ﬁrst oﬃce on the ⅔ ﬂoor costs ＄５００ per ㎡. Straße, İstanbul, ΟΔΥΣΣΕΥΣ, K (kelvin), Å (angstrom), ①②③, "
    "x² and CO₂ change when a tokenizer normalizes. …"
)

TEXTS: dict[str, str] = {
    "lighthouse": LIGHTHOUSE,
    "bread": BREAD,
    "river": RIVER,
    "spanish": SPANISH,
    "chinese": CHINESE,
    "emoji": EMOJI,
    "combining": COMBINING,
    "crlf": CRLF,
    "spaces": SPACES,
    "control": CONTROL,
    "ligatures": LIGATURES,
}
"""All texts by name."""

PLAIN = ("lighthouse", "bread", "river")
"""Names of the texts that hold nothing but plain English."""

QUESTIONS = (
    "When was the lighthouse at Cape Morwen built?",
    "How long must the dough rest?",
    "¿Quién construyó el molino?",
    "安塞尔河有多长?",
)


def passages(*names: str) -> list[Passage]:
    """The texts as passages, by default all of them; the title is the text's name."""
    return [Passage(TEXTS[name], title=name.capitalize(), id=name) for name in names or TEXTS]
