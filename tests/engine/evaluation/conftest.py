"""A small task, and the tiny model in place of any."""

import json
import logging

import pytest
from transformers.utils import logging as transformers_logging

from nest_engine import NestEngine
from tests.texts import BREAD, LIGHTHOUSE, RIVER
from tests.tiny import tiny_loaded


@pytest.fixture
def tiny(monkeypatch, nest_home):
    """The command line loads the tiny model, whatever is asked for."""

    def make(name, *, config, store, **arguments):
        return NestEngine(tiny_loaded(key_layer=config.key_layer), config, store=store)

    monkeypatch.setattr(NestEngine, "from_pretrained", make)
    logger = logging.getLogger("nest_engine")
    before = logger.handlers, logger.propagate, logger.level
    yield
    logger.handlers, logger.propagate = before[:2]
    logger.setLevel(before[2])  # and not the attribute: loggers below remember what is enabled
    transformers_logging.enable_progress_bar()


@pytest.fixture
def files(tmp_path):
    """Questions and passages."""
    passages = [{"id": "r", "text": RIVER}, {"id": "l", "text": LIGHTHOUSE}, {"id": "b", "text": BREAD}]
    questions = [
        {"id": "1", "question": "Where does the river rise?", "answers": ["hills"], "passage_id": "r"},
        {"id": "2", "question": "Who asked for an electric lamp?", "answers": ["Ada Finch"], "passage_id": "l"},
    ]
    for name, rows in (("p.jsonl", passages), ("q.jsonl", questions)):
        (tmp_path / name).write_text("\n".join(map(json.dumps, rows)))
    return tmp_path / "q.jsonl", tmp_path / "p.jsonl"
