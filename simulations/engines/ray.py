"""The Ray engine: actors that each train cohorts in their own process, one per GPU (extra ``ray``).

Apps, cohorts, and serialized messages are those of the local engine, so the bits are the same. The
grid keeps the state of every node and sends it along with the messages: any actor can answer for
any client, and an actor that dies loses nothing.

On several machines: start Ray there, set RAY_ADDRESS for ``fedpeft simulate`` and
``engine.workers`` to the number of actors. The run folder must be on a shared file system.
"""

from __future__ import annotations

import logging
import os
import secrets
import signal
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from flwr.app import Error, Message
from flwr.serverapp import ServerApp

from clients.flower import context_from_wire, context_to_wire
from fedpeft.backbones.hardware import choose_device
from fedpeft.errors import UserError
from fedpeft.experiment.config import parsed
from fedpeft.experiment.settings import EngineSection
from fedpeft.runtime import runtime_of
from fedpeft.wire.failures import CODES, FailureKind
from server.flower import from_wire, give_id, to_wire
from simulations.engines.actors import Actors, Placed
from simulations.engines.grid import CohortGrid, NodeConfig
from simulations.engines.local import answer, serve

log = logging.getLogger(__name__)
CLIENTS = "clients.app"  # module of the client app that each actor imports
_PATIENCE = 0.5  # seconds a pull waits for a reply


class ClientActor(Placed):
    """A process that answers cohorts of serialized messages with a module's client app."""

    def __init__(self, module: str, experiment: str):
        clients = import_module(module)
        self._app, self._together = clients.app, clients.train_together
        if experiment:  # load now, so that no message waits for it
            runtime_of(parsed(experiment)).load()

    def answer(
        self, sent: Sequence[bytes], contexts: Sequence[bytes]
    ) -> tuple[list[bytes], list[bytes]]:
        """Return the replies and the updated contexts of the nodes."""
        nodes = [context_from_wire(context) for context in contexts]
        replies = answer(self._app, self._together, sent, nodes)
        return replies, [context_to_wire(node) for node in nodes]


@dataclass(frozen=True)
class _Assignment:
    """A cohort, and the actor that works on it."""

    actor: Any
    cohort: list[Message]
    retried: bool = False  # an earlier actor died over it, on a machine that lives


class RayGrid(CohortGrid):
    """Runs cohorts on Ray actors, one at a time on each.

    The cohort of an actor that dies goes to the next idle one; if that dies over it, too, its
    clients get error replies. Deaths of whole machines do not count. An actor whose replies are no
    longer requested is replaced. Ray must be running.

    Args:
        node_configs: one per node.
        cohort: clients trained in one batch.
        actors: number of actors.
        gpus: number of GPUs that each actor reserves.
        experiment: TOML of the experiment that the actors load at the start; empty = none.
        module: has ``app`` and ``train_together``, as :mod:`clients.app`.

    Raises:
        RunFailed: an actor does not start.
    """

    def __init__(
        self,
        node_configs: Sequence[NodeConfig],
        cohort: int,
        actors: int,
        gpus: int = 0,
        experiment: str = "",
        module: str = CLIENTS,
    ):
        super().__init__(node_configs, cohort)
        self._arguments, self._gpus = (module, experiment), gpus
        self._actors = Actors(self._start, actors)
        self._assignments: dict[Any, _Assignment] = {}  # by Ray's reference to the answer
        self._again: list[_Assignment] = []  # those whose actor died

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Keep all actors busy; return the replies of the cohorts that finish within a moment."""
        wanted = [*message_ids]
        self._abandon_others(set(wanted))
        self._assign(wanted)
        done = self._actors.wait([*self._assignments], _PATIENCE)
        replies = [reply for reference in done for reply in self._collect(reference)]
        self._assign(wanted)  # so that no actor waits while the server processes the replies
        return replies

    def _assign(self, wanted: Sequence[str]) -> None:
        """Give every idle actor a cohort of the waiting messages."""
        while actor := self._actors.take():
            if self._again:
                self._begin(replace(self._again.pop(0), actor=actor))
            elif cohort := self._next_cohort(wanted):
                self._begin(_Assignment(actor, cohort))
            else:
                return self._actors.give_back(actor)

    def _begin(self, assignment: _Assignment) -> None:
        sent = [to_wire(message) for message in assignment.cohort]
        contexts = [context_to_wire(self._context(message)) for message in assignment.cohort]
        reference = assignment.actor.answer.remote(sent, contexts)
        self._assignments[reference] = assignment

    def _collect(self, reference: Any) -> list[Message]:
        """Return the replies of a finished cohort; none if it is retried."""
        import ray

        assignment = self._assignments.pop(reference)
        cohort = assignment.cohort
        try:
            replies, contexts = ray.get(reference)
        except ray.exceptions.RayTaskError as error:  # the actor lives; a retry would fail too
            self._actors.give_back(assignment.actor)
            return [_failed(message, type(error.cause).__name__) for message in cohort]
        except ray.exceptions.RayError as error:
            machine = self._actors.lose(assignment.actor, error)
            if assignment.retried and not machine:
                return [_failed(message, "the client's process died") for message in cohort]
            self._again.append(replace(assignment, retried=assignment.retried or not machine))
            return []
        self._actors.give_back(assignment.actor)
        for message, context in zip(cohort, contexts, strict=True):
            self._contexts[message.metadata.dst_node_id] = context_from_wire(context)
        return [from_wire(reply) for reply in replies]

    def _abandon_others(self, wanted: set[str]) -> None:
        """Replace the actors whose replies are no longer wanted: they took too long."""

        def is_wanted(assignment: _Assignment) -> bool:
            return bool(wanted & {message.metadata.message_id for message in assignment.cohort})

        self._again = [assignment for assignment in self._again if is_wanted(assignment)]
        for reference, assignment in [*self._assignments.items()]:
            if not is_wanted(assignment):
                del self._assignments[reference]
                self._actors.lose(assignment.actor)

    def _start(self) -> Any:
        import ray

        actor_class = ray.remote(ClientActor).options(num_cpus=1, num_gpus=self._gpus)
        return actor_class.remote(*self._arguments)


def _failed(message: Message, reason: str) -> Message:
    """Return the error reply of a client whose actor could not answer."""
    reply = Message(Error(CODES[FailureKind.FAILED], reason), reply_to=message)
    give_id(reply)
    return from_wire(to_wire(reply))


def require_ray(feature: str) -> None:
    """Raise UserError unless the extra ``ray``, which ``feature`` needs, is installed."""
    if find_spec("ray") is None:
        raise UserError(f"{feature} needs Ray: pip install -e '.[ray]' in the checkout")


def actors_of(engine: EngineSection) -> tuple[int, int]:
    """Return the number of actors of the engine, and the number of GPUs of each."""
    import torch

    gpus = int(choose_device(engine.device, engine.dtype).type == "cuda")
    one_machine = gpus and not _joins_cluster()
    return torch.cuda.device_count() if one_machine else engine.workers, gpus


def _joins_cluster() -> bool:
    """Return whether RAY_ADDRESS names a cluster; for "" and "local" Ray is started here."""
    return os.environ.get("RAY_ADDRESS", "") not in ("", "local")


@contextmanager
def running_ray(cpus: int) -> Iterator[None]:
    """Run Ray with ``cpus`` CPUs while the context is open, or join the cluster at RAY_ADDRESS.

    Ray listens on all addresses of the machine, and a client that it accepts can run code here. A
    Ray that is started here requires a random token, which only this process and its children know.
    Not if Ray was imported before, or RAY_AUTH_MODE is set: then Ray's own settings apply.
    """
    joins, options = _joins_cluster(), dict[str, Any]()
    variables = {
        "RAY_worker_niceness": "0",  # at 15, Ray's default, busy programs starve actors
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # or Ray warns about a future version
    }
    if not joins:
        # "local": or Ray looks for one that somebody else has started on this machine.
        options = {"address": "local", "num_cpus": cpus, "include_dashboard": False}
        if "ray" not in sys.modules:  # it reads the mode once, when it is imported
            variables |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    for name, value in variables.items():
        os.environ.setdefault(name, value)
    if not joins and os.environ.get("RAY_AUTH_MODE") != "token":
        log.warning("Ray asks for no token: set RAY_AUTH_MODE=token before the process starts")
    import ray

    with _as_before(signal.SIGTERM):  # Ray's own handler prints its stack
        ray.init(**options, log_to_driver=False, logging_level=logging.ERROR)
    try:
        yield
    finally:
        ray.shutdown()


@contextmanager
def _as_before(number: signal.Signals) -> Iterator[None]:
    """Take back the handler of a signal that the block sets; SIGTERM then acts as Ctrl-C."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(number)
    yield
    signal.signal(number, signal.default_int_handler if before == signal.SIG_DFL else before)


def run_ray(
    server_app: ServerApp,
    node_configs: Sequence[NodeConfig],
    run_config: NodeConfig,
    cohort: int,
    engine: EngineSection,
) -> None:
    """Run a ServerApp against clients on the actors that ``engine`` describes."""
    actors, gpus = actors_of(engine)
    with running_ray(actors):
        experiment = str(run_config["experiment"])
        serve(server_app, RayGrid(node_configs, cohort, actors, gpus, experiment), run_config)
