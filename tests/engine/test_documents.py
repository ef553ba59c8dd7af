"""Documents: what is read, what is refused, and that passages keep their place."""

import codecs
import contextlib
import json
import logging
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nest_engine.documents import (
    Document,
    read_document,
    read_documents,
    read_passages,
    read_questions,
    split_document,
)
from nest_engine.errors import ConfigError, DocumentError
from nest_engine.python_reference import python_documents, python_passages
from nest_engine.words import count_words

ENGLISH = "The tide rises twice a day. It falls as often!\n\nSailors know both hours by heart."
SPANISH = "¿Cuándo sube la marea? Dos veces al día. Después baja; así es el mar."
CHINESE = "潮水每天上涨两次。退潮也是两次！水手们都知道时间。"
EMOJI = "Boats 🚤⛵ leave early 👩🏽‍🚀. Cafe\u0301 opens later."


def write(folder, name, content):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def pdf(texts, title=None):
    """A small PDF with one line of text per page, written by hand."""
    pages = len(texts)
    kids = " ".join(f"{4 + 2 * i} 0 R" for i in range(pages))
    objects = [
        "<< /Type /Catalog /Pages 2 0 R >>",
        f"<< /Type /Pages /Kids [{kids}] /Count {pages} >>",
        "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    for i, text in enumerate(texts):
        stream = f"BT /F1 12 Tf 72 720 Td ({text}) Tj ET" if text else ""
        objects.append(
            f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents {5 + 2 * i} 0 R"
            " /Resources << /Font << /F1 3 0 R >> >> >>"
        )
        objects.append(f"<< /Length {len(stream)} >>\nstream\n{stream}\nendstream")
    objects.append(f"<< /Title ({title or ''}) >>")
    body, starts = "%PDF-1.4\n", []
    for number, content in enumerate(objects, start=1):
        starts.append(len(body))
        body += f"{number} 0 obj\n{content}\nendobj\n"
    table = "".join(f"{start:010} 00000 n \n" for start in starts)
    trailer = f"<< /Size {len(objects) + 1} /Root 1 0 R /Info {len(objects)} 0 R >>"
    head = f"xref\n0 {len(objects) + 1}\n0000000000 65535 f \n"
    return (body + head + table + f"trailer\n{trailer}\nstartxref\n{len(body)}\n%%EOF\n").encode("latin-1")


# --- text files ---------------------------------------------------------------------


@pytest.mark.parametrize("text", [ENGLISH, SPANISH, CHINESE, EMOJI, "a\r\nb\r\n\r\n  c  "])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32"])
def test_text_is_kept_exactly(tmp_path, text, encoding):
    document = read_document(write(tmp_path, "tide table.txt", text.encode(encoding)))
    assert document.text == text
    assert document.title == "tide table"
    assert document.id == (tmp_path / "tide table.txt").as_posix()


def test_big_endian_mark(tmp_path):
    data = codecs.BOM_UTF16_BE + CHINESE.encode("utf-16-be")
    assert read_document(write(tmp_path, "a.txt", data)).text == CHINESE


@pytest.mark.parametrize(("text", "encoding"), [(SPANISH * 3, "cp1252"), (CHINESE * 5, "gb18030")])
def test_old_encodings_are_guessed_with_a_warning(tmp_path, caplog, text, encoding):
    with caplog.at_level(logging.WARNING):
        assert read_document(write(tmp_path, "a.txt", text.encode(encoding))).text == text
    assert "not UTF-8" in caplog.text


def test_named_encoding(tmp_path):
    path = write(tmp_path, "a.txt", SPANISH.encode("cp1252"))
    assert read_document(path, encoding="cp1252").text == SPANISH
    with pytest.raises(DocumentError, match="no encoding named 'klingon'"):
        read_document(path, encoding="klingon")
    with pytest.raises(DocumentError, match=r"a\.txt: not valid utf-8"):
        read_document(path, encoding="utf-8")


# --- refusals -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"", "no text in it"),
        ("a.txt", b" \n\t ", "no text in it"),
        ("a.txt", b"text\0with\0nul", "NUL"),
        ("a.docx", b"PK", "unknown kind of file"),
        ("a", b"text", "unknown kind of file"),
        ("a.pdf", b"no pdf at all", "damaged or not a PDF"),
        ("a.pdf", b"", "damaged or not a PDF"),
        ("a.pdf", pdf([""]), "OCR"),
        ("a.html", b"<script>alert(1)</script>", "no text in it"),
    ],
)
def test_refusals_name_the_file(tmp_path, name, content, message):
    path = write(tmp_path, name, content)
    with pytest.raises(DocumentError, match=message) as info:
        read_document(path)
    assert str(info.value).startswith(f"{path}: ")


def test_missing_large_and_special_files(tmp_path):
    with pytest.raises(DocumentError, match=r"gone\.txt: cannot be read .*No such file.*check the path"):
        read_document(tmp_path / "gone.txt")
    with pytest.raises(DocumentError, match="more than the limit"):
        read_document(write(tmp_path, "large.txt", "x" * 2000), max_bytes=1000)
    os.mkfifo(tmp_path / "pipe.txt")
    with pytest.raises(DocumentError, match="not a file"):
        read_document(tmp_path / "pipe.txt")


def test_damaged_pdfs_never_escape(tmp_path):
    whole = pdf(["one", "two"])
    for cut in range(0, len(whole), 97):
        path = write(tmp_path, "cut.pdf", whole[:cut] + whole[cut + 40 :])
        with contextlib.suppress(DocumentError):
            read_document(path)


# --- folders --------------------------------------------------------------------------


def test_folders(tmp_path):
    write(tmp_path, "b.txt", "second")
    write(tmp_path, "a.md", "# First\n\nfirst")
    write(tmp_path, "sub/c.html", "<p>third")
    write(tmp_path, ".hidden/d.txt", "no")
    write(tmp_path, ".e.txt", "no")
    write(tmp_path, "empty.txt", "")
    write(tmp_path, "image.png", b"\x89PNG")
    documents = read_documents([tmp_path, tmp_path / "b.txt"])
    assert [document.text for document in documents] == ["First\n\nfirst", "second", "third"]


def test_one_bad_file_in_a_folder(tmp_path, caplog):
    write(tmp_path, "a.txt", "good")
    write(tmp_path, "b.pdf", b"bad")
    with pytest.raises(DocumentError, match=r"b\.pdf"):
        read_documents(tmp_path)
    with caplog.at_level(logging.WARNING):
        assert len(read_documents(tmp_path, on_error="skip")) == 1
    assert "b.pdf" in caplog.text
    with pytest.raises(ConfigError):
        read_documents(tmp_path, on_error="ignore")


def test_nothing_found(tmp_path):
    with pytest.raises(DocumentError, match=r"no documents in .*\.pdf"):
        read_documents(tmp_path)
    with pytest.raises(DocumentError, match="an empty list"):
        read_documents([])


# --- HTML, Markdown, PDF --------------------------------------------------------------


def test_html(tmp_path):
    html = """<!doctype html><html><head><title> Tide &amp;
      table </title><style>p {}</style></head><body><nav>Home</nav><h1>Tides</h1>
      <p>The <b>tide</b> ri<i>ses</i>
         twice.<br>Then falls.</p><!-- hidden --><script>document.write("no")</script>
      <ul><li>high</li><li>low &#128674;</li></ul><table><tr><td>a</td><td>b</td></tr><tr><td>c</td></tr></table>
      <pre>if x:
    y</pre>tail</body></html>"""
    document = read_document(write(tmp_path, "t.html", html))
    assert document.title == "Tide & table"
    assert document.text == (
        "Tides\n\nThe tide rises twice.\nThen falls.\n\nhigh\n\nlow 🚢\n\na b\n\nc\n\nif x:\n    y\n\ntail"
    )


def test_html_encoding_and_heading_title(tmp_path):
    html = '<meta charset="gb18030"><h1>潮水</h1><p>' + CHINESE
    document = read_document(write(tmp_path, "t.htm", html.encode("gb18030")))
    assert (document.title, document.text) == ("潮水", f"潮水\n\n{CHINESE}")


def test_deeply_nested_html(tmp_path):
    document = read_document(write(tmp_path, "deep.html", "<div>" * 20_000 + "bottom"))
    assert document.text == "bottom"


def test_markdown(tmp_path):
    text = "# Tides\n\nThe *tide* [rises](http://example.org) `twice`.\n\n- high\n- low\n\n```\nif x:\n    y\n```\n"
    document = read_document(write(tmp_path, "t.md", text))
    assert document.title == "Tides"
    assert document.text == "Tides\n\nThe tide rises twice.\n\nhigh\n\nlow\n\nif x:\n    y"


def test_markdown_front_matter(tmp_path):
    text = "---\ndate: 2020-01-01\ntitle: 'High water'\n---\nText.\n"
    document = read_document(write(tmp_path, "t.md", text))
    assert (document.title, document.text) == ("High water", "Text.")


def test_pdf(tmp_path):
    path = write(tmp_path, "t.pdf", pdf(["The tide rises.", "The tide falls."], title="Tide table"))
    document = read_document(path)
    assert document.title == "Tide table"
    assert document.text.split() == ["The", "tide", "rises.", "The", "tide", "falls."]
    first, second = split_document(document, words=3)
    assert (first.metadata["page"], second.metadata["page"]) == (1, 2)
    assert first.metadata["path"] == str(path)


def test_pdf_title_of_the_word_processor(tmp_path):
    path = write(tmp_path, "real name.pdf", pdf(["text"], title="Microsoft Word - draft7.docx"))
    assert read_document(path).title == "real name"


# --- splitting ------------------------------------------------------------------------


def check(document, words):
    """What always holds: exact places, order, no text lost, the limit kept."""
    passages, end, outside = split_document(document, words), 0, ""
    for passage in passages:
        assert passage.document_id == document.id
        assert passage.title == document.title
        assert document.text[passage.offset : passage.offset + len(passage.text)] == passage.text
        assert passage.offset >= end
        assert count_words(passage.text) <= words
        outside += document.text[end : passage.offset]
        end = passage.offset + len(passage.text)
    assert not (outside + document.text[end:]).strip()
    assert len({passage.id for passage in passages}) == len(passages)
    return passages


@pytest.mark.parametrize("text", [ENGLISH, SPANISH, CHINESE, EMOJI, "a\r\n\r\nb", "one\n\n\n\n\ttwo", "x" * 5000])
@pytest.mark.parametrize("words", [1, 4, 7, 150])
def test_split_keeps_every_place(text, words):
    check(Document(text, "T"), words)


@given(st.text(alphabet=st.sampled_from("ab .!?\n\r\t,;潮水。，👍🏽\u0301\u200dÉ1-*=:\u2028")), st.integers(1, 9))
def test_split_of_any_text(text, words):
    if text.strip():
        check(Document(text), words)


def test_split_at_borders():
    sentence = "One two three four five. "
    document = Document(sentence * 3 + "\n\n" + sentence * 4)
    texts = [passage.text for passage in check(document, 20)]
    assert texts == [(sentence * 3).strip(), (sentence * 4).strip()]
    assert all(text.endswith(".") for text in (p.text for p in check(document, 7)))


def test_split_knows_other_full_stops():
    assert [p.text for p in check(Document(CHINESE), 5)] == [
        "潮水每天上涨两次。",
        "退潮也是两次！",
        "水手们都知道时间。",
    ]
    assert check(Document(SPANISH), 5)[0].text == "¿Cuándo sube la marea?"
    assert check(Document("Mr. Smith met Dr. Jones at 5. They ate."), 8)[0].text == "Mr. Smith met Dr. Jones at 5."


def test_headings_stay_with_their_text():
    section = "Tides\n=====\n\nThe tide rises twice a day, and falls.\n\n"
    passages = check(Document(section * 4), 15)
    assert len(passages) == 4
    assert all(passage.text.startswith("Tides\n=====") for passage in passages)


def test_code_is_cut_earlier_than_prose():
    code = "x[i+1]=f(a,b)**2-{**d};" * 200
    assert max(len(p.text) for p in split_document(Document(code), 150)) <= 900


def test_split_refuses_no_words():
    with pytest.raises(ConfigError, match="at least 1"):
        split_document(Document("a"), 0)


def test_equal_texts_in_two_documents_stay_two():
    one, two = (split_document(Document("same", id=name))[0] for name in ("a", "b"))
    assert one.id != two.id


# --- JSON lines -----------------------------------------------------------------------


def test_passages(tmp_path):
    rows = [
        {"id": "p1", "title": "T", "text": " 潮水 \u2028 ", "page": 7},
        {"id": 2, "text": "two", "document_id": "d", "offset": 5},
    ]
    text = "\ufeff" + "\n\n".join(json.dumps(row, ensure_ascii=False) for row in rows) + "\r\n"
    first, second = read_passages(write(tmp_path, "p.jsonl", text))
    assert (first.id, first.title, first.text, first.metadata) == ("p1", "T", " 潮水 \u2028 ", {"page": 7})
    assert (second.id, second.document_id, second.offset) == ("2", "d", 5)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[1]", "must be one JSON object"),
        ("{}", '"text" is missing; the line has no keys'),
        ('{"id": "x", "body": "y"}', "the line has id, body"),
        ('{"text": 5}', '"text" must be a string'),
        ('{"text": "  "}', "no text"),
        ('{"text": "a", "offset": -1}', '"offset" must be'),
        ('{"text": "\\ud83d"}', "surrogate"),
        ('{"id": "first", "text": "b"}', "used before"),
    ],
)
def test_bad_passages_name_the_line(tmp_path, line, message):
    path = write(tmp_path, "p.jsonl", '{"id": "first", "text": "a"}\n\n' + line)
    with pytest.raises(DocumentError, match=message) as info:
        read_passages(path)
    assert str(info.value).startswith(f"{path}:3: ")


def test_unreadable_jsonl(tmp_path):
    with pytest.raises(DocumentError, match="check the path"):
        read_passages(tmp_path / "gone.jsonl")
    with pytest.raises(DocumentError, match=r"p\.jsonl:2: not UTF-8"):
        read_passages(write(tmp_path, "p.jsonl", b'{"text": "a"}\n{"text": "\xff"}'))


def test_questions(tmp_path):
    path = write(tmp_path, "q.jsonl", '{"id": "a", "question": "Why?"}\n{"question": "¿Qué?", "answers": ["x"]}\n')
    assert [(q.id, q.text) for q in read_questions(path)] == [("a", "Why?"), ("2", "¿Qué?")]
    with pytest.raises(DocumentError, match=r':1: "question" is empty'):
        read_questions(write(tmp_path, "q.jsonl", '{"question": " "}'))


def test_shared_files(shared_data):
    for language in ("en", "es", "zh"):
        passages = read_passages(shared_data / f"xquad.{language}.passages.jsonl")
        questions = read_questions(shared_data / f"xquad.{language}.dev.jsonl")
        assert (len(passages), len(questions)) == (240, 612)
        for passage in passages:
            check(Document(passage.text, passage.title, passage.id), 60)


# --- the language reference -----------------------------------------------------------


def test_python_reference():
    documents = {document.id: document for document in python_documents()}
    assert len(documents) > 70
    passages = python_passages()
    assert len({passage.text for passage in passages}) == len(passages) > 300
    for passage in passages:
        text = documents[passage.document_id].text
        assert text[passage.offset : passage.offset + len(passage.text)] == passage.text
    assert 'The "with" statement' in {passage.title for passage in passages}
