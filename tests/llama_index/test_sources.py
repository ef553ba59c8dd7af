import logging

import pytest
from llama_index.core import SummaryIndex, VectorStoreIndex
from llama_index.core.retrievers import BaseRetriever
from llama_index.core.schema import Document, ImageNode, MetadataMode, NodeWithScore, TextNode
from llama_index.core.vector_stores.types import (
    ExactMatchFilter,
    MetadataFilters,
    VectorStoreQueryResult,
)

from llama_index_nest import (
    IndexSource,
    NestQueryEngine,
    NestRetriever,
    NodeSource,
    RetrieverSource,
    VectorStoreSource,
    to_source,
)
from llama_index_nest.sources import to_node, to_passage, to_scored_passages
from nest_engine import Passage, ScoredPassage
from nest_engine.errors import ConfigError, SourceError
from nest_engine.retrieval.source import PassageSource
from tests.llama_index.world import QUESTIONS, BagEmbedding, documents, memory_index, split_nodes, tiny_llm
from tests.texts import TEXTS


class TestPassages:
    def test_text_is_without_metadata_and_offsets_are_in_the_document(self):
        nodes = split_nodes()
        for node in nodes:
            passage = to_passage(node)
            assert passage.text == node.get_content(MetadataMode.NONE)
            assert "lang" not in passage.text
            assert passage.id == node.node_id
            assert passage.document_id == node.ref_doc_id
            assert passage.title == node.metadata["title"]
            document = TEXTS[passage.document_id.removeprefix("doc-")]
            assert document[passage.offset :].startswith(passage.text)
        assert any(to_passage(node).offset for node in nodes), "some nodes begin within their document"

    def test_offset_is_unknown_where_the_text_was_replaced(self):
        node = split_nodes()[1]
        node.set_content("something before. " + node.get_content(MetadataMode.NONE))
        assert to_passage(node).offset is None

    def test_a_document_is_its_own_document(self):
        passage = to_passage(Document(text="whole", id_="d"))
        assert (passage.id, passage.document_id, passage.offset) == ("d", "d", 0)

    def test_nodes_without_text_are_left_out_with_a_warning(self, caplog):
        nodes = [TextNode(text=" \n"), ImageNode(image_url="http://example.org/a.png"), TextNode(text="some text")]
        with caplog.at_level(logging.WARNING):
            assert [s.passage.text for s in to_scored_passages(nodes)] == ["some text"]
        assert "2 of 3" in caplog.text
        response = tiny_llm(nodes=nodes).complete("some")
        assert response.raw["stats"]["passages"] == 1

    def test_scores_are_passed_on_only_where_higher_is_better(self):
        def scores(*values, **arguments):
            nodes = [NodeWithScore(node=TextNode(text=f"text {v}"), score=v) for v in values]
            return [(s.score, s.relevance) for s in to_scored_passages(nodes, **arguments)]

        assert scores(0.9, 0.5) == [(0.9, None), (0.5, None)]
        assert scores(0.1, 0.7) == [(None, None), (None, None)], "distances rise"
        assert scores(0.9, None) == [(None, None), (None, None)]
        assert scores(0.9, 0.5, score_is_relevance=True) == [(0.9, 0.9), (0.5, 0.5)]

    def test_round_trip(self):
        passage = Passage("some text", title="T", id="p", document_id="d", offset=7, metadata={"page": 3})
        again = to_passage(to_node(passage))
        assert again == passage
        assert again.metadata["page"] == 3
        assert to_passage(to_node(Passage("alone", offset=None))).document_id == Passage("alone").id


class TestSources:
    def test_index_gives_as_many_as_wanted_with_relevance(self):
        source = IndexSource(memory_index())
        assert [len(source.search(QUESTIONS[0], k)) for k in (1, 4)] == [1, 4]
        assert all(s.relevance is not None for s in source.search(QUESTIONS[0], 4))
        assert isinstance(source, PassageSource)

    def test_min_relevance_drops_nodes_of_an_index(self):
        llm = tiny_llm(index=memory_index())
        assert llm.complete(QUESTIONS[0], min_relevance=0.999).raw["stats"]["passages"] == 0
        assert llm.complete(QUESTIONS[0]).raw["stats"]["passages"] == 6

    def test_filters_pass_through(self):
        filters = MetadataFilters(filters=[ExactMatchFilter(key="lang", value="br")])
        index = memory_index()
        for source in (
            IndexSource(index, filters=filters),
            VectorStoreSource(index.vector_store, BagEmbedding(), docstore=index.docstore, filters=filters),
            RetrieverSource(index.as_retriever(filters=filters, similarity_top_k=9)),
        ):
            assert {s.passage.title for s in source.search(QUESTIONS[0], 9)} == {"Bread"}

    def test_other_indexes(self):
        found = IndexSource(SummaryIndex(split_nodes())).search(QUESTIONS[0], 3)
        assert len(found) == 3
        assert found[0].relevance is None

    def test_store_that_returns_ids_only_needs_a_docstore(self):
        index = memory_index()
        with pytest.raises(SourceError, match=r"returns ids only.*load_index_from_storage"):
            VectorStoreSource(index.vector_store, BagEmbedding()).search(QUESTIONS[0], 3)
        assert len(VectorStoreSource(index.vector_store, BagEmbedding(), docstore=index.docstore).search("x", 3)) == 3

    def test_index_without_its_docstore_says_so(self):
        index = memory_index()
        for node_id in list(index.docstore.docs):
            index.docstore.delete_document(node_id)
        with pytest.raises(SourceError, match=r"docstore does not have it.*load_index_from_storage"):
            tiny_llm(index=index).complete(QUESTIONS[0])

    def test_foreign_errors_name_the_store_and_keep_their_cause(self):
        class Broken(BaseRetriever):
            def _retrieve(self, query_bundle):
                raise ConnectionError("port 5432 is closed")

        for call in (
            lambda: tiny_llm(retriever=Broken()).complete("x"),
            lambda: NestQueryEngine.from_args(Broken(), llm=tiny_llm()).query("x"),
        ):
            with pytest.raises(SourceError, match="Broken failed: port 5432 is closed") as caught:
                call()
            assert isinstance(caught.value.__cause__, ConnectionError)

    def test_results_of_a_store_without_similarities(self):
        class Bare:
            stores_text = True

            def query(self, query):
                return VectorStoreQueryResult(nodes=[TextNode(text="one"), TextNode(text="two")])

        found = VectorStoreSource(Bare(), BagEmbedding()).search("x", 5)
        assert [(s.passage.text, s.score) for s in found] == [("one", None), ("two", None)]

    def test_what_cannot_be_searched_is_refused(self):
        for bad in ("text", 3, object()):
            with pytest.raises(ConfigError, match="nothing to search"):
                to_source(bad)
        with pytest.raises(ConfigError, match="nodes must be LlamaIndex nodes, not int"):
            to_source([1])
        assert len(NodeSource([])) == 0


class TestNestRetriever:
    class Words:
        """An engine source, as another adapter might give it."""

        def search(self, query, k):
            return [ScoredPassage(Passage(TEXTS["bread"], id="b", title="Bread"), relevance=0.5)][:k]

    def test_engine_source_as_retriever(self):
        (found,) = NestRetriever(self.Words()).retrieve("x")
        assert (found.node.node_id, found.score, found.node.metadata["title"]) == ("b", 0.5, "Bread")

    def test_query_engine_over_an_engine_source(self):
        response = NestQueryEngine.from_args(self.Words(), llm=tiny_llm()).query("How long?")
        assert [n.node.node_id for n in response.source_nodes] == ["b"]

    def test_failures_are_explained(self):
        class Broken:
            def search(self, query, k):
                raise ValueError("no luck")

        with pytest.raises(SourceError, match="Broken failed: no luck"):
            NestRetriever(Broken()).retrieve("x")


def test_embedding_of_the_tests_finds_the_right_document():
    index = VectorStoreIndex.from_documents(documents(), embed_model=BagEmbedding())
    best = [index.as_retriever(similarity_top_k=1).retrieve(q)[0].node.metadata["title"] for q in QUESTIONS]
    assert best == ["Lighthouse", "Bread", "River", "Spanish"]
