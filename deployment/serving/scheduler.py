"""Form batches from concurrent requests.

One thread answers one batch at a time. While it works, requests queue up and form the next batch,
so batches grow with the load. An idle server waits ``delay`` seconds for more texts.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from deployment.serving.engine import Answer, Engine, Item
from fedpeft.runs.predicting import Prediction

log = logging.getLogger(__name__)


class Busy(Exception):
    """Too many texts are waiting, or the server is stopping."""


@dataclass(eq=False)
class _Waiting:
    item: Item
    answer: asyncio.Future[Prediction]
    since: float = field(default_factory=time.perf_counter)


class Scheduler:
    """Answers items of concurrent requests in batches.

    Args:
        engine: answers a batch.
        batch: maximum number of texts in a batch.
        delay: seconds that an idle server waits for more texts.
        longest: maximum number of texts that wait.
        observe: called with the number of texts of each batch, and its seconds.
    """

    def __init__(
        self,
        engine: Engine,
        batch: int,
        delay: float,
        longest: int,
        observe: Callable[[int, float], None] = lambda texts, seconds: None,
    ):
        self._engine, self._batch, self._delay, self._longest = engine, batch, delay, longest
        self._observe = observe
        self._queue: deque[_Waiting] = deque()
        self._more, self._stopping = asyncio.Event(), False
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="serve")

    @property
    def waiting(self) -> int:
        """Number of texts that wait."""
        return len(self._queue)

    async def answer(self, items: Sequence[Item]) -> list[Prediction]:
        """Return the prediction of each item; they may be in different batches.

        Raises:
            Busy: the queue has no room for the items, or the server is stopping.
            RunFailed: an output is not finite.
        """
        if self._stopping or len(self._queue) + len(items) > self._longest:
            raise Busy
        loop = asyncio.get_running_loop()
        waiting = [_Waiting(item, loop.create_future()) for item in items]
        self._queue.extend(waiting)
        self._more.set()
        return list(await asyncio.gather(*(each.answer for each in waiting)))

    async def run(self) -> None:
        """Answer batches until ``stop`` is called and the queue is empty."""
        try:
            while await self._has_work():
                batch = self._take()
                if batch:
                    await self._finish(batch)
        finally:
            self._thread.shutdown(wait=False)

    def stop(self) -> None:
        """Refuse further items; ``run`` returns when those that wait are answered."""
        self._stopping = True
        self._more.set()

    async def _has_work(self) -> bool:
        """Wait for a batch; return False once the server stops and nothing waits."""
        if not self._queue:
            if self._stopping:
                return False
            self._more.clear()
            await self._more.wait()
            # Items of concurrent requests arrive within a moment.
            if self._delay and not self._stopping and len(self._queue) < self._batch:
                await asyncio.sleep(self._delay)
        return bool(self._queue) or not self._stopping

    def _take(self) -> list[_Waiting]:
        """Return the next batch without items whose request was cancelled."""
        batch: list[_Waiting] = []
        while self._queue and len(batch) < self._batch:
            waiting = self._queue.popleft()
            if not waiting.answer.done():
                batch.append(waiting)
        return batch

    async def _finish(self, batch: Sequence[_Waiting]) -> None:
        """Answer a batch in the thread."""
        start = time.perf_counter()
        items = [waiting.item for waiting in batch]
        loop = asyncio.get_running_loop()
        try:
            answers: Sequence[Answer | Exception] = await loop.run_in_executor(
                self._thread, self._engine.answer, items
            )
        except Exception as error:  # the server must survive any batch
            log.error("a batch of %d texts failed: %s", len(batch), type(error).__name__)
            answers = [error] * len(batch)
        self._observe(len(batch), time.perf_counter() - start)
        for waiting, answer in zip(batch, answers, strict=True):
            if waiting.answer.done():  # cancelled meanwhile
                continue
            if isinstance(answer, Exception):
                waiting.answer.set_exception(answer)
            else:
                waiting.answer.set_result(answer)
