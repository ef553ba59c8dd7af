"""A streamed answer grows in place; IPython is only asked for when it is used."""

import itertools
import sys
import types

import pytest

from nest_engine.errors import ConfigError
from nest_engine.generation import GenerationPiece
from nest_engine.rendering.notebook import GrowingAnswer, display_stream
from tests.answers import island
from tests.engine.rendering.reading import read_html


def pieces(generation):
    """Stream an answer in pieces of seven characters, each citation with the piece that completes it."""
    text = generation.text
    for at in range(0, len(text), 7):
        final = tuple(c for c in generation.citations if at < c.end <= at + 7)
        yield GenerationPiece(text[at : at + 7], final)
    yield GenerationPiece("", (), generation)


class Handle:
    def __init__(self, first):
        self.pictures = [first._repr_html_()]

    def update(self, picture):
        self.pictures.append(picture._repr_html_())


@pytest.fixture
def handles(monkeypatch):
    made = []

    def display(picture, display_id):
        assert display_id
        made.append(Handle(picture))
        return made[-1]

    module = types.ModuleType("IPython.display")
    module.display = display
    monkeypatch.setitem(sys.modules, "IPython", types.ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    return made


def test_the_answer_grows_in_place(handles):
    generation = island()
    assert display_stream(pieces(generation), seconds=0.0) is generation
    (handle,) = handles
    texts = [read_html(picture).text for picture in handle.pictures]
    assert texts[0] == ""
    assert texts[-1] == generation.text
    assert all(later.startswith(earlier) for earlier, later in itertools.pairwise(texts))
    assert len({picture.split('id="')[1].split('"')[0] for picture in handle.pictures}) == 1
    middle = read_html(handle.pictures[len(texts) // 2])
    assert middle.numbers
    assert "nest-caret" in handle.pictures[3]
    assert 'nest-caret"' not in handle.pictures[-1]


def test_pictures_are_not_drawn_faster_than_they_are_seen(handles):
    display_stream(pieces(island()), seconds=1000.0)
    assert len(handles[0].pictures) == 2


def test_outside_of_a_notebook(monkeypatch, handles):
    monkeypatch.setattr(sys.modules["IPython.display"], "display", lambda picture, display_id: None)
    generation = island()
    assert display_stream(pieces(generation)) is generation


def test_without_ipython(monkeypatch):
    for name in ("IPython", "IPython.display"):  # another test may have imported it
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigError, match="pip install ipython"):
        display_stream([])


def test_plain_consoles_get_the_text():
    answer = GrowingAnswer()
    answer.add(GenerationPiece("Hello"))
    assert repr(answer) == "Hello"
