"""LangChain and LlamaIndex over one engine, and each one's store behind the other's model, through engine sources."""

import subprocess
import sys

from langchain_core.documents import Document
from langchain_core.vectorstores import InMemoryVectorStore
from llama_index.core.schema import MetadataMode

from langchain_nest import NestLLM as LangChainLLM
from langchain_nest import StoreSource
from llama_index_nest import IndexSource, NestLLM, NestQueryEngine
from nest_engine.retrieval.source import PassageSource
from tests.conftest import ROOT
from tests.langchain.helpers import WordEmbeddings
from tests.llama_index.world import COPYING, NAMES, QUESTIONS, memory_index
from tests.texts import TEXTS
from tests.tiny import tiny_engine


def test_one_engine_and_each_others_stores():
    engine = tiny_engine(config=COPYING, eos_token_id=None)
    store = InMemoryVectorStore.from_documents([Document(TEXTS[n], id=n) for n in NAMES], WordEmbeddings())
    source = StoreSource(store)
    assert isinstance(source, PassageSource)
    llm = NestLLM(engine=engine, source=source)
    for citation in llm.complete(QUESTIONS[0]).additional_kwargs["citations"]:
        text = TEXTS[citation["passage_id"]]
        assert text[citation["source_start"] : citation["source_end"]] == citation["text"]
    response = NestQueryEngine.from_args(source, llm=llm).query(QUESTIONS[0])
    assert response.source_nodes
    assert {n.node.node_id for n in response.source_nodes} <= set(NAMES)

    index = memory_index()
    other = LangChainLLM(engine=engine, source=IndexSource(index))
    (answer,) = other.generate([QUESTIONS[0]]).generations[0]
    texts = [node.get_content(MetadataMode.NONE) for node in index.docstore.docs.values()]
    cited = [citation["cited_text"] for citation in answer.generation_info["citations"]]
    assert cited
    assert all(any(piece in text for text in texts) for piece in cited)
    assert other.engine is llm.engine


def test_neither_framework_is_imported_by_the_other():
    for ours, others in (("llama_index_nest", "langchain"), ("langchain_nest", "llama_index")):
        code = f"import sys, {ours}; print([m for m in sys.modules if m.split('.')[0].startswith({others!r})])"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
        assert done.stdout.strip() == "[]"
