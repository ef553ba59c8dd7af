"""The demo model, and the script that a newcomer pastes."""

import re
import subprocess
import sys

import pytest
from llama_index.core.evaluation import CorrectnessEvaluator, FaithfulnessEvaluator
from llama_index.core.response_synthesizers import get_response_synthesizer
from llama_index.core.schema import MetadataMode

from llama_index_nest import NestChatEngine, NestLLM, NestQueryEngine
from tests.conftest import ROOT
from tests.llama_index.world import QUESTIONS, assert_verbatim, memory_index
from tests.tiny import greedy

pytestmark = [pytest.mark.demo_model, pytest.mark.slow]


@pytest.fixture(scope="module")
def index():
    return memory_index()


@pytest.fixture(scope="module")
def llm(demo_engine):
    return NestLLM(engine=demo_engine, max_new_tokens=40)


def test_answers_from_the_right_node(llm, index):
    response = NestQueryEngine.from_args(index, llm=llm, similarity_top_k=1).query(QUESTIONS[1])
    assert [n.node.metadata["title"] for n in response.source_nodes] == ["Bread"]
    assert_verbatim(response.response, response.metadata["citations"], index.docstore.docs)


def test_chat_engine(llm, index):
    chat = NestChatEngine.from_defaults(index, llm=llm)
    for question in QUESTIONS[:2]:
        response = chat.chat(question)
        assert_verbatim(response.response, response.metadata["citations"], index.docstore.docs)
    assert len(chat.chat_history) == 4


def test_lossless_equals_greedy(llm, index):
    tokenizer = llm.engine.model.tokenizer
    prompt = "The lighthouse at Cape Morwen was built"
    expected = greedy(llm.engine.model.lm, tokenizer._tokenizer(prompt)["input_ids"], 24)
    answer = llm.complete(prompt, formatted=True, index=index, mode="lossless", max_new_tokens=24)
    assert answer.text == tokenizer.decode(expected)


def test_foreign_parts_on_real_input(llm, index):
    brief = NestLLM(engine=llm.engine, max_new_tokens=8)
    nodes = index.as_retriever(similarity_top_k=2).retrieve(QUESTIONS[0])
    for mode in ("tree_summarize", "refine", "compact"):
        answer = get_response_synthesizer(llm=brief, response_mode=mode).synthesize(QUESTIONS[0], nodes)
        assert answer.response.strip()
    contexts = [n.node.get_content(MetadataMode.NONE) for n in nodes]
    assert FaithfulnessEvaluator(llm=brief).evaluate(response="It was built in 1871.", contexts=contexts).feedback
    strict = CorrectnessEvaluator(llm=brief, parser_function=lambda text: (None, text))
    assert strict.evaluate(query=QUESTIONS[0], response="In 1871.", reference="1871").feedback


def test_the_newcomers_script_works_when_pasted(demo_model_dir, tmp_path):
    """The first script of the documentation, in a process of its own."""
    script = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "llamaindex.md").read_text("utf-8"), re.DOTALL)[0]
    assert len([line for line in script.splitlines() if line.strip()]) <= 14
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, check=False, timeout=600
    )
    assert done.returncode == 0, done.stderr
    assert "1871" in done.stdout
    assert "[1]" in done.stdout
