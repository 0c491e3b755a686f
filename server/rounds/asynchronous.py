"""Asynchronous training (FedBuff, Nguyen et al. 2022): a round takes the next replies.

As many clients as a round has train at any time. One that replies is replaced by another, which
starts from the newest vector; after ``federation.buffer`` updates the server takes a step. An
update that started s rounds ago counts (1 + s) ^ -``federation.staleness``. A client takes part in
a round at most once.

The requests that wait for their replies when a round ends, and the vectors they started from, are
part of the checkpoint. A run that continues sends them again; in a simulation with devices they
keep their time, so it ends with the same bits.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import numpy as np
from flwr.app import Message

from fedpeft.randomness import generator
from fedpeft.wire.failures import Failure
from fedpeft.wire.messages import Request, label
from server.aggregation.updates import Update, check_update, max_norm
from server.exchange.byte_ledger import ByteLedger
from server.exchange.downlink import Broadcast, broadcast
from server.exchange.sending import Patience, check_replies, failure_of, send
from server.members.nodes import Node
from server.run import Run
from server.state import Flight, ServerState

_FLIGHTS, _STARTED, _VECTOR = "async.flights", "async.started", "async.vector."


@dataclass
class Collector:
    """Collects the replies of the next round, and keeps clients training meanwhile.

    Attributes:
        run: the run.
        state: the state before the round.
        ledger: counts the bytes of the round.
        flights: requests that wait, by the ids of their messages.
        updates: valid updates, as changes of the newest vector, by client.
        failed: failures, by client.
        nodes: of these clients.
    """

    run: Run
    state: ServerState
    ledger: ByteLedger
    flights: dict[str, Flight] = field(default_factory=dict)
    updates: dict[int, Update] = field(default_factory=dict)
    failed: dict[int, Failure] = field(default_factory=dict)
    nodes: dict[int, Node] = field(default_factory=dict)

    def __post_init__(self) -> None:
        experiment, number = self.run.experiment, self.state.round + 1
        self.number, self._federation = number, experiment.federation
        self._draw = generator(experiment.seed, "sample", number)
        self._sent: dict[int, Broadcast] = {}
        if self.state.flights is None:
            self._repeat()
        else:
            self.flights = dict(self.state.flights)

    @property
    def newest(self) -> Broadcast:
        """The message to clients that start now."""
        return self._started_from(self.number)

    def collect(self) -> None:
        """Wait until the round has its replies, or nobody is left to ask."""
        patience = self.run.patience("train")
        while len(self.updates) < self._federation.buffer:
            self._launch()
            if not self.flights:
                return
            arrived = self._arrived()
            if arrived:
                self._take(arrived[0])
                self._keep(arrived[1:])
            self._give_up(patience)
            done = len(self.updates)
            self.run.folder.report("train", self.number, done, self._federation.buffer)
            if not arrived:
                since = [flight.started for flight in self.flights.values()]
                until = min(since, default=self.run.clock.now()) + patience.seconds
                self.run.clock.rest(max(since, default=0.0), until)

    def memory(self) -> dict[str, np.ndarray]:
        """Return the arrays from which a run that continues repeats the requests."""
        flights = sorted(self.flights.values(), key=lambda flight: (flight.started, flight.client))
        rows = [(flight.client, flight.number) for flight in flights]
        kept = {f"{_VECTOR}{number}": self._vector(number) for _, number in rows}
        return kept | {
            _FLIGHTS: np.array(rows, dtype=np.int64).reshape(len(rows), 2),
            _STARTED: np.array([flight.started for flight in flights], dtype=np.float64),
        }

    def _launch(self) -> None:
        """Let clients start until as many train as a round has."""
        busy = {flight.client for flight in self.flights.values()} | self.nodes.keys()
        ready = self.state.participants.to_train(self.number)
        idle = np.setdiff1d(ready, [*busy], assume_unique=True)
        least = int(not self.flights)
        pool = self.run.clock.within_reach(idle, least) if len(idle) else idle
        wanted = min(self.run.experiment.clients_per_round - len(self.flights), len(pool))
        chosen = self._draw.choice(pool, wanted, replace=False).tolist() if wanted > 0 else []
        joined = self.state.participants.join(chosen, self.ledger, self.number)
        now = self.run.clock.now()
        self._send([Flight(c, self.number, now, node) for c, node in joined.items()])

    def _repeat(self) -> None:
        """Send the requests of the checkpoint again, each at its time; nodes may reply at once."""
        rows = self.state.memory.get(_FLIGHTS, np.empty((0, 2), np.int64)).tolist()
        started = self.state.memory.get(_STARTED, np.empty(0)).tolist()
        now = self.run.clock.now()
        here = self.state.participants.join([row[0] for row in rows], self.ledger, self.number)
        for (client, number), seconds in zip(rows, started, strict=True):
            if client in here:
                self.run.clock.seek(seconds)
                self._send([Flight(client, number, self.run.clock.now(), here[client])])
                self._keep(self._arrived())
        self.run.clock.seek(now)

    def _send(self, flights: list[Flight]) -> None:
        """Send training requests, and wait for their replies from now on."""
        name = label(self.run.runtime.digest, self.run.name)
        by_client = {flight.client: flight for flight in flights}

        def content(client: int) -> Request:
            number = by_client[client].number
            return Request(vector=self._started_from(number).whole, round=number, label=name)

        nodes = {client: flight.node.node_id for client, flight in by_client.items()}
        timeout = self.run.experiment.federation.timeout
        sent = send(self.run.grid, "train", content, nodes, self.ledger, timeout, [*by_client])
        self.flights |= {message_id: by_client[client] for message_id, client in sent.items()}

    def _arrived(self) -> list[Message]:
        """Return the replies that were kept, and those that have come since."""
        kept = [flight.reply for flight in self.flights.values() if flight.reply is not None]
        awaited = [each for each, flight in self.flights.items() if flight.reply is None]
        return [*kept, *(self.run.grid.pull_messages(awaited) if awaited else ())]

    def _keep(self, replies: Iterable[Message]) -> None:
        """Keep replies until their turn; the next round may be the one that takes them."""
        for reply in replies:
            message_id = reply.metadata.reply_to_message_id
            if flight := self.flights.pop(message_id, None):  # to the end: they keep their order
                self.flights[message_id] = replace(flight, reply=reply)

    def _take(self, reply: Message) -> None:
        """Check a reply, and keep its update."""
        flight = self.flights.pop(reply.metadata.reply_to_message_id, None)
        if not flight:  # nobody waits for it
            return
        client, node = flight.client, flight.node
        self.nodes[client] = node
        self.ledger.add("train", client, "up", reply)
        if failure := failure_of(reply):
            self.failed[client] = failure
            return
        deployed = self.state.participants.deployed
        limit = max_norm(self._federation, self.state.vector.size, deployed)
        start = self._started_from(flight.number).received

        def check(client: int, reply: Message) -> Update:
            found = check_update(
                self.run.runtime, flight.number, client, reply, start, node.examples, limit
            )
            return self._rebased(found, start, self.number - flight.number)

        self.updates |= check_replies({client: reply}, self.failed, check)

    def _rebased(self, update: Update, start: np.ndarray, age: int) -> Update:
        """Return the update as a change of the newest vector, less the older it is."""
        factor = (1 + age) ** -self._federation.staleness
        change = np.subtract(update.vector, start, dtype=np.float64) * factor
        vector = (self.newest.received + change).astype(start.dtype)
        return replace(update, vector=vector)

    def _give_up(self, patience: Patience) -> None:
        """Wait no longer for requests whose time is over."""
        now = self.run.clock.now()
        for message_id, flight in [*self.flights.items()]:
            if flight.reply is None and now >= flight.started + patience.seconds:
                del self.flights[message_id]
                self.failed[flight.client] = patience.missed(0)
                self.nodes[flight.client] = flight.node

    def _started_from(self, number: int) -> Broadcast:
        """Return what clients received that started in round ``number``."""
        if number not in self._sent:
            self._sent[number] = broadcast(self.run.runtime, {}, number, self._vector(number))
        return self._sent[number]

    def _vector(self, number: int) -> np.ndarray:
        """Return the server's task vector [S] in round ``number``, before its step."""
        if number == self.number:
            return self.state.vector
        return self.state.memory[f"{_VECTOR}{number}"]
