"""Lossless answers beside those of `HuggingFaceLLM` itself."""

import pytest
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.schema import TextNode
from llama_index.llms.huggingface import HuggingFaceLLM

from llama_index_nest import NestLLM
from nest_engine import NestConfig
from tests.llama_index.world import split_nodes
from tests.tiny import tiny_model, tiny_tokenizer

PROMPTS = ("The lighthouse at Cape Morwen", "To bake a simple loaf, mix", "El río Ansel nace", "安塞尔河发源于")


@pytest.mark.parametrize(("architecture", "tokenizer"), [("llama", "bytes"), ("gpt2", "bytes"), ("qwen3", "bytes")])
def test_lossless_equals_greedy(architecture, tokenizer):
    model, words = tiny_model(architecture, tokenizer), tiny_tokenizer(tokenizer)
    theirs = HuggingFaceLLM(
        model=model,
        tokenizer=words,
        context_window=1024,
        max_new_tokens=40,
        generate_kwargs={"do_sample": False},
        is_chat_model=True,
        tokenizer_outputs_to_remove=["token_type_ids"],
    )
    ours = NestLLM(model=model, tokenizer=words, config=NestConfig(mode="lossless", max_new_tokens=40))
    for prompt in PROMPTS:
        expected = theirs.complete(prompt, formatted=True).text
        # What the model would say anyway, with other things around it: drafts come true, and go wrong.
        nodes = [TextNode(text=f"{expected[:40]} {expected[10:70]} {expected[30:]} ."), *split_nodes()]
        assert ours.complete(prompt, formatted=True, nodes=nodes).text == expected
        chat = [ChatMessage(role="system", content="Be brief."), ChatMessage(role="user", content=prompt)]
        assert ours.chat(chat, nodes=nodes).message.content == theirs.chat(chat).message.content
