"""The local engine: a Flower Grid that calls the client app in this process.

No ports, no Ray, no threads. Every message passes through Flower's own serialisation, so clients
share no memory with the server and results equal those of a deployment. With ``cohort`` > 1 that
many clients are trained together in one batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from flwr.app import Context, Message, MessageType, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

from clients.data import CONTENT
from clients.errors import error_reply
from fedpeft.experiment.config import parsed
from fedpeft.runtime import runtime_of
from server.flower import from_wire, give_id, to_wire
from server.runfolder import RunFolder
from simulations.adversary_grid import AdversaryGrid
from simulations.device_grid import DeviceGrid
from simulations.grid import CohortGrid, NodeConfig, WrappedGrid

TrainTogether = Callable[[Sequence[Message], Sequence[Context]], list[Message]]


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
    """Run a ServerApp on a grid to its end, with malicious clients and devices if there are any."""
    experiment, content = parsed(str(run_config["experiment"])), str(run_config.get(CONTENT, ""))
    played: CohortGrid | WrappedGrid = grid
    if experiment.adversary.fraction and experiment.adversary.attack != "label_flip":
        played = AdversaryGrid(played, runtime_of(experiment, content=content))
    if experiment.devices.step_seconds:
        done = RunFolder(Path(str(run_config["out"]))).rounds()
        played = DeviceGrid(played, experiment, (done[-1]["virtual"] or 0.0) if done else 0.0)
    server_app(played, Context(grid.run.run_id, 0, {}, RecordDict(), dict(run_config)))
