"""The local engine: a Flower Grid that calls the client app in this process.

No ports, no Ray, no threads. Every message passes through Flower's own serialisation, so clients
share no memory with the server and results are those of a deployment. With ``cohort`` > 1 the
train messages of that many clients are answered together, in one batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import islice

from flwr.app import Context, Message, MessageType, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from clients.errors import error_reply
from server.flower import Run, from_wire, give_id, new_run, to_wire

TrainTogether = Callable[[Sequence[Message], Sequence[Context]], list[Message]]
NodeConfig = dict[str, int | float | str | bool]


class CohortGrid(Grid):
    """The nodes of a simulation, and the messages that wait for them; no more than a base.

    Args:
        node_configs: of each node.
        cohort: how many messages are answered together.
    """

    def __init__(self, node_configs: Sequence[NodeConfig], cohort: int):
        self._cohort, self._run = cohort, new_run()
        self._contexts = {
            1000 + place: Context(self._run.run_id, 1000 + place, config, RecordDict(), {})
            for place, config in enumerate(node_configs)
        }
        self._waiting: dict[str, Message] = {}

    def set_run(self, run: object) -> None:
        """Grids of other engines are told their run; this one has made it."""

    @property
    def run(self) -> Run:
        """The run that messages belong to."""
        return self._run

    def create_message(self, *_: object, **__: object) -> Message:
        """Not offered by this grid: Flower has deprecated it for ``Message(...)``."""
        raise TypeError("use flwr.app.Message(...) instead of Grid.create_message")

    def get_node_ids(self) -> list[int]:
        """Return all nodes; none ever leaves."""
        return list(self._contexts)

    def get_nodes(self) -> list[object]:
        """Return no details: simulated nodes have none."""
        return []

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Keep messages until they are run; what an earlier round left waiting is dropped."""
        self._waiting = {give_id(message): message for message in messages}
        return list(self._waiting)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        """Run all messages to the end, whatever the timeout; return replies in their order."""
        sent = self.push_messages(messages)
        replies: dict[str, Message] = {}
        while len(replies) < len(sent):
            for reply in self.pull_messages([each for each in sent if each not in replies]):
                replies[reply.metadata.reply_to_message_id] = reply
        return [replies[message_id] for message_id in sent]

    def _next_cohort(self, message_ids: Iterable[str]) -> list[Message]:
        """Take the first of the messages named that wait, in the order in which they are named."""
        chosen = islice((i for i in message_ids if i in self._waiting), self._cohort)
        return [self._waiting.pop(message_id) for message_id in list(chosen)]

    def _context(self, message: Message) -> Context:
        """Return the context of the node that a message is for."""
        return self._contexts[message.metadata.dst_node_id]


class LocalGrid(CohortGrid):
    """Runs messages when their replies are asked for, a cohort at a time, in the order sent."""

    def __init__(
        self,
        client_app: ClientApp,
        node_configs: Sequence[NodeConfig],
        cohort: int = 1,
        train_together: TrainTogether | None = None,
    ):
        super().__init__(node_configs, cohort if train_together else 1)
        self._app, self._together = client_app, train_together

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Run the next cohort of the messages named and return its replies."""
        cohort = self._next_cohort(message_ids)
        contexts = [self._context(message) for message in cohort]
        replies = answer(self._app, self._together, [to_wire(m) for m in cohort], contexts)
        return [from_wire(reply) for reply in replies]


def answer(
    app: ClientApp,
    together: TrainTogether | None,
    sent: Sequence[bytes],
    contexts: Sequence[Context],
) -> list[bytes]:
    """Answer serialised messages by serialised replies, in their order; contexts may change.

    Args:
        app: answers one message.
        together: answers several train messages in one batch; None = one after the other.
        sent: the messages, all of one type.
        contexts: of the nodes they are for.
    """
    messages = [from_wire(each) for each in sent]
    if together and len(messages) > 1 and _trains(messages[0]):
        replies = together(messages, contexts)
    else:
        replies = [_call(app, m, c) for m, c in zip(messages, contexts, strict=True)]
    for reply in replies:
        give_id(reply)
    return [to_wire(reply) for reply in replies]


def _call(app: ClientApp, message: Message, context: Context) -> Message:
    try:
        return app(message, context)
    except Exception as error:  # as Flower's runtimes do
        return error_reply(error, message)


def _trains(message: Message) -> bool:
    return message.metadata.message_type == MessageType.TRAIN


def run_local(
    server_app: ServerApp,
    client_app: ClientApp,
    node_configs: Sequence[NodeConfig],
    run_config: NodeConfig,
    cohort: int = 1,
    train_together: TrainTogether | None = None,
) -> None:
    """Run a ServerApp against a ClientApp at each node, all in this process."""
    serve(server_app, LocalGrid(client_app, node_configs, cohort, train_together), run_config)


def serve(server_app: ServerApp, grid: CohortGrid, run_config: NodeConfig) -> None:
    """Run a ServerApp on a grid to its end."""
    server_app(grid, Context(grid.run.run_id, 0, {}, RecordDict(), dict(run_config)))
