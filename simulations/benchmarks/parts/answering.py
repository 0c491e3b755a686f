"""A grid whose clients have all answered, so that nothing but the server is timed."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from itertools import islice

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid

from server.flower import Run, from_wire, give_id, new_run, to_wire
from simulations.benchmarks.common import timed

AT_ONCE = 100  # replies that have arrived when the server looks


class Answering(Grid):
    """Reply i carries vector i; it is made as bytes when asked for, and parsed by Flower."""

    def __init__(self, experiment: str, vectors: Iterator[np.ndarray]):
        self._run = new_run()
        self._experiment, self._vectors = experiment, vectors
        self._asked: dict[str, Message] = {}
        self.making = self.parsing = 0.0  # seconds in here: of ours, and of Flower
        self.first_look = 0.0  # when the server first looked for replies

    def set_run(self, run: object) -> None:
        """Not told: this one has made its run."""

    @property
    def run(self) -> Run:
        """The run that messages belong to."""
        return self._run

    def create_message(self, *_: object, **__: object) -> Message:
        """Not offered: Flower has deprecated it."""
        raise TypeError("use flwr.app.Message(...)")

    def get_node_ids(self) -> list[int]:
        """Return no nodes: none is looked for."""
        return []

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Keep the questions."""
        self._asked = {give_id(message): message for message in messages}
        return list(self._asked)

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Return the next replies."""
        began = time.perf_counter()
        self.first_look = self.first_look or began
        chosen = list(islice(message_ids, AT_ONCE))
        made = [to_wire(self._reply(self._asked.pop(each))) for each in chosen]
        parsing, replies = timed(lambda: [from_wire(data) for data in made])
        self.parsing += parsing.wall
        self.making += time.perf_counter() - began - parsing.wall
        return replies

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        """Not offered: the server pushes and pulls."""
        raise TypeError("this grid answers what is pushed; use push_messages and pull_messages")

    def _reply(self, question: Message) -> Message:
        content = RecordDict(
            {
                "arrays": ArrayRecord({"vector": Array(next(self._vectors))}),
                "metrics": MetricRecord({"loss": 0.5}),
                "config": ConfigRecord({"experiment": self._experiment}),
            }
        )
        reply = Message(content, reply_to=question)
        give_id(reply)
        return reply
