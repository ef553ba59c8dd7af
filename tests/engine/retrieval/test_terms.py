import pytest

from nest_engine.retrieval.terms import search_terms


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Hello, World!", ["hello", "world"]),
        ("¿Cuántos años?", ["cuantos", "anos"]),
        ("Beyoncé’s l'homme Super_Bowl_50", ["beyonce", "s", "l", "homme", "super", "bowl", "50"]),
        ("1,234.5 km", ["1,234.5", "km"]),
        ("黑豹队", ["黑豹", "豹队"]),
        ("用 GPU 算", ["用", "gpu", "算"]),
        ("ＡＢＣ１２", ["abc12"]),
        ("👩‍🚀🎉 ok", ["👩‍🚀", "🎉", "ok"]),
        ("カタカナとひらがな", ["カタ", "タカ", "カナ", "ナと", "とひ", "ひら", "らが", "がな"]),
        ("हिन्दी भाषा", ["हिन्दी", "भाषा"]),
        ("?!… —", []),
        ("", []),
    ],
)
def test_terms(text, expected):
    assert search_terms(text) == expected


def test_thai_runs_become_pairs_with_their_marks():
    assert search_terms("น้ำชา")[0].startswith("น้")
    assert len(search_terms("น้ำชา")) > 1


def test_case_and_accents_do_not_matter():
    assert search_terms("ÁRBOL Straße") == search_terms("arbol STRASSE")
