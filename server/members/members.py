"""The clients of a run whose nodes passed the handshake.

Nodes shake hands when they connect. If the grid knows the node of every client, as in most
simulations, they do so when they are first asked: a federation costs what takes part in it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import NoReturn

import numpy as np

from fedpeft.errors import RunFailed, printable
from fedpeft.experiment.config import Experiment
from fedpeft.secure.masks import run_context
from fedpeft.tasks.metrics import MAX_EXAMPLES
from fedpeft.wire.failures import FailureKind
from server.exchange.byte_ledger import ByteLedger
from server.exchange.sending import LONGEST
from server.members.handshake import (
    Report,
    differences,
    read_report,
    send_handshakes,
    with_backbone,
)
from server.members.introduction import check_introduction
from server.members.nodes import Node, Nodes
from server.members.silence import Silence

log = logging.getLogger(__name__)
_INTERVAL = 2.0  # seconds between two checks for missing nodes


class Refused(ValueError):
    """A node may not take part; the message says why."""


@dataclass
class Members:
    """The clients of a run and their nodes.

    Attributes:
        nodes: the connected nodes.
        experiment: settings of the run.
        identity: digests that all nodes must share. A server that loads no backbone takes the
            backbone of most nodes.
        numbers: node id -> client, for the whole run.
        run: name of a deployment's run, sent to nodes.
        note: called with a line for people on each node that is refused or does not answer.
        clients: client -> its node, which is connected and passed the handshake.
        refused: node id -> why it is refused as long as it stays connected.
        silent: node id -> why its last handshake failed; the next round repeats it.
        unshaken: nodes that did not answer handshakes.
        declined: nodes that answered a handshake of this round with an error, as a refusal by
            their own rules; nobody waits for them.
        began: whether this process has played a round.
    """

    nodes: Nodes
    experiment: Experiment
    identity: dict[str, str]
    numbers: dict[int, int] = field(default_factory=dict)
    run: str = ""
    note: Callable[[str], None] = lambda line: None
    clients: dict[int, Node] = field(default_factory=dict)
    refused: dict[int, str] = field(default_factory=dict)
    silent: dict[int, str] = field(default_factory=dict)
    unshaken: Silence = field(default_factory=Silence)
    declined: set[int] = field(default_factory=set)
    began: bool = False

    @property
    def deployed(self) -> bool:
        """Whether the nodes are registered sites; in a simulation they are part of this program."""
        return self.nodes.registry is not None

    @property
    def known(self) -> np.ndarray:
        """The clients that are connected and not refused, in order, int64 [n]."""
        if not self.nodes.numbered:
            return np.array(sorted(self.clients), dtype=np.int64)
        return np.arange(self.experiment.federation.clients)

    def hold(
        self, clients: Iterable[int], reference: bytes | None = None, start: bytes = b""
    ) -> None:
        """Note that these clients hold vectors with these names, as they have answered them."""
        for client in clients:
            node = self.clients[client]
            held = node.reference if reference is None else reference
            self.clients[client] = replace(node, reference=held, start=start or node.start)

    def forget(self, clients: Iterable[int]) -> None:
        """Repeat the handshake with these clients before their next round."""
        for client in clients:
            self.clients.pop(client, None)

    def refresh(self, ledger: ByteLedger, number: int = 1) -> None:
        """Remove nodes that left and shake hands with new ones.

        A deployment waits at most ``federation.node_wait`` seconds: in the first round of a process
        for every node, as one may be back in a moment; later only if too few can take part.

        Args:
            ledger: counts the bytes of the round.
            number: of the round, from 1.

        Raises:
            RunFailed: fewer than ``federation.min_success`` clients can take part.
        """
        if self.nodes.numbered:
            return
        federation = self.experiment.federation
        deadline = time.monotonic() + (federation.node_wait if self.deployed else 0.0)
        first, self.began = self.deployed and not self.began, True
        self.declined = set()
        while True:
            self._update(ledger, number)
            over = time.monotonic() >= deadline
            away = federation.clients - len(self.refused) - len(self.declined)
            wanted = away if first and not over else 0
            if len(self.clients) >= max(wanted, federation.min_success):
                return
            if over:
                self._too_few()
            time.sleep(_INTERVAL)

    def join(self, clients: Iterable[int], ledger: ByteLedger, number: int) -> dict[int, Node]:
        """Return these clients with their nodes, in order; shake hands first with new ones.

        Args:
            clients: they can be asked now.
            ledger: counts the bytes of the round.
            number: of the round, from 1.

        Raises:
            RunFailed: a handshake fails, and fewer than ``federation.min_success`` take part.
        """
        asked = sorted(clients)
        if grid := self.nodes.numbered:
            new = [grid.node_of(client) for client in asked if client not in self.clients]
            proposed = [node_id for node_id in new if node_id not in self.refused]
            self._shake_hands(dict.fromkeys(proposed), ledger, number)
            if len(self.clients) < min(len(asked), self.experiment.federation.min_success):
                self._too_few()
        return {client: self.clients[client] for client in asked if client in self.clients}

    def _too_few(self) -> NoReturn:
        """Raise RunFailed with the reasons of the nodes that cannot take part."""
        federation = self.experiment.federation
        reasons = "; ".join([*self.refused.values(), *self.silent.values()]) or "none is connected"
        raise RunFailed(
            f"{len(self.clients)} clients can take part, federation.min_success is "
            f"{federation.min_success}: {reasons}"
        )

    def _update(self, ledger: ByteLedger, number: int) -> None:
        """Check once which nodes are connected, and shake hands with new ones."""
        online = self.nodes.look()
        self.refused = {node: why for node, why in self.refused.items() if node in online}
        self.silent = {}
        self.clients = {c: node for c, node in self.clients.items() if node.node_id in online}
        known = {node.node_id for node in self.clients.values()} | self.refused.keys()
        new = online - known
        if len(self.clients) >= self.experiment.federation.min_success:
            new = {node_id for node_id in new if not self.unshaken.rests(node_id, number)}
            new -= self.declined
        self._shake_hands(self._propose(new), ledger, number)

    def _shake_hands(
        self, proposed: dict[int, int | None], ledger: ByteLedger, number: int
    ) -> None:
        """Shake hands with nodes; ``proposed`` has the client that each is to host."""
        if not proposed:
            return
        by_node = ByteLedger()
        replies, failed = send_handshakes(
            self.nodes.grid, self.experiment, proposed, self.run, by_node, self.numbers
        )
        self.unshaken.hear(number, proposed, failed)
        reports = {}
        for node_id, reply in replies.items():
            try:
                reports[node_id] = read_report(reply)
            except Exception as error:  # a reply may hold anything
                name = self.nodes.name(node_id)
                self._refuse(node_id, f"{name}: {type(error).__name__}: {error}")
        self.identity = with_backbone(self.identity, reports.values())
        accepted = {}
        # A node that waits for its number, or keeps it, cannot lose it to another one.
        awaited = {c for n, c in proposed.items() if n not in reports or reports[n].client == c}
        for node_id, report in sorted(
            reports.items(), key=lambda item: proposed[item[0]] not in (None, item[1].client)
        ):
            try:
                if proposed[node_id] not in (None, report.client) and report.client in awaited:
                    name = self.nodes.name(node_id)
                    raise Refused(f"{name}: client {report.client} is another node's")
                accepted[node_id] = self._accept(node_id, report)
            except Refused as error:
                self._refuse(node_id, str(error))
        passing = (FailureKind.GONE, FailureKind.DIED, FailureKind.SILENT)
        for node_id, reason in failed.items():
            if reason.kind not in passing:
                self.declined.add(node_id)
            self.silent[node_id] = f"{self.nodes.name(node_id)}: {reason}"
            log.warning("no handshake: %s", self.silent[node_id])
            self.note(f"no handshake: {self.silent[node_id]}")
        ledger.add_handshakes(by_node, accepted)

    def _propose(self, new: set[int]) -> dict[int, int | None]:
        """Return the client that each new node is to host, ordered by node id.

        A node keeps its client for the whole run; other nodes get free clients in order of
        registration. Nodes without a free client, or not yet registered, are left out. Simulated
        nodes know their clients.
        """
        if not self.deployed:
            return dict.fromkeys(sorted(new))
        order = {node.node_id: place for place, node in enumerate(self.nodes.registered)}
        proposed: dict[int, int | None] = {}
        proposed |= {node: self.numbers[node] for node in new & self.numbers.keys()}
        taken = set(self.numbers.values())
        free = [c for c in range(self.experiment.federation.clients) if c not in taken]
        others = sorted((new - proposed.keys()) & order.keys(), key=order.__getitem__)
        return dict(sorted((proposed | dict(zip(others, free, strict=False))).items()))

    def _accept(self, node_id: int, report: Report) -> int:
        """Accept a node and return its client.

        Raises:
            Refused: the node may not take part.
        """
        client, examples = report.client, report.examples
        deployed, name = self.deployed, self.nodes.name(node_id)
        if differing := differences(self.identity, report.identity):
            raise Refused(f"client {client}{f', {name}' if deployed else ''}: {differing}")
        engine = self.experiment.engine
        if report.weights != engine.weights and not self.experiment.federation.mixed_weights:
            raise Refused(
                f"{name}: client {client} holds the frozen weights in {report.weights}, the server "
                f"in {engine.weights}; start the node without --weights, or set "
                f"federation.mixed_weights = true"
            )
        if client in self.clients or (deployed and self._is_taken(client, node_id)):
            raise Refused(f"{name}: client {client} is already taken")
        count = self.experiment.federation.clients
        if not (0 <= client < count and 1 <= examples <= MAX_EXAMPLES):
            raise Refused(
                f"{name}: client {client} with {examples} examples does not belong here; expected "
                f"client 0 to {count - 1} with 1 to {MAX_EXAMPLES} examples"
            )
        if self.experiment.federation.secure:
            self._check_introduction(node_id, client, report.peer)
        shown = name if deployed else ""
        self.clients[client] = Node(
            node_id, examples, shown, report.reference, report.peer, report.start
        )
        self.numbers[node_id] = client
        return client

    def _check_introduction(self, node_id: int, client: int, peer: bytes) -> None:
        public = {node.node_id: node.public_key for node in self.nodes.registered}
        others = (node.peer for node in self.clients.values())
        context = run_context(self.experiment.digest, self.run)
        try:
            check_introduction(peer, client, others, context, public.get(node_id, ""))
        except ValueError as error:
            name = self.nodes.name(node_id)
            raise Refused(f"{name}: how it introduces itself to its peers: {error}") from None

    def _is_taken(self, client: int, node_id: int) -> bool:
        """Return whether the client has another node, or the node another client, in this run."""
        nodes = {node for node, number in self.numbers.items() if number == client}
        return self.numbers.get(node_id, client) != client or bool(nodes - {node_id})

    def _refuse(self, node_id: int, reason: str) -> None:
        self.refused[node_id] = printable(reason, LONGEST)
        log.warning("refused %s", self.refused[node_id])
        self.note(f"refused {self.refused[node_id]}")
