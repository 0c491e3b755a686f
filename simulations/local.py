"""The local engine: a Flower Grid that calls the client app in this process.

No ports, no Ray, no threads. Every message passes through Flower's own serialisation, so clients
share no memory with the server and results equal those of a deployment. With ``cohort`` > 1 that
many clients are trained together in one batch.
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
    """Base class: the nodes of a simulation and the messages that wait for them.

    Args:
        node_configs: one per node.
        cohort: number of messages answered together.
    """

    def __init__(self, node_configs: Sequence[NodeConfig], cohort: int):
        self._cohort, self._run = cohort, new_run()
        self._contexts = {
            1000 + place: Context(self._run.run_id, 1000 + place, config, RecordDict(), {})
            for place, config in enumerate(node_configs)
        }
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
        return list(self._contexts)

    def get_nodes(self) -> list[object]:
        """Return no details: simulated nodes have none."""
        return []

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Keep messages until they are run; drop those of an earlier round."""
        self._waiting = {give_id(message): message for message in messages}
        return list(self._waiting)

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

    def _context(self, message: Message) -> Context:
        """Return the context of the node that receives a message."""
        return self._contexts[message.metadata.dst_node_id]


class LocalGrid(CohortGrid):
    """Runs messages when their replies are pulled, one cohort at a time, in the order sent."""

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
        """Run the next cohort of ``message_ids`` and return its replies."""
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
    """Return serialized replies to serialized messages, in their order; contexts may change.

    Args:
        app: answers one message.
        together: answers several train messages in one batch; None = one by one.
        sent: the messages, all of one type.
        contexts: of the nodes that receive them.
    """
    messages = [from_wire(content) for content in sent]
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
    """Run a ServerApp and a ClientApp at each node, all in this process."""
    serve(server_app, LocalGrid(client_app, node_configs, cohort, train_together), run_config)


def serve(server_app: ServerApp, grid: CohortGrid, run_config: NodeConfig) -> None:
    """Run a ServerApp on a grid to its end."""
    server_app(grid, Context(grid.run.run_id, 0, {}, RecordDict(), dict(run_config)))
