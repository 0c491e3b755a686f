"""A grid on which clients have devices, and time is virtual.

Clients train as fast as this machine can. Their replies arrive when the devices of ``[devices]``
would have sent them: after the request, the local steps and the reply. Handshakes and evaluations
take no time. A client that is late stops when its round ends.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil

import numpy as np
from flwr.app import Error, Message, MessageType

from fedpeft.experiment.config import Experiment
from fedpeft.simulated.devices import SLOT, device_of, reachable, vanishes
from fedpeft.wire.failures import CODES, FailureKind
from fedpeft.wire.framing import train_reply_bytes
from fedpeft.wire.messages import RECORD, HandshakeReply, Request, TrainReply, from_fields
from server.aggregation.updates import expected_steps
from server.exchange.byte_ledger import vector_bytes
from server.flower import give_id
from simulations.engines.grid import CohortGrid, WrappedGrid

#: Seconds until Flower's server notices that a node is gone: two heartbeats of 30 s.
NOTICED = 60.0


@dataclass(frozen=True)
class _Arrival:
    """A reply, its client, and the virtual second at which the server gets it."""

    at: float
    client: int
    message: Message

    @property
    def asked(self) -> str:
        """The id of the request."""
        return self.message.metadata.reply_to_message_id


class DeviceGrid(WrappedGrid):
    """Delays the replies to training requests; it is also the clock of the run.

    Args:
        inner: runs the clients.
        experiment: of the run, with ``[devices]``.
        now: virtual seconds of the rounds that are already done.
    """

    def __init__(self, inner: CohortGrid | WrappedGrid, experiment: Experiment, now: float = 0.0):
        super().__init__(inner)
        self._experiment, self._now = experiment, now
        self._examples: dict[int, int] = {}  # by client
        self._asked: dict[str, Message] = {}  # training requests not yet answered, by their ids
        self._arrivals: dict[int, _Arrival] = {}  # replies on their way, by client
        self._awaited: set[str] = set()  # ids of the requests the server waits for

    def now(self) -> float:
        """Return the virtual seconds since the start of the run."""
        return self._now

    def rest(self, begun: float, until: float) -> None:
        """Go to the next arrival of a reply, at most ``until``, once all clients have trained."""
        if not self._awaited & self._asked.keys():
            arrivals = (a.at for a in self._arrivals.values() if a.asked in self._awaited)
            self._now = max(self._now, min([until, *arrivals]))

    def seek(self, seconds: float) -> None:
        """Go to a moment, to send what was sent then."""
        self._now = seconds

    def within_reach(self, clients: np.ndarray, least: int) -> np.ndarray:
        """Return those of the clients [n] that can be asked now; wait until they are ``least``."""
        while True:
            found = clients[reachable(self._experiment, self._now)[clients]]
            if len(found) >= min(least, len(clients)):
                return found
            self._now = (self._now // SLOT + 1) * SLOT

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Keep messages until they are run; a client stops what it was asked to train before."""
        sent = [*messages]
        ids = self._inner.push_messages(sent)
        for message_id, message in zip(ids, sent, strict=True):
            if message.metadata.message_type == MessageType.TRAIN:
                self._arrivals.pop(self.client_of(message), None)
                self._asked[message_id] = message
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Run the next clients and return the replies that have arrived by now."""
        awaited, arrived = [*message_ids], []
        self._awaited = set(awaited)
        for reply in self._inner.pull_messages(awaited):
            if request := self._asked.pop(reply.metadata.reply_to_message_id, None):
                self._arrivals[self.client_of(request)] = self._arrival(request, reply)
            else:
                self._note(reply)
                arrived.append(reply)
        if self._awaited & self._asked.keys():
            return arrived
        due = [a for a in self._arrivals.values() if a.at <= self._now and a.asked in self._awaited]
        due.sort(key=lambda arrival: (arrival.at, arrival.client))
        return arrived + [self._arrivals.pop(arrival.client).message for arrival in due]

    def _note(self, reply: Message) -> None:
        """Keep a client's number of examples, if this is its handshake."""
        if reply.metadata.message_type == "query.handshake" and not reply.has_error():
            report = from_fields(HandshakeReply, reply.content.get(RECORD))
            self._examples[report.client] = report.examples

    def _arrival(self, request: Message, reply: Message) -> _Arrival:
        """Return when the server gets which reply to a request that it sends now."""
        client = self.client_of(request)
        number = from_fields(Request, request.content.get(RECORD)).round
        if vanishes(self._experiment, number, client):
            error = Error(CODES[FailureKind.GONE], "the node vanished")
            gone = Message(error, reply_to=request)
            give_id(gone)
            return _Arrival(self._now + NOTICED, client, gone)
        steps = 0
        if not reply.has_error():
            trained = from_fields(TrainReply, reply.content.get(RECORD))
            examples = self._examples[client]
            steps = trained.steps or expected_steps(self._experiment.local, examples)
            if not number:  # one forward pass over the examples: a third of an epoch
                steps = ceil(examples / self._experiment.local.batch_size / 3)
        device = device_of(self._experiment, client)
        received, sent = (train_reply_bytes(vector_bytes(each), 0) for each in (request, reply))
        return _Arrival(self._now + device.seconds(steps, received, sent), client, reply)
