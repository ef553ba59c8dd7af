"""LlamaIndex's own parts around ours: retrievers that change nodes, synthesizers, transforms, evaluators, agents."""

import asyncio

import pytest
from llama_index.core import StorageContext, SummaryIndex, VectorStoreIndex
from llama_index.core.agent.workflow import ReActAgent
from llama_index.core.evaluation import (
    CorrectnessEvaluator,
    FaithfulnessEvaluator,
    RelevancyEvaluator,
    SemanticSimilarityEvaluator,
)
from llama_index.core.indices.query.query_transform import HyDEQueryTransform, StepDecomposeQueryTransform
from llama_index.core.node_parser import HierarchicalNodeParser, SentenceWindowNodeParser, get_leaf_nodes
from llama_index.core.postprocessor import LLMRerank, MetadataReplacementPostProcessor
from llama_index.core.query_engine import RouterQueryEngine, TransformQueryEngine
from llama_index.core.response_synthesizers import ResponseMode, get_response_synthesizer
from llama_index.core.retrievers import AutoMergingRetriever, QueryFusionRetriever
from llama_index.core.schema import MetadataMode, QueryBundle
from llama_index.core.selectors import LLMSingleSelector
from llama_index.core.storage.docstore import SimpleDocumentStore
from llama_index.core.tools import QueryEngineTool
from llama_index.core.workflow import StartEvent, StopEvent, Workflow, step

from llama_index_nest import NestLLM, NestQueryEngine
from nest_engine.generation import Generation, GenerationPiece, Stats
from tests.llama_index.world import (
    QUESTIONS,
    BagEmbedding,
    assert_verbatim,
    documents,
    memory_index,
    split_nodes,
    tiny_llm,
)
from tests.texts import TEXTS
from tests.tiny import tiny_engine

QUESTION = QUESTIONS[0]
WINDOW = {"max_position_embeddings": 4096}


@pytest.fixture(scope="module")
def index():
    return memory_index()


@pytest.fixture(scope="module")
def llm():
    return tiny_llm(model_arguments=WINDOW)


class Scripted(NestLLM):
    """Says what the test wants it to say, and keeps the prompts."""

    def __init__(self, *texts):
        super().__init__(engine=tiny_engine())
        object.__setattr__(self, "texts", list(texts))
        object.__setattr__(self, "prompts", [])

    def _start(self, prompt, *rest):
        self.prompts.append("\n".join(m["content"] for m in prompt.messages))
        text = self.texts.pop(0)
        stats = Stats("lm", 1, 0, 0, 1, 1, 0, 0, 1.0)

        def pieces():
            for word in text.split(" "):
                yield GenerationPiece(word + " ")
            yield GenerationPiece("", (), Generation(text + " ", (), stats, "end"))

        return pieces()


class TestRetrieversThatChangeNodes:
    def check(self, engine, documents_of):
        """Citations follow the text that was used."""
        used = 0
        for question in QUESTIONS:
            response = engine.query(question)
            nodes = {n.node.node_id: n.node for n in response.source_nodes}
            citations = response.metadata["citations"]
            assert sum(len(n.citations) for n in response.source_nodes) == len(citations) > 0
            for citation in citations:
                text = nodes[citation["passage_id"]].get_content(MetadataMode.NONE)
                assert text[citation["source_start"] : citation["source_end"]] == citation["text"]
                assert response.response[citation["start"] : citation["end"]] == citation["text"]
                if citation["document_start"] is not None:
                    used += 1
                    whole = documents_of(citation["document_id"])
                    assert whole[citation["document_start"] :].startswith(citation["text"])
        return used

    def test_sentence_window(self, llm):
        parser = SentenceWindowNodeParser.from_defaults(window_size=1)
        nodes = parser.get_nodes_from_documents(documents())
        replace = MetadataReplacementPostProcessor(target_metadata_key="window")
        engine = NestQueryEngine.from_args(memory_index(nodes), llm=llm, node_postprocessors=[replace])
        windows = [n.node.get_content(MetadataMode.NONE) for n in engine.retrieve(QueryBundle(QUESTION))]
        assert set(windows) <= {n.metadata["window"] for n in nodes}
        assert not set(windows) & {n.metadata["original_text"] for n in nodes}
        self.check(engine, lambda id: TEXTS[id.removeprefix("doc-")])

    def test_auto_merging(self, llm):
        parser = HierarchicalNodeParser.from_defaults(chunk_sizes=[300, 40], chunk_overlap=0)
        nodes = parser.get_nodes_from_documents(documents())
        leaves = get_leaf_nodes(nodes)
        docstore = SimpleDocumentStore()
        docstore.add_documents(nodes)
        storage = StorageContext.from_defaults(docstore=docstore)
        leaf_index = VectorStoreIndex(leaves, storage_context=storage, embed_model=BagEmbedding())
        retriever = AutoMergingRetriever(leaf_index.as_retriever(similarity_top_k=8), storage, simple_ratio_thresh=0.3)
        leaf_ids = {n.node_id for n in leaves}
        assert any(n.node.node_id not in leaf_ids for n in retriever.retrieve(QUESTION)), "something was merged"
        texts = {n.node_id: n.get_content(MetadataMode.NONE) for n in nodes} | {
            f"doc-{name}": text for name, text in TEXTS.items()
        }
        assert self.check(NestQueryEngine.from_args(retriever, llm=llm), texts.__getitem__)

    def test_fusion(self, index, llm):
        fusion = QueryFusionRetriever(
            [index.as_retriever(similarity_top_k=4), SummaryIndex(split_nodes()[:3]).as_retriever()],
            llm=Scripted(),
            num_queries=1,
            mode="reciprocal_rerank",
            use_async=False,
            similarity_top_k=5,
        )
        assert self.check(NestQueryEngine.from_args(fusion, llm=llm), lambda id: TEXTS[id.removeprefix("doc-")])

    def test_fusion_with_queries_of_our_llm(self, index, llm):
        writer = Scripted("tower of granite\nwhale oil lamp")
        fusion = QueryFusionRetriever(
            [index.as_retriever(similarity_top_k=2)], llm=writer, num_queries=3, use_async=False
        )
        response = NestQueryEngine.from_args(fusion, llm=llm).query(QUESTION)
        assert "Generate 2 search queries" in writer.prompts[0]
        assert_verbatim(response.response, response.metadata["citations"], index.docstore.docs)


class TestSynthesizers:
    @pytest.mark.parametrize(
        "mode",
        [
            ResponseMode.TREE_SUMMARIZE,
            ResponseMode.REFINE,
            ResponseMode.COMPACT,
            ResponseMode.SIMPLE_SUMMARIZE,
            ResponseMode.ACCUMULATE,
        ],
    )
    def test_run_with_our_llm(self, index, llm, mode):
        nodes = index.as_retriever(similarity_top_k=3).retrieve(QUESTION)
        synthesizer = get_response_synthesizer(llm=llm, response_mode=mode)
        response = synthesizer.synthesize(QUESTION, nodes)
        assert response.response.strip()
        assert asyncio.run(synthesizer.asynthesize(QUESTION, nodes)).response == response.response

    def test_texts_reach_the_prompt(self, index):
        writer = Scripted("First answer.", "Better answer.", "Best answer.")
        nodes = index.as_retriever(similarity_top_k=3).retrieve(QUESTION)
        response = get_response_synthesizer(llm=writer, response_mode="refine").synthesize(QUESTION, nodes)
        assert response.response.strip() == "Best answer."
        assert nodes[0].node.get_content(MetadataMode.NONE) in writer.prompts[0]
        assert "First answer." in writer.prompts[1]

    def test_streaming(self, index, llm):
        nodes = index.as_retriever(similarity_top_k=2).retrieve(QUESTION)
        plain = get_response_synthesizer(llm=llm, response_mode="compact").synthesize(QUESTION, nodes)
        stream = get_response_synthesizer(llm=llm, response_mode="compact", streaming=True)
        pieces = list(stream.synthesize(QUESTION, nodes).response_gen)
        assert len(pieces) > 5
        assert "".join(pieces) == plain.response

    def test_in_llama_indexs_own_query_engine(self, index):
        """Its synthesizer takes the text only: the answer is the same as without us, and the LLM's events cite."""
        own = tiny_llm(index=index, model_arguments=WINDOW)
        assert str(index.as_query_engine(llm=own).query(QUESTION))


class TestTransforms:
    def test_hyde(self, index, llm):
        engine = TransformQueryEngine(
            NestQueryEngine.from_args(index, llm=llm), HyDEQueryTransform(llm=llm, include_original=True)
        )
        response = engine.query(QUESTION)
        assert_verbatim(response.response, response.metadata["citations"], index.docstore.docs)

    def test_step_decompose(self, llm):
        bundle = StepDecomposeQueryTransform(llm=llm).run(QueryBundle(QUESTION), metadata={"index_summary": "places"})
        assert bundle.query_str

    def test_router_and_rerank(self, index, llm):
        engine = NestQueryEngine.from_args(
            index,
            llm=llm,
            node_postprocessors=[LLMRerank(llm=Scripted("Doc: 2, Relevance: 9\nDoc: 1, Relevance: 3"), top_n=2)],
        )
        selector = LLMSingleSelector.from_defaults(llm=Scripted('[{"choice": 1, "reason": "it fits"}]'))
        router = RouterQueryEngine(selector, [QueryEngineTool.from_defaults(engine, description="places")], llm=llm)
        response = router.query(QUESTION)
        assert response.metadata["citations"]
        assert response.metadata["stats"]["passages"] == 2


class TestEvaluators:
    def test_faithfulness_and_relevancy(self, index, llm):
        response = NestQueryEngine.from_args(index, llm=llm).query(QUESTION)
        for kind in (FaithfulnessEvaluator, RelevancyEvaluator):
            real = kind(llm=llm).evaluate_response(query=QUESTION, response=response)
            assert real.passing in (True, False)
            judged = kind(llm=Scripted(*["YES"] * 9)).evaluate_response(query=QUESTION, response=response)
            assert judged.passing is True

    def test_correctness(self):
        judge = CorrectnessEvaluator(llm=Scripted("4.5\nThe year is right."))
        assert judge.evaluate(query=QUESTION, response="In 1871.", reference="1871").score == 4.5

    def test_semantic_similarity(self, index, llm):
        response = NestQueryEngine.from_args(index, llm=llm).query(QUESTION)
        result = SemanticSimilarityEvaluator(embed_model=BagEmbedding()).evaluate_response(
            response=response, reference=response.response
        )
        assert result.score == pytest.approx(1)


class TestAgents:
    def test_react_agent_uses_the_query_engine_as_a_tool(self, index, llm):
        tool = QueryEngineTool.from_defaults(
            NestQueryEngine.from_args(index, llm=llm), name="places", description="Knows about places."
        )
        writer = Scripted(
            'Thought: I need the tool.\nAction: places\nAction Input: {"input": "When was the lighthouse built?"}',
            "Thought: I can answer without using any more tools.\nAnswer: In 1871.",
        )

        async def run():
            return await ReActAgent(tools=[tool], llm=writer).run("When was it built?")

        result = asyncio.run(run())
        assert str(result) == "In 1871."
        (call,) = result.tool_calls
        expected = NestQueryEngine.from_args(index, llm=llm).query("When was the lighthouse built?")
        assert call.tool_output.raw_output.metadata["citations"] == expected.metadata["citations"]
        assert expected.response in writer.prompts[1]
        assert "source_start" not in writer.prompts[1]

    def test_react_agent_with_a_model_that_babbles(self, llm):
        """A random model never writes the format: the agent must end with its text, not hang or crash."""

        async def run():
            return await ReActAgent(tools=[], llm=llm).run("Hello?")

        assert str(asyncio.run(run()))

    def test_workflow_step(self, index, llm):
        engine = NestQueryEngine.from_args(index, llm=llm)

        class Answer(Workflow):
            @step
            async def answer(self, event: StartEvent) -> StopEvent:
                return StopEvent(result=await engine.aquery(event.question))

        async def run():
            return await Answer(timeout=60).run(question=QUESTION)

        response = asyncio.run(run())
        assert response.metadata["citations"] == engine.query(QUESTION).metadata["citations"]
