"""Threads, the event loop, closing and cancelling, shared engines."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from langchain_core.documents import Document

from langchain_nest import ChatNest, NestLLM
from langchain_nest import engines as engines_module
from langchain_nest.running import arun
from nest_engine import NestEngine
from nest_engine.errors import ModelNotFoundError
from tests.tiny import save_tiny

QUESTIONS = [
    f"Question {n}: what does the {word} statement do?" for n, word in enumerate(("with", "raise", "try", "yield"))
]


@pytest.fixture
def model(engine: NestEngine, documents: list[Document]) -> ChatNest:
    return ChatNest(engine=engine, documents=documents, max_tokens=24)


def test_eight_threads_give_the_sequential_answers(model: ChatNest) -> None:
    expected = [model.invoke(question).content for question in QUESTIONS]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda question: model.invoke(question).content, QUESTIONS * 4))
    assert found == expected * 4


async def test_fifty_calls_at_once_give_the_sequential_answers(model: ChatNest, documents: list[Document]) -> None:
    expected = [model.invoke(question, max_tokens=12).content for question in QUESTIONS]
    asked = [QUESTIONS[i % 4] for i in range(50)]
    found = await asyncio.gather(*(model.ainvoke(question, max_tokens=12) for question in asked))
    assert [message.content for message in found] == [expected[i % 4] for i in range(50)]


def slow_steps(count: int, closed: threading.Event, started: threading.Event | None = None) -> Iterator[int]:
    try:
        for number in range(count):
            if started is not None:
                started.set()
            time.sleep(0.05)
            yield number
    finally:
        closed.set()


async def test_the_event_loop_ticks_between_and_during_steps(model: ChatNest, monkeypatch: pytest.MonkeyPatch) -> None:
    lm = model.load().model.lm
    forward = lm.forward
    monkeypatch.setattr(lm, "forward", lambda *a, **k: (time.sleep(0.02), forward(*a, **k))[1])
    gaps: list[float] = []

    async def tick() -> None:
        last = time.perf_counter()
        while True:
            await asyncio.sleep(0.001)
            now = time.perf_counter()
            gaps.append(now - last)
            last = now

    ticking = asyncio.create_task(tick())
    start = time.perf_counter()
    await model.ainvoke(QUESTIONS[0], mode="lm", max_tokens=15)
    took = time.perf_counter() - start
    ticking.cancel()
    assert took > 0.3
    # A blocking call would have let the loop tick once, after it.
    assert len(gaps) > 20
    assert sorted(gaps)[-3] < took / 2


async def test_closing_a_stream_ends_the_work() -> None:
    closed = threading.Event()
    stream = arun(slow_steps(1000, closed))
    assert await anext(stream) == 0
    await stream.aclose()
    assert closed.wait(1.0)


async def test_cancelling_ends_the_work_after_its_step() -> None:
    closed, started = threading.Event(), threading.Event()

    async def consume() -> None:
        async for _ in arun(slow_steps(1000, closed, started)):
            pass

    task = asyncio.create_task(consume())
    while not started.is_set():
        await asyncio.sleep(0.001)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    for _ in range(100):
        if closed.is_set():
            break
        await asyncio.sleep(0.01)
    assert closed.is_set()


async def test_an_error_in_a_step_arrives() -> None:
    def steps() -> Iterator[int]:
        yield 1
        raise ValueError("broken")

    stream = arun(steps())
    assert await anext(stream) == 1
    with pytest.raises(ValueError, match="broken"):
        await anext(stream)


def count_passes(engine: NestEngine, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    passes: list[int] = []
    forward = engine.model.lm.forward
    monkeypatch.setattr(
        engine.model.lm, "forward", lambda ids, *a, **k: (passes.append(len(ids)), forward(ids, *a, **k))[1]
    )
    return passes


def test_closing_a_sync_stream_ends_the_work(model: ChatNest, monkeypatch: pytest.MonkeyPatch) -> None:
    passes = count_passes(model.load(), monkeypatch)
    stream = model.stream(QUESTIONS[0], mode="lm")
    next(stream)
    stream.close()
    made = len(passes)
    assert made < 5
    time.sleep(0.05)
    assert len(passes) == made


async def test_cancelling_a_call_ends_the_work(model: ChatNest, monkeypatch: pytest.MonkeyPatch) -> None:
    passes = count_passes(model.load(), monkeypatch)
    task = asyncio.create_task(model.ainvoke(QUESTIONS[0], mode="lm", max_tokens=400))
    while len(passes) < 3:
        await asyncio.sleep(0.001)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.sleep(0.1)
    made = len(passes)
    assert made < 200
    await asyncio.sleep(0.1)
    assert len(passes) == made


class TestSharedEngines:
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        return save_tiny(tmp_path / "model")

    @pytest.fixture
    def loads(self, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
        loads: list[Any] = []
        load = engines_module.EngineSpec.load

        def counted(spec: Any) -> NestEngine:
            loads.append(spec)
            return load(spec)

        monkeypatch.setattr(engines_module.EngineSpec, "load", counted)
        return loads

    def test_loaded_at_first_use_and_shared(self, folder: Path, loads: list[Any]) -> None:
        chat, llm = ChatNest(model=str(folder), max_tokens=2), NestLLM(model_id=str(folder), max_tokens=2)
        assert loads == []
        chat.invoke("a")
        llm.invoke("a")
        assert len(loads) == 1
        assert chat.load() is llm.load()
        other = ChatNest(model=str(folder), max_tokens=2, dtype="float64")
        assert other.load() is not chat.load()

    def test_key_layer_is_another_engine(self, folder: Path) -> None:
        first, second = ChatNest(model=str(folder)), ChatNest(model=str(folder), key_layer="penultimate")
        assert first.load() is not second.load()
        assert second.load().config.key_layer == "penultimate"
        assert second.invoke("a", max_tokens=2, documents=[Document("b c d")])

    def test_threads_load_once(self, folder: Path, loads: list[Any]) -> None:
        models = [ChatNest(model=str(folder), max_tokens=2) for _ in range(6)]
        with ThreadPoolExecutor(6) as pool:
            list(pool.map(lambda model: model.invoke("a"), models))
        assert len(loads) == 1

    async def test_loading_does_not_block_the_loop(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        load = engines_module.EngineSpec.load
        monkeypatch.setattr(engines_module.EngineSpec, "load", lambda spec: (time.sleep(0.3), load(spec))[1])
        task = asyncio.create_task(ChatNest(model=str(folder), max_tokens=2).ainvoke("a"))
        start = time.perf_counter()
        await asyncio.sleep(0.01)
        assert time.perf_counter() - start < 0.25
        await task

    def test_no_such_model(self) -> None:
        with pytest.raises(ModelNotFoundError):
            ChatNest(model="./no/such/folder").invoke("a")
