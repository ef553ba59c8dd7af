"""Many callers of one engine: the sequential answers, in fair order, in bounded memory; and forks."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import signal
import threading
import time
import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from nest_engine.lm.turns import FairLock
from tests.texts import QUESTIONS, TEXTS, passages
from tests.tiny import tiny_engine

MODES = ("lm", "ra", "knn-lm", "nest", "ra-nest", "lossless")


def jobs(count):
    chance = random.Random(5)
    names = [n for n in TEXTS if n != "control"]
    return [
        {
            "prompt": QUESTIONS[number % len(QUESTIONS)],
            "mode": MODES[number % len(MODES)],
            "passages": passages(*chance.sample(names, 2)),
            "temperature": (0.0, 0.9)[number % 2],
            "seed": number,
            "max_new_tokens": chance.randrange(4, 12),
        }
        for number in range(count)
    ]


def run(engine, job):
    job = dict(job)
    answer = engine.generate(job.pop("prompt"), **job)
    return answer.text, answer.citations, answer.stats.tokens, answer.stats.accepted, answer.finish_reason


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    work = jobs(24)
    return work, [run(tiny_engine(), job) for job in work]


@pytest.mark.parametrize("kind", ["memory", "disk"])
def test_sixteen_threads_get_the_sequential_answers(world, tmp_path, kind):
    work, expected = world
    engine = tiny_engine()
    if kind == "disk":
        from nest_engine.datastore.lmdb_store import LmdbKeyStore

        engine.store = LmdbKeyStore(tmp_path)
    with ThreadPoolExecutor(16) as pool:
        assert list(pool.map(lambda job: run(engine, job), work)) == expected


def test_a_hundred_async_callers_get_the_sequential_answers(world):
    work, expected = world
    engine = tiny_engine()

    async def everyone():
        return await asyncio.gather(*(asyncio.to_thread(run, engine, work[n % len(work)]) for n in range(100)))

    assert asyncio.run(everyone()) == [expected[n % len(expected)] for n in range(100)]


def test_the_lock_is_first_come_first_served():
    lock, order, threads = FairLock(), [], []
    lock.acquire()
    for number in range(16):

        def wait(number=number):
            with lock:
                order.append(number)

        threads.append(threading.Thread(target=wait))
        threads[-1].start()
        while len(lock._waiting) <= number:
            time.sleep(0.0005)
    lock.release()
    for thread in threads:
        thread.join(10)
    assert order == list(range(16))
    lock.acquire()
    lock.release()


def test_nobody_takes_two_turns_while_another_waits():
    lock, turns, stop = FairLock(), [], time.monotonic() + 0.5

    def work(number):
        while time.monotonic() < stop:
            with lock:
                turns.append(number)
                time.sleep(0.001)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    counts = [turns.count(number) for number in range(4)]
    assert max(counts) <= min(counts) * 1.5 + 5


def test_a_closed_stream_reads_no_further(monkeypatch):
    engine = tiny_engine()
    calls, forward = [], engine.model.lm.forward
    monkeypatch.setattr(engine.model.lm, "forward", lambda *a, **k: calls.append(1) or forward(*a, **k))
    stream = engine.stream(QUESTIONS[0], mode="lm", max_new_tokens=200, stop=["zzzz"])
    next(stream)
    seen = len(calls)
    stream.close()
    time.sleep(0.05)
    assert len(calls) == seen


def test_a_fork_while_another_thread_reads_can_answer(world):
    """The child has no thread that would ever release the model: its lock must be free again."""
    work, expected = world
    engine = tiny_engine()
    engine.model.lm._lock.acquire()  # as if another thread were in a forward pass
    child = os.fork()
    if child == 0:
        try:
            signal.alarm(60)
            torch.set_num_threads(1)  # OpenMP's threads do not live on in a child
            os._exit(0 if run(engine, work[0]) == expected[0] else 1)
        finally:
            os._exit(2)
    engine.model.lm._lock.release()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_memory_stays_flat(soak):
    """Slope of Python's memory over generations, after a warm-up."""
    count = 2000 if soak else 48
    engine, work, sizes = tiny_engine(), jobs(12), []
    rounds = count // len(work)
    for job in work * 2:
        run(engine, job)
    resident = _resident()
    tracemalloc.start()
    start = time.perf_counter()
    for _ in range(rounds):
        for job in work:
            run(engine, job)
        gc.collect()
        sizes.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    half = sizes[len(sizes) // 2 :]
    slope = float(np.polyfit(np.arange(len(half)), half, 1)[0]) / len(work)
    print(
        f"{rounds * len(work)} generations in {time.perf_counter() - start:.0f} s: {slope:.0f} bytes each, "
        f"resident {resident >> 20} -> {_resident() >> 20} MB"
    )
    assert slope < (200 if soak else 4000)
    assert _resident() - resident < 200 << 20


def _resident() -> int:
    try:
        with open("/proc/self/statm") as file:  # noqa: PTH123
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0
