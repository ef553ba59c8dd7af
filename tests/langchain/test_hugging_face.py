"""Lossless answers are those of HuggingFacePipeline, for the same prompt text."""

from __future__ import annotations

from pathlib import Path

import pytest
from langchain_core.documents import Document

from langchain_nest import NestLLM
from tests.tiny import save_tiny

PROMPTS = ["The raise statement raises", "Größe: 🙂 naïve", "What does the with statement do?", "\n- one\n- two\n-"]


def pipeline_answers(folder: Path, tokens: int, prompts: list[str]) -> list[str]:
    from langchain_huggingface import HuggingFacePipeline

    llm = HuggingFacePipeline.from_model_id(
        str(folder),
        task="text-generation",
        pipeline_kwargs={"max_new_tokens": tokens, "do_sample": False, "return_full_text": False},
    )
    return [llm.invoke(prompt) for prompt in prompts]


@pytest.mark.parametrize("passages_in_prompt", [None, False])
def test_on_a_tiny_model(tmp_path: Path, documents: list[Document], passages_in_prompt: bool | None) -> None:
    folder = save_tiny(tmp_path / "model")
    llm = NestLLM(model=str(folder), documents=documents, mode="lossless", max_tokens=40, dtype="float32")
    answers = [llm.invoke(prompt, passages_in_prompt=passages_in_prompt) for prompt in PROMPTS]
    assert answers == pipeline_answers(folder, 40, PROMPTS)


@pytest.mark.demo_model
@pytest.mark.slow
def test_on_the_demo_model(demo_model_dir: Path, documents: list[Document]) -> None:
    llm = NestLLM(model=str(demo_model_dir), documents=documents, mode="lossless", max_tokens=32)
    prompts = ["The raise statement raises the exception", "The with statement is used to"]
    assert [llm.invoke(prompt) for prompt in prompts] == pipeline_answers(demo_model_dir, 32, prompts)
