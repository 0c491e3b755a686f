"""The nodes of a simulation, and the messages that wait for them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import overload

from flwr.app import Context, Message, RecordDict
from flwr.serverapp import Grid

from server.flower import Run, give_id, new_run

NodeConfig = dict[str, int | float | str | bool]
_FIRST = 1000  # id of the first node


@dataclass(frozen=True)
class NodeConfigs(Sequence[NodeConfig]):
    """The node configs of the clients of a simulation, made when they are read.

    Attributes:
        clients: number of clients; client i is at node i.
        shared: what all configs have in common.
    """

    clients: int
    shared: NodeConfig

    @overload
    def __getitem__(self, place: int) -> NodeConfig: ...
    @overload
    def __getitem__(self, place: slice) -> list[NodeConfig]: ...
    def __getitem__(self, place: int | slice) -> NodeConfig | list[NodeConfig]:
        if isinstance(place, slice):
            return [self[each] for each in range(self.clients)[place]]
        return {"partition-id": range(self.clients)[place], **self.shared}

    def __len__(self) -> int:
        return self.clients


class CohortGrid(Grid):
    """Base class: the nodes of a simulation and the messages that wait for them.

    A node gets its context with its first message.

    Args:
        node_configs: one per node; ``NodeConfigs`` if client i is at node i.
        cohort: number of messages answered together.
    """

    def __init__(self, node_configs: Sequence[NodeConfig], cohort: int):
        self._cohort, self._run = cohort, new_run()
        self._configs = node_configs
        self._contexts: dict[int, Context] = {}
        self._waiting: dict[str, Message] = {}

    def set_run(self, run: object) -> None:
        """Do nothing: this grid creates its run itself."""

    @property
    def run(self) -> Run:
        """The run of all messages."""
        return self._run

    def create_message(self, *_: object, **__: object) -> Message:
        """Raise TypeError: Flower deprecated this method for ``Message(...)``."""
        raise TypeError("use flwr.app.Message(...) instead of Grid.create_message")

    def get_node_ids(self) -> list[int]:
        """Return the ids of all nodes; simulated nodes stay connected."""
        return [_FIRST + place for place in range(len(self._configs))]

    @property
    def numbered(self) -> bool:
        """Whether the nodes are those of the clients in order."""
        return isinstance(self._configs, NodeConfigs)

    def node_of(self, client: int) -> int:
        """Return the id of a client's node, if this grid is numbered."""
        return _FIRST + client

    def get_nodes(self) -> list[object]:
        """Return no details: simulated nodes have none."""
        return []

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Keep messages until they are run; each replaces one that waits for the same node."""
        sent = {give_id(message): message for message in messages}
        nodes = {message.metadata.dst_node_id for message in sent.values()}
        self._waiting = {
            i: m for i, m in self._waiting.items() if m.metadata.dst_node_id not in nodes
        } | sent
        return list(sent)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        """Run all messages and return the replies in their order; ``timeout`` is ignored."""
        sent = self.push_messages(messages)
        replies: dict[str, Message] = {}
        while len(replies) < len(sent):
            for reply in self.pull_messages([i for i in sent if i not in replies]):
                replies[reply.metadata.reply_to_message_id] = reply
        return [replies[message_id] for message_id in sent]

    def _next_cohort(self, message_ids: Iterable[str]) -> list[Message]:
        """Take the first waiting messages of ``message_ids``, in that order."""
        chosen = islice((i for i in message_ids if i in self._waiting), self._cohort)
        return [self._waiting.pop(message_id) for message_id in list(chosen)]

    def client_of(self, message: Message) -> int:
        """Return the client of the node that receives a message."""
        return int(self._context(message).node_config["partition-id"])

    def _context(self, message: Message) -> Context:
        """Return the context of the node that receives a message."""
        node = message.metadata.dst_node_id
        if node not in self._contexts:
            config = self._configs[node - _FIRST]
            self._contexts[node] = Context(self._run.run_id, node, config, RecordDict(), {})
        return self._contexts[node]


class WrappedGrid(Grid):
    """Base class: a grid that changes what passes through the grid of a simulation.

    Args:
        inner: runs the clients.
    """

    def __init__(self, inner: CohortGrid | WrappedGrid):
        self._inner = inner

    def set_run(self, run: object) -> None:
        """Do nothing: the inner grid creates its run itself."""

    @property
    def run(self) -> Run:
        """The run of all messages."""
        return self._inner.run

    def create_message(self, *arguments: object, **named: object) -> Message:
        """Raise TypeError, see the inner grid."""
        return self._inner.create_message(*arguments, **named)

    def get_node_ids(self) -> list[int]:
        """Return the ids of all nodes."""
        return self._inner.get_node_ids()

    @property
    def numbered(self) -> bool:
        """Whether the nodes are those of the clients in order."""
        return self._inner.numbered

    def node_of(self, client: int) -> int:
        """Return the id of a client's node, if this grid is numbered."""
        return self._inner.node_of(client)

    def get_nodes(self) -> list[object]:
        """Return no details: simulated nodes have none."""
        return self._inner.get_nodes()

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        """Run all messages and return the replies in their order; ``timeout`` is ignored."""
        return self._inner.send_and_receive(messages, timeout=timeout)

    def client_of(self, message: Message) -> int:
        """Return the client of the node that receives a message."""
        return self._inner.client_of(message)
