"""The script of docs/langchain.md, pasted: an existing FAISS index in, a cited answer out."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from langchain_core.documents import Document

from nest_engine.config import PRESETS
from tests.conftest import DEMO_MODEL, ROOT
from tests.langchain.helpers import WordEmbeddings


@pytest.mark.demo_model
def test_the_script_works_when_pasted(
    demo_model_dir: Path,
    documents: list[Document],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from langchain_community.vectorstores import FAISS

    script = re.search(r"```python\n(.*?)```", (ROOT / "docs" / "langchain.md").read_text("utf-8"), re.DOTALL)
    assert script is not None
    assert len([line for line in script[1].splitlines() if line.strip()]) <= 12
    FAISS.from_documents(documents, WordEmbeddings()).save_local(str(tmp_path / "my_index"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(PRESETS[DEMO_MODEL], "max_new_tokens", 48)  # for the sake of time
    names: dict[str, object] = {"my_embeddings": WordEmbeddings()}
    exec(compile(script[1], "langchain.md", "exec"), names)
    printed = capsys.readouterr().out
    assert printed.count("\n") >= 3  # the answer, at least one citation, at least one document
    assert names["message"].response_metadata["source_documents"]
