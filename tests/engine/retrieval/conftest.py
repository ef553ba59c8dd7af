"""Passages in three languages and an embedder that needs no model."""

import hashlib

import numpy as np
import pytest

from nest_engine.passages import Passage
from nest_engine.retrieval.terms import search_terms

TEXTS = [
    ("otter", "Otters", "Sea otters crack mussels on stones that they carry under the arm. 🦦"),
    ("kelp", "Otters", "Without otters, urchins graze the kelp forests bare."),
    ("bridge", "Bridges", "The old iron bridge carried coal wagons across the gorge until 1961."),
    ("clock", "", "A water clock measures time by a steady flow from one vessel into another."),
    ("pan", "Pan", "La panadería del barrio hornea el pan de centeno antes de las seis de la mañana."),
    ("faro", "Faros", "El farero apagó la luz cuando la niebla se levantó del puerto."),
    ("tea", "茶", "武夷山的岩茶生长在岩石缝隙里，味道醇厚。"),
    ("paper", "造纸", "古代工匠用树皮和破布造纸，纸张因此变得便宜。"),
    ("emoji", "", "Party codes: 🎉🎊 means cake at noon, 👩‍🚀 means the astronaut speaks."),
]


class BagEmbedder:
    """Texts as hashed bags of terms: deterministic, and related texts are near each other."""

    name = "bag@1"
    dim = 64
    min_relevance = 0.2

    def __init__(self):
        self.calls = 0

    def embed(self, texts, *, progress=False):
        self.calls += 1
        vectors = np.zeros((len(texts), self.dim), dtype=np.float32)
        for row, text in enumerate(texts):
            for term in [*search_terms(text), "always"]:
                vectors[row, int(hashlib.md5(term.encode()).hexdigest(), 16) % self.dim] += 1
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


@pytest.fixture
def passages():
    rows = [Passage(text, title=title, id=name) for name, title, text in TEXTS]
    extra = Passage(
        "One line,\u2028another line. \ud83d half", id="odd", offset=12, metadata={"page": 3, "tags": ["a"]}
    )
    return [*rows, extra]


@pytest.fixture
def embedder():
    return BagEmbedder()


@pytest.fixture
def make_embedder():
    return BagEmbedder
