import asyncio

import pytest
from llama_index.core import Settings
from llama_index.core.base.response.schema import AsyncStreamingResponse, Response, StreamingResponse
from llama_index.core.instrumentation import get_dispatcher
from llama_index.core.instrumentation.event_handlers import BaseEventHandler
from llama_index.core.instrumentation.events.query import QueryEndEvent
from llama_index.core.instrumentation.events.synthesis import SynthesizeEndEvent
from llama_index.core.llms import MockLLM
from llama_index.core.postprocessor import SimilarityPostprocessor
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.schema import MetadataMode, NodeWithScore, QueryBundle, TextNode
from llama_index.core.vector_stores.types import ExactMatchFilter, MetadataFilters

from llama_index_nest import CitedNode, NestQueryEngine, NestSynthesizer, add_markers
from nest_engine.errors import ConfigError
from tests.llama_index.world import QUESTIONS, assert_verbatim, memory_index, split_nodes, tiny_llm

QUESTION = QUESTIONS[0]


@pytest.fixture(scope="module")
def index():
    return memory_index()


@pytest.fixture(scope="module")
def llm():
    return tiny_llm()


class TestResponses:
    def test_sources_are_the_nodes_copied_from(self, index, llm):
        retrieved = index.as_retriever(similarity_top_k=6)
        engine = NestQueryEngine.from_args(retrieved, llm=llm)
        for question in QUESTIONS:
            response = engine.query(question)
            assert isinstance(response, Response)
            citations = response.metadata["citations"]
            assert_verbatim(response.response, citations, index.docstore.docs)
            ids = [n.node.node_id for n in response.source_nodes]
            assert ids == list(dict.fromkeys(c["passage_id"] for c in citations)), "each once, in citation order"
            assert len(ids) < 6, "not all that was retrieved"
            scores = {n.node.node_id: n.score for n in retrieved.retrieve(question)}
            for node in response.source_nodes:
                assert isinstance(node, CitedNode)
                assert node.score == scores[node.node.node_id]
                text = node.node.get_content(MetadataMode.NONE)
                assert [text[a:b] for a, b in node.ranges] == [c["text"] for c in node.citations]
            assert sum(len(n.citations) for n in response.source_nodes) == len(citations)

    def test_markers(self, index, llm):
        plain = NestQueryEngine.from_args(index, llm=llm).query(QUESTION)
        marked = NestQueryEngine.from_args(index, llm=llm, markers=True).query(QUESTION)
        assert marked.metadata == {**plain.metadata, "stats": marked.metadata["stats"]}
        assert marked.metadata["text"] == plain.response
        assert marked.response == add_markers(plain.response, plain.metadata["citations"])
        numbers = {c["number"] for c in plain.metadata["citations"]}
        assert all(f"[{number}]" in marked.response for number in numbers)

    @pytest.mark.parametrize("markers", [False, True])
    def test_streaming_and_async_are_the_same(self, index, llm, markers):
        whole = NestQueryEngine.from_args(index, llm=llm, markers=markers).query(QUESTION)

        def check(response, text):
            assert text == whole.response
            assert [(n.node.node_id, n.citations) for n in response.source_nodes] == [
                (n.node.node_id, n.citations) for n in whole.source_nodes
            ]
            assert response.metadata["citations"] == whole.metadata["citations"]

        streaming = NestQueryEngine.from_args(index, llm=llm, streaming=True, markers=markers)
        response = streaming.query(QUESTION)
        assert isinstance(response, StreamingResponse)
        assert response.source_nodes == []
        pieces = list(response.response_gen)
        assert len(pieces) > 5
        check(response, "".join(pieces))

        async def run():
            response = await NestQueryEngine.from_args(index, llm=llm, markers=markers).aquery(QUESTION)
            check(response, response.response)
            stream = await streaming.aquery(QUESTION)
            assert isinstance(stream, AsyncStreamingResponse)
            check(stream, "".join([piece async for piece in stream.async_response_gen()]))

        asyncio.run(run())

    def test_nothing_found(self, llm):
        plain = NestQueryEngine.from_args([], llm=llm).query(QUESTION)
        assert plain.response == llm.complete(QUESTION, task="question").text
        assert plain.source_nodes == []
        assert plain.metadata["citations"] == []
        quiet = NestQueryEngine.from_args([], llm=llm, empty_response="I do not know.")
        assert quiet.query(QUESTION).response == "I do not know."
        assert str(NestQueryEngine.from_args([], llm=llm, empty_response="No.", streaming=True).query("x")) == "No."
        assert asyncio.run(quiet.aquery(QUESTION)).response == "I do not know."


class Reverse(BaseNodePostprocessor):
    """A reranker of sorts."""

    def _postprocess_nodes(self, nodes, query_bundle=None):
        return [NodeWithScore(node=n.node, score=float(i)) for i, n in enumerate(reversed(nodes))]


class TestRetrieval:
    def test_postprocessors_are_honored(self, index, llm):
        def passages(*postprocessors):
            engine = NestQueryEngine.from_args(index, llm=llm, node_postprocessors=list(postprocessors))
            return [n.node.node_id for n in engine.retrieve(QueryBundle(QUESTION))], engine.query(QUESTION)

        everything, _ = passages()
        few, response = passages(SimilarityPostprocessor(similarity_cutoff=0.4))
        assert 0 < len(few) < len(everything)
        assert response.metadata["stats"]["passages"] == len(few)
        assert {n.node.node_id for n in response.source_nodes} <= set(few)
        assert passages(Reverse())[0] == everything[::-1]

    def test_postprocessors_run_in_async_too(self, index, llm):
        engine = NestQueryEngine.from_args(
            index, llm=llm, node_postprocessors=[SimilarityPostprocessor(similarity_cutoff=0.4)]
        )
        response = asyncio.run(engine.aquery(QUESTION))
        assert response.metadata == {**engine.query(QUESTION).metadata, "stats": response.metadata["stats"]}
        assert response.metadata["stats"]["passages"] < 6

    def test_number_and_filters_go_to_the_index(self, index, llm):
        filters = MetadataFilters(filters=[ExactMatchFilter(key="lang", value="li")])
        response = NestQueryEngine.from_args(index, llm=llm, similarity_top_k=2, filters=filters).query(QUESTION)
        assert {n.node.metadata["lang"] for n in response.source_nodes} == {"li"}
        assert response.metadata["stats"]["passages"] == 2

    def test_default_number_is_the_engines(self, index, llm):
        assert NestQueryEngine.from_args(index, llm=llm).query(QUESTION).metadata["stats"]["passages"] == 6

    def test_all_retrieved_nodes_are_used_however_many(self, index, llm):
        engine = NestQueryEngine.from_args(index, llm=llm, similarity_top_k=11)
        assert engine.query(QUESTION).metadata["stats"]["passages"] == 11

    def test_another_retriever(self, index, llm):
        engine = NestQueryEngine.from_args(index, llm=llm, markers=True)
        other = engine.with_retriever(index.as_retriever(similarity_top_k=1))
        assert isinstance(other, NestQueryEngine)
        assert other.query(QUESTION).metadata["stats"]["passages"] == 1


class TestConfiguration:
    def test_settings_reach_the_engine(self, index, llm):
        engine = NestQueryEngine.from_args(index, llm=llm, settings={"max_new_tokens": 5, "mode": "ra"})
        stats = engine.query(QUESTION).metadata["stats"]
        assert (stats["mode"], stats["tokens"]) == ("ra", 5)

    def test_llm_of_the_settings(self, index, llm, monkeypatch):
        monkeypatch.setattr(Settings, "_llm", llm)
        assert NestQueryEngine.from_args(index).query(QUESTION).source_nodes
        assert NestQueryEngine(index.as_retriever()).query(QUESTION).source_nodes

    def test_other_llms_are_refused(self, index, monkeypatch):
        monkeypatch.setattr(Settings, "_llm", None)
        with pytest.raises(ConfigError, match="no LLM is set: give llm=NestLLM"):
            NestQueryEngine.from_args(index)
        with pytest.raises(ConfigError, match="MockLLM"):
            NestSynthesizer(MockLLM())

    def test_is_a_retriever_query_engine_and_made_without_loading(self, index):
        from llama_index_nest import NestLLM

        llm = NestLLM("none/such")
        assert isinstance(NestQueryEngine.from_args(index, llm=llm), RetrieverQueryEngine)
        assert llm._engine is None


class TestSynthesizer:
    def test_in_llama_indexs_own_query_engine(self, index, llm):
        engine = index.as_query_engine(llm=llm, response_synthesizer=NestSynthesizer(llm), similarity_top_k=6)
        response = engine.query(QUESTION)
        assert response.response == NestQueryEngine.from_args(index, llm=llm).query(QUESTION).response
        assert all(isinstance(node, CitedNode) for node in response.source_nodes)

    def test_additional_sources_come_last(self, index, llm):
        extra = NodeWithScore(node=TextNode(text="extra"))
        nodes = index.as_retriever().retrieve(QUESTION)
        response = NestSynthesizer(llm).synthesize(QUESTION, nodes, additional_source_nodes=[extra])
        assert response.source_nodes[-1] is extra
        assert len(response.source_nodes) > 1

    def test_texts(self, llm):
        texts = [node.text for node in split_nodes()]
        answer = NestSynthesizer(llm).get_response(QUESTION, texts)
        assert "".join(NestSynthesizer(llm, streaming=True).get_response(QUESTION, texts)) == answer
        assert asyncio.run(NestSynthesizer(llm).aget_response(QUESTION, texts)) == answer


def test_events_carry_the_citations(index, llm):
    class Recorder(BaseEventHandler):
        events: list = []

        def handle(self, event, **kwargs):
            self.events.append(event)

    recorder = Recorder(events=[])
    get_dispatcher().add_event_handler(recorder)
    try:
        NestQueryEngine.from_args(index, llm=llm).query(QUESTION)
    finally:
        get_dispatcher().event_handlers.remove(recorder)
    for kind in (QueryEndEvent, SynthesizeEndEvent):
        (event,) = [e for e in recorder.events if isinstance(e, kind)]
        assert event.response.metadata["citations"]
        assert event.response.source_nodes
