"""Who takes part: waiting for nodes, the handshake, and which client is at which node."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from fedpeft.config import Experiment
from fedpeft.errors import RunFailed
from fedpeft.privacy.ledger import BudgetSpent
from fedpeft.version import __version__
from server.exchange import exchange, printable
from server.ledger import ByteLedger
from server.registry import Registered

log = logging.getLogger(__name__)
_AWAY = 2.0  # seconds between looks for nodes that are away


@dataclass(frozen=True)
class Node:
    """A node that passed the handshake."""

    node_id: int
    examples: int
    name: str = ""  # what the operator calls it; nothing in a simulation


@dataclass
class Nodes:
    """The nodes of a run; ``clients`` maps client ids to nodes that passed the handshake."""

    grid: Grid
    experiment: Experiment
    #: What every node must have in common with the server. A server that loads no backbone has
    #: none of its own: the one that most nodes have is then everybody's.
    identity: dict[str, str]
    #: Tells who is registered, in order of registration; None in a simulation.
    registry: Callable[[], Sequence[Registered]] | None = None
    numbers: dict[int, int] = field(default_factory=dict)  # node id -> client, for the whole run
    clients: dict[int, Node] = field(default_factory=dict)
    run: str = ""  # names a deployment's run to its nodes
    #: Gets a line for people on each node that is refused, or with which there is no handshake.
    note: Callable[[str], None] = lambda line: None
    registered: Sequence[Registered] = ()  # when it was last asked
    refused: dict[int, str] = field(default_factory=dict)  # node id -> why
    silent: dict[int, str] = field(default_factory=dict)  # the same; asked again next round
    spent: set[int] = field(default_factory=set)  # clients without privacy budget for a round

    @property
    def willing(self) -> dict[int, Node]:
        """The clients that can still be asked to train."""
        return {c: node for c, node in self.clients.items() if c not in self.spent}

    def require_willing(self) -> None:
        """Raise BudgetSpent if too few clients have privacy budget left for a round."""
        needed = self.experiment.federation.min_success
        if len(self.willing) < needed and self.spent:
            raise BudgetSpent(
                f"{len(self.willing)} clients have privacy budget left, federation.min_success "
                f"is {needed}"
            )

    def retire(self, clients: Iterable[int]) -> None:
        """Never ask these clients to train again: their privacy budget is spent."""
        self.spent.update(clients)

    def refresh(self, ledger: ByteLedger) -> None:
        """Forget nodes that left and shake hands with those that are new.

        In a deployment nodes may be away for a moment: too few are waited for.

        Raises:
            RunFailed: fewer than ``federation.min_success`` clients can take part, in a deployment
                after ``federation.node_wait`` seconds.
        """
        federation = self.experiment.federation
        deadline = time.monotonic() + (federation.node_wait if self.registry else 0.0)
        while True:
            self._meet(ledger)
            if len(self.clients) >= federation.min_success:
                return
            if time.monotonic() >= deadline:
                break
            time.sleep(_AWAY)
        reasons = "; ".join([*self.refused.values(), *self.silent.values()]) or "none is connected"
        raise RunFailed(
            f"{len(self.clients)} clients can take part, federation.min_success is "
            f"{federation.min_success}: {reasons}"
        )

    def _meet(self, ledger: ByteLedger) -> None:
        self.registered = self.registry() if self.registry else ()
        online = set(self.grid.get_node_ids())
        self.refused = {node: why for node, why in self.refused.items() if node in online}
        self.silent = {}
        self.clients = {c: node for c, node in self.clients.items() if node.node_id in online}
        known = {node.node_id for node in self.clients.values()} | set(self.refused)
        new = self._propose(online - known)
        if new:
            self._handshake(new, ledger)

    def forget(self, client: int) -> None:
        """Shake hands again before this client's next round."""
        self.clients.pop(client, None)

    def name(self, node_id: int) -> str:
        """Return what the operator calls a node."""
        names = (each.name for each in self.registered if each.node_id == node_id)
        return next(names, f"node {node_id}")

    def _propose(self, nodes: set[int]) -> dict[int, int]:
        """Return for nodes that are new the client each would be: the free one registered first.

        A node that has been a client stays that one. Nodes that are not needed are left alone, and
        so is one whose registration was not completed. Simulated nodes know their numbers.
        """
        if self.registry is None:
            return dict.fromkeys(sorted(nodes), -1)
        order = {each.node_id: place for place, each in enumerate(self.registered)}
        found = {node: self.numbers[node] for node in nodes if node in self.numbers}
        free = [
            client
            for client in range(self.experiment.federation.clients)
            if client not in self.numbers.values()
        ]
        others = sorted((nodes - found.keys()) & order.keys(), key=order.__getitem__)
        return dict(sorted({**found, **dict(zip(others, free, strict=False))}.items()))

    def _handshake(self, proposed: Mapping[int, int], ledger: ByteLedger) -> None:
        # Which client is at a node is not known before it answers: count by place in the list.
        toml, places = self.experiment.to_toml(), dict(enumerate(proposed))
        own = ByteLedger()

        def content(place: int) -> RecordDict:
            client = proposed[places[place]]
            config = {"experiment": toml, "client": client, "version": __version__}
            named = {"run": self.run} if self.run else {}
            return RecordDict({"config": ConfigRecord({**config, **named})})

        federation = self.experiment.federation
        # A node that hangs must not hold up every round for a whole training's time.
        patience = min(federation.timeout, federation.node_wait)
        replies, failed = exchange(self.grid, "handshake", content, places, own, patience)
        names: dict[int, int | None] = {}
        self._agree([*replies.values()])
        for place, reply in replies.items():
            try:
                names[place] = self._accept(places[place], reply)
            except Exception as error:  # a reply may hold anything
                reason = f"{type(error).__name__}: {error}"
                self._refuse(places[place], f"{self.name(places[place])}: {reason}")
        for place, reason in failed.items():
            self.silent[places[place]] = f"{self.name(places[place])}: {reason}"
            log.warning("no handshake: %s", self.silent[places[place]])
            self.note(f"no handshake: {self.silent[places[place]]}")
        for (kind, place, direction), sizes in own.entries.items():
            client = names.get(place)
            ledger.entries[kind, -1 - place if client is None else client, direction] = sizes

    def _agree(self, replies: list[Message]) -> None:
        """Take the backbone of most nodes for the run's, unless it is known already."""
        if "backbone" in self.identity:
            return
        answers = [dict(reply.content.get("node", {})) for reply in replies]
        found = Counter(
            str(answer["backbone"])
            for answer in answers
            if all(answer.get(key) == value for key, value in self.identity.items())
            and "backbone" in answer
        )
        if found:
            most = max(found.values())
            self.identity["backbone"] = min(name for name in found if found[name] == most)
            log.info("the backbone of %d of %d nodes is the run's", most, len(answers))

    def _accept(self, node_id: int, reply: Message) -> int | None:
        """Take a node in and return its client id, or refuse it and return None."""
        answer = reply.content["node"]
        client, examples = int(answer["client"]), int(answer["examples"])
        differing = [key for key, value in self.identity.items() if answer.get(key) != value]
        if "version" in differing and "version" in answer:
            # A node of another version says no more than that.
            differing = [key for key in differing if key in answer]
        if differing:
            said = "; ".join(
                f"{key} is {_short(answer.get(key))}, expected {_short(self.identity[key])}"
                for key in differing
            )
            own = f", {self.name(node_id)}" if self.registry else ""
            self._refuse(node_id, f"client {client}{own}: {said}")
        elif client in self.clients or self._bound(client, node_id):
            self._refuse(node_id, f"{self.name(node_id)}: client {client} is already taken")
        elif not 0 <= client < self.experiment.federation.clients or examples < 1:
            self._refuse(node_id, f"client {client} with {examples} examples does not belong here")
        else:
            name = self.name(node_id) if self.registry else ""
            self.clients[client] = Node(node_id, examples, name)
            self.numbers[node_id] = client
            return client
        return None

    def _bound(self, client: int, node_id: int) -> bool:
        """Return whether a client, or the node, is another's for the whole run."""
        if self.registry is None:
            return False
        others = (node for node, number in self.numbers.items() if number == client)
        moved = self.numbers.get(node_id, client) != client
        return moved or any(other != node_id for other in others)

    def _refuse(self, node_id: int, reason: str) -> None:
        self.refused[node_id] = printable(reason)
        log.warning("refused %s", self.refused[node_id])
        self.note(f"refused {self.refused[node_id]}")


def _short(value: object) -> str:
    """Return a version whole and a digest by its first 12 digits."""
    return str(value)[:12]
