"""A grid whose clients have already answered, so that only the server is timed."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from itertools import islice

import numpy as np
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from fedpeft.wire.messages import RECORD, TrainReply, to_fields
from server.flower import Run, from_wire, give_id, new_run, to_wire
from simulations.benchmarks.common import timed

AT_ONCE = 100  # replies per pull of the server


class Answering(Grid):
    """Reply i carries vector i; it is serialized when pulled, and parsed by Flower."""

    def __init__(self, vectors: Iterator[np.ndarray]):
        self._run = new_run()
        self._vectors = vectors
        self._asked: dict[str, Message] = {}
        self.making = self.parsing = 0.0  # seconds to serialize (here) and to parse (Flower)
        self.first_look = 0.0  # time of the server's first pull

    def set_run(self, run: object) -> None:
        """Ignore the run; this grid created it."""

    @property
    def run(self) -> Run:
        """The run of the messages."""
        return self._run

    def create_message(self, *_: object, **__: object) -> Message:
        """Not implemented: deprecated by Flower."""
        raise TypeError("use flwr.app.Message(...)")

    def get_node_ids(self) -> list[int]:
        """Return no nodes: the benchmark does not look for any."""
        return []

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Keep the messages."""
        self._asked = {give_id(message): message for message in messages}
        return list(self._asked)

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Return the next replies."""
        began = time.perf_counter()
        self.first_look = self.first_look or began
        chosen = list(islice(message_ids, AT_ONCE))
        made = [to_wire(self._reply(self._asked.pop(name))) for name in chosen]
        parsing, replies = timed(lambda: [from_wire(data) for data in made])
        self.parsing += parsing.wall
        self.making += time.perf_counter() - began - parsing.wall
        return replies

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        """Not implemented: the server pushes and pulls."""
        raise TypeError("this grid answers what is pushed; use push_messages and pull_messages")

    def _reply(self, question: Message) -> Message:
        fields = to_fields(TrainReply(vector=next(self._vectors).tobytes(), loss=0.5))
        reply = Message(RecordDict({RECORD: ConfigRecord(fields)}), reply_to=question)
        give_id(reply)
        return reply
