"""A federated run: what stays the same in all rounds, and requests to its clients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from flwr.app import Message
from flwr.serverapp import Grid

from fedpeft.experiment.config import Experiment
from fedpeft.runs.folder import RunFolder
from fedpeft.runs.records import Kind
from fedpeft.runtime import Runtime
from fedpeft.wire.failures import Failure
from fedpeft.wire.messages import Request, label, start_name
from server.exchange.byte_ledger import ByteLedger
from server.exchange.clock import Clock, RealClock
from server.exchange.sending import Patience, exchange
from server.members.nodes import Node


@dataclass(frozen=True)
class Run:
    """A federated run; ``name`` identifies it to the nodes of a deployment."""

    grid: Grid
    runtime: Runtime
    folder: RunFolder
    name: str = ""
    clock: Clock = field(default_factory=RealClock)

    @property
    def experiment(self) -> Experiment:
        """All settings."""
        return self.runtime.experiment

    @property
    def virtual(self) -> float | None:
        """Virtual seconds since the start of a simulation with devices; None for other runs."""
        return None if isinstance(self.clock, RealClock) else self.clock.now()

    def ask(
        self,
        kind: Kind,
        number: int,
        vectors: Mapping[int, bytes],
        clients: Mapping[int, Node],
        ledger: ByteLedger,
        reference: bytes = b"",
        start: bytes = b"",
    ) -> tuple[dict[int, Message], dict[int, Failure]]:
        """Send a task vector to clients; return replies and failures, by client.

        Args:
            kind: train or evaluate.
            number: of the round, from 1.
            vectors: the encoded task vector for each client, see ``server/exchange/downlink.py``.
            clients: client -> its node.
            ledger: counts the bytes of the round.
            reference: name of the vector, see ``server/exchange/downlink.py``.
            start: see ``server.exchange.downlink.start_of``; sent to those that do not hold it.
        """
        name = label(self.runtime.digest, self.name)
        known = start_name(start)
        return exchange(
            self.grid,
            kind,
            lambda client: Request(
                vector=vectors[client],
                round=number,
                label=name,
                reference=reference,
                start=known if clients[client].start == known else known + start,
            ),
            {client: node.node_id for client, node in clients.items()},
            ledger,
            self.patience(kind),
            lambda done, total: self.folder.report(kind, number, done, total),
            self.clock,
        )

    def patience(self, kind: Kind) -> Patience:
        """Return how long to wait for replies: training has a deadline, and clients in reserve."""
        federation = self.experiment.federation
        if kind not in ("start", "train"):
            return Patience(federation.timeout)
        reserve = federation.over_selection > 1
        enough = self.experiment.clients_per_round if reserve else None
        return Patience(federation.timeout, federation.deadline, enough)
