"""Batches of concurrent requests: their size, the queue's limit, cancellation and the end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any

import pytest
from endpoints import TEXT, catalog_of

from deployment.serving.engine import Engine, Item
from deployment.serving.scheduler import Busy, Scheduler
from fedpeft.errors import RunFailed


class Gated(Engine):
    """An engine that waits for a permission before each batch, and notes the batches' sizes."""

    def __init__(self) -> None:
        self.catalog = catalog_of("sentiment")
        super().__init__(self.catalog.setups, 1 << 20, most=8)
        self.gate, self.sizes = threading.Semaphore(0), list[int]()

    def answer(self, items: Any) -> Any:
        self.gate.acquire()
        self.sizes.append(len(items))
        return super().answer(items)

    def items(self, count: int) -> list[Item]:
        return [Item(self.catalog["sentiment"], f"{TEXT} {number}") for number in range(count)]


def played(engine: Gated, scene: Any, **options: Any) -> list[int]:
    """Run a scene with a scheduler; return the sizes of the batches."""

    async def play() -> None:
        scheduler = Scheduler(engine, **{"batch": 4, "delay": 0.0, "longest": 10, **options})
        running = asyncio.create_task(scheduler.run())
        await scene(scheduler)
        scheduler.stop()
        for _ in range(20):
            engine.gate.release()
        await asyncio.wait_for(running, 10)

    asyncio.run(play())
    return engine.sizes


def started(work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    return asyncio.create_task(work)


def test_waiting_requests_form_the_next_batch() -> None:
    engine = Gated()

    async def scene(scheduler: Scheduler) -> None:
        first = started(scheduler.answer(engine.items(1)))
        await asyncio.sleep(0.05)  # its batch waits at the gate
        others = [started(scheduler.answer(engine.items(count))) for count in (2, 1, 3)]
        await asyncio.sleep(0.05)
        assert scheduler.waiting == 6
        for _ in range(3):
            engine.gate.release()
        assert [len(await task) for task in (first, *others)] == [1, 2, 1, 3]

    assert played(engine, scene) == [1, 4, 2]


def test_an_idle_server_waits_for_more_texts() -> None:
    engine = Gated()
    engine.gate.release()

    async def scene(scheduler: Scheduler) -> None:
        one = started(scheduler.answer(engine.items(1)))
        await asyncio.sleep(0.05)
        await asyncio.gather(one, scheduler.answer(engine.items(2)))

    assert played(engine, scene, delay=0.3) == [3]


def test_a_full_queue_refuses_requests() -> None:
    engine = Gated()

    async def scene(scheduler: Scheduler) -> None:
        first = started(scheduler.answer(engine.items(4)))
        await asyncio.sleep(0.05)
        second = started(scheduler.answer(engine.items(10)))
        await asyncio.sleep(0)
        with pytest.raises(Busy):
            await scheduler.answer(engine.items(1))
        for _ in range(4):
            engine.gate.release()
        assert [len(await task) for task in (first, second)] == [4, 10]

    assert played(engine, scene) == [4, 4, 4, 2]


def test_cancelled_requests_are_not_computed() -> None:
    engine = Gated()

    async def scene(scheduler: Scheduler) -> None:
        first = started(scheduler.answer(engine.items(1)))
        await asyncio.sleep(0.05)
        lost = started(scheduler.answer(engine.items(3)))
        kept = started(scheduler.answer(engine.items(2)))
        await asyncio.sleep(0)
        lost.cancel()
        await asyncio.sleep(0)
        engine.gate.release()
        engine.gate.release()
        await asyncio.gather(first, kept)

    assert played(engine, scene) == [1, 2]


def test_accepted_requests_are_answered_after_stop_and_others_refused() -> None:
    engine = Gated()

    async def scene(scheduler: Scheduler) -> None:
        accepted = started(scheduler.answer(engine.items(6)))
        await asyncio.sleep(0.05)
        scheduler.stop()
        with pytest.raises(Busy):
            await scheduler.answer(engine.items(1))
        engine.gate.release()
        engine.gate.release()
        assert len(await accepted) == 6

    assert played(engine, scene) == [4, 2]


def test_a_batch_that_fails_does_not_end_the_server() -> None:
    engine = Gated()
    for _ in range(2):
        engine.gate.release()

    async def scene(scheduler: Scheduler) -> None:
        wrong = Item(engine.catalog["sentiment"], "\ud800")  # requests refuse it
        with pytest.raises(Exception) as caught:
            await scheduler.answer([wrong])
        assert not isinstance(caught.value, RunFailed | Busy)
        assert len(await scheduler.answer(engine.items(1))) == 1

    assert played(engine, scene) == [1, 1]
