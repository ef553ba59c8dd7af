import random

import pytest
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.schema import NodeWithScore, TextNode

from llama_index_nest import add_markers
from llama_index_nest.citations import find_cited_nodes, stream_with_markers, to_citation_block


def cite(start, end, number=1, **more):
    values = {"passage_id": "p", "title": "T", "text": "x", "source_start": 0, "source_end": 1, "document_start": None}
    return {"number": number, "start": start, "end": end, **values, **more}


def test_markers_stand_behind_what_was_copied():
    assert add_markers("one two three", [cite(0, 3), cite(4, 7, 2)]) == "one[1] two[2] three"
    assert add_markers("one two", [cite(4, 7, 3)]) == "one two[3]"
    assert add_markers("plain", []) == "plain"
    assert add_markers("", []) == ""


@pytest.mark.parametrize("seed", range(30))
def test_streamed_markers_are_the_same(seed):
    """A citation comes with the piece behind its end, or with later white space: as the engine gives them out."""
    rng = random.Random(seed)
    pieces, citations, text, waiting = [], [], "", []
    for number in range(1, 20):
        word = rng.choice(["word", "👩🏽‍🚀", "x"])
        gap = rng.choice([" ", "\n\n", ""])
        due, waiting = waiting, []
        pieces.append((word, due))
        text += word
        if rng.random() < 0.5:
            citation = cite(len(text) - len(word), len(text), number)
            citations.append(citation)
            waiting.append(citation)
        if gap:
            pieces.append((gap, []))
            text += gap
    pieces.append(("", waiting))
    assert "".join(stream_with_markers(pieces)) == add_markers(text, citations)


def test_cited_nodes_come_in_the_order_of_citation_once_each():
    nodes = [NodeWithScore(node=TextNode(id_=i, text=f"text of {i}"), score=0.5) for i in "abc"]

    def of(node_id, start):
        text = f"text of {node_id}"[start:]
        return cite(0, 1, passage_id=node_id, text=text, source_start=start, source_end=start + len(text))

    found = find_cited_nodes(nodes, [of("c", 0), of("a", 5), of("c", 5)])
    assert [n.node.node_id for n in found] == ["c", "a"]
    assert [n.ranges for n in found] == [[(0, 9), (5, 9)], [(5, 9)]]
    assert found[0].node is nodes[2].node
    assert found[0].score == 0.5


def test_cited_node_is_the_one_with_the_text_where_ids_repeat():
    nodes = [NodeWithScore(node=TextNode(id_="same", text=text)) for text in ("first text", "second text")]
    citation = cite(0, 6, passage_id="same", text="second", source_start=0, source_end=6)
    assert [n.text for n in find_cited_nodes(nodes, [citation])] == ["second text"]


def test_citation_block_survives_serialization():
    block = to_citation_block(cite(3, 9, 2, text="copied", document_start=40))
    message = ChatMessage(role="assistant", content=[block])
    (again,) = ChatMessage.model_validate_json(message.model_dump_json()).blocks
    assert again == block
    assert again.additional_location_info["document_start"] == 40
    assert "document_start" not in to_citation_block(cite(0, 1)).additional_location_info
