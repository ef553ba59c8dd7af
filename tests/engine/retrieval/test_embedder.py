"""The real demo embedder, and a tiny one with random weights."""

import json

import numpy as np
import pytest
import torch

from nest_engine.errors import ModelNotFoundError, UnsupportedModelError
from nest_engine.passages import Passage
from nest_engine.retrieval import Embedder, FaissSource, HybridSource, TransformerEmbedder

SMALL_TALK = ["hello", "Thanks a lot!", "Tell me a joke.", "What is your name?", "How do I boil an egg?", "bye"]


@pytest.fixture(scope="session")
def demo():
    return TransformerEmbedder.from_pretrained(progress=False, device="cpu")


@pytest.fixture(scope="session")
def on_disk(demo, tmp_path_factory):
    """A small random BERT in the layout of a sentence-transformers folder."""
    from transformers import BertConfig, BertModel

    folder = tmp_path_factory.mktemp("models") / "tiny"
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(demo._tokenizer),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=64,
    )
    BertModel(config).save_pretrained(folder)
    demo._tokenizer.save_pretrained(folder)
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 12}))
    return folder


@pytest.mark.demo_model
def test_shape_length_and_identity(demo):
    vectors = demo.embed(["One text.", "", "Ein anderer, viel längerer Text 🎉 " * 20])
    assert (vectors.shape, vectors.dtype) == ((3, 384), np.float32)
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(1, abs=1e-5)
    assert demo.embed([]).shape == (0, 384)
    assert demo.name.startswith("all-minilm-l6-v2@")
    assert (demo.dim, demo.window, demo.min_relevance) == (384, 256, 0.32)
    assert isinstance(demo, Embedder)


@pytest.mark.demo_model
def test_batches_and_padding_do_not_change_a_vector(demo):
    texts = ["short", "a somewhat longer text about sea otters", "x " * 100, "¿Qué?", "岩茶"]
    together = demo.embed(texts)
    alone = np.concatenate([demo.embed([text]) for text in texts])
    assert together == pytest.approx(alone, abs=1e-5)


@pytest.mark.demo_model
def test_is_the_mean_of_the_real_tokens(demo):
    encoded = demo._tokenizer(["Sea otters use stones."], return_tensors="pt")
    with torch.inference_mode():
        mean = demo._model(**encoded).last_hidden_state[0].mean(0)
    assert demo.embed(["Sea otters use stones."])[0] == pytest.approx((mean / mean.norm()).numpy(), abs=1e-5)


@pytest.mark.demo_model
def test_meaning_beats_words(demo):
    query, near, far = demo.embed(
        [
            "How do these animals open shells?",
            "Sea otters crack mussels on stones.",
            "The shell of the station opens at six.",
        ]
    )
    assert query @ near > query @ far


@pytest.mark.demo_model
def test_long_texts_are_cut_at_the_window(on_disk):
    embedder = TransformerEmbedder.from_pretrained(str(on_disk))
    assert embedder.window == 12
    cut = embedder.embed(["word " * 10, "word " * 500])
    assert cut[0] == pytest.approx(cut[1], abs=1e-6)


@pytest.mark.demo_model
def test_the_name_follows_the_weights_not_the_path(on_disk, tmp_path):
    first = TransformerEmbedder.from_pretrained(str(on_disk))
    assert first.name.startswith("tiny@")
    assert TransformerEmbedder.from_pretrained(str(on_disk)).name == first.name
    assert first.min_relevance is None
    with torch.no_grad():
        first._model.encoder.layer[0].output.dense.bias[0] += 1
    changed = TransformerEmbedder(first._model, first._tokenizer, label="tiny", window=12)
    assert changed.name != first.name


@pytest.mark.demo_model
def test_other_poolings_are_refused(on_disk, tmp_path):
    import shutil

    folder = shutil.copytree(on_disk, tmp_path / "cls")
    (folder / "1_Pooling").mkdir()
    modes = {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}
    (folder / "1_Pooling/config.json").write_text(json.dumps(modes))
    with pytest.raises(UnsupportedModelError, match="cls"):
        TransformerEmbedder.from_pretrained(str(folder))


def test_unknown_models_name_the_fix(tmp_path):
    with pytest.raises(ModelNotFoundError, match="all-minilm-l6-v2"):
        TransformerEmbedder.from_pretrained(str(tmp_path / "nothing"))


@pytest.mark.demo_model
def test_an_index_of_the_demo_embedder_opens_without_one(demo, passages, tmp_path):
    source = FaissSource.from_passages(passages, demo)
    source.save(tmp_path)
    opened = FaissSource.open(tmp_path)
    query = "Why are there no kelp forests?"
    assert [h.passage.id for h in opened.search(query, 3)] == [h.passage.id for h in source.search(query, 3)]
    assert opened.search(query, 1)[0].passage.id == "kelp"
    assert opened.min_relevance == demo.min_relevance


@pytest.mark.demo_model
@pytest.mark.shared_data
@pytest.mark.slow
def test_threshold_and_ranking_on_questions_with_known_passages(demo, shared_data):
    rows = [json.loads(line) for line in (shared_data / "xquad.en.passages.jsonl").open(encoding="utf-8")][:60]
    asked = [json.loads(line) for line in (shared_data / "xquad.en.dev.jsonl").open(encoding="utf-8")]
    kept = {row["id"] for row in rows}
    asked = [question for question in asked if question["passage_id"] in kept][::3]
    source = HybridSource.from_passages([Passage(r["text"], title=r["title"], id=r["id"]) for r in rows], demo)
    found = above = 0
    for question in asked:
        hits = source.search(question["question"], 5)
        found += question["passage_id"] in [hit.passage.id for hit in hits]
        above += max(hit.relevance for hit in hits) >= source.min_relevance
    assert found / len(asked) >= 0.97
    assert above / len(asked) >= 0.95
    for prompt in SMALL_TALK:
        assert source.dense.search(prompt, 1)[0].relevance < source.min_relevance
