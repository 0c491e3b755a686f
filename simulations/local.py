"""The local engine: a Flower Grid that calls the client app in this process.

No ports, no Ray, no threads. Every message passes through Flower's own serialisation, so clients
share no memory with the server and results are those of a deployment. With ``cohort`` > 1 the
train messages of that many clients are answered together, in one batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from flwr.app import Context, Message, MessageType, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from clients.errors import error_reply
from server.flower import Run, from_wire, give_id, new_run, to_wire

TrainTogether = Callable[[Sequence[Message], Sequence[Context]], list[Message]]
NodeConfig = dict[str, int | float | str | bool]


class LocalGrid(Grid):
    """Runs messages when their replies are asked for, a cohort at a time, in the order sent."""

    def __init__(
        self,
        client_app: ClientApp,
        node_configs: Sequence[NodeConfig],
        cohort: int = 1,
        train_together: TrainTogether | None = None,
    ):
        self._app, self._train_together = client_app, train_together
        self._cohort = cohort if train_together else 1
        self._run = new_run()
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
        """Return no details: nodes in one process have none."""
        return []

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Keep messages until they are run; what an earlier round left waiting is dropped."""
        self._waiting = {give_id(message): message for message in messages}
        return list(self._waiting)

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Run the next cohort of the messages named and return its replies."""
        chosen = [i for i in message_ids if i in self._waiting][: self._cohort]
        messages = [from_wire(to_wire(self._waiting.pop(message_id))) for message_id in chosen]
        contexts = [self._contexts[message.metadata.dst_node_id] for message in messages]
        if self._train_together and len(messages) > 1 and _trains(messages[0]):
            replies = self._train_together(messages, contexts)
        else:
            replies = [self._call(m, c) for m, c in zip(messages, contexts, strict=True)]
        for reply in replies:
            give_id(reply)
        return [from_wire(to_wire(reply)) for reply in replies]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        """Run all messages to the end; there is nothing to time out on."""
        waiting = self.push_messages(messages)
        replies: list[Message] = []
        while self._waiting:
            replies += self.pull_messages(waiting)
        return replies

    def _call(self, message: Message, context: Context) -> Message:
        try:
            return self._app(message, context)
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
    grid = LocalGrid(client_app, node_configs, cohort, train_together)
    server_app(grid, Context(grid.run.run_id, 0, {}, RecordDict(), dict(run_config)))
