"""The engine of Ray actors: processes that each train cohorts, one a GPU (extra ``ray``).

The same apps, cohorts and serialised messages as in the local engine, so the same bits. A node's
state stays with the grid and travels with its messages: any actor can answer for any client, and
one that dies takes nothing with it.

On several machines: start Ray there, set RAY_ADDRESS for ``fedpeft simulate``, and
``engine.workers`` to the number of actors; the run folder has to be on a file system they share.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from flwr.app import Error, Message
from flwr.serverapp import ServerApp

from clients.errors import CLIENT_EXCEPTION
from clients.flower import context_from_wire, context_to_wire
from fedpeft.backbones import choose_device
from fedpeft.errors import RunFailed
from fedpeft.runtime import runtime_of
from fedpeft.settings import EngineSection
from server.flower import from_wire, give_id, to_wire
from simulations.local import CohortGrid, NodeConfig, answer, serve

log = logging.getLogger(__name__)
CLIENTS = "clients.app"  # the module of the client app, as each actor imports it
_PATIENCE = 0.5  # seconds a pull waits for a reply
_START = 900.0  # seconds for all actors to start and to load; a large backbone takes minutes


class Worker:
    """What an actor is: answers cohorts of serialised messages with a module's client app."""

    def __init__(self, module: str, experiment: str):
        clients = import_module(module)
        self._app, self._together = clients.app, clients.train_together
        if experiment:  # now, so that no message waits for it
            runtime = runtime_of(experiment)
            _ = runtime.model, runtime.train, runtime.dev

    def ready(self) -> bool:
        """Answer when everything is loaded."""
        return True

    def answer(
        self, sent: Sequence[bytes], contexts: Sequence[bytes]
    ) -> tuple[list[bytes], list[bytes]]:
        """Return the replies, and the nodes' contexts as they are then."""
        nodes = [context_from_wire(each) for each in contexts]
        replies = answer(self._app, self._together, sent, nodes)
        return replies, [context_to_wire(each) for each in nodes]


@dataclass(frozen=True)
class _Task:
    """A cohort at an actor."""

    place: int  # of the actor
    cohort: list[Message]
    again: bool  # after an actor had died over it


class ActorGrid(CohortGrid):
    """Runs cohorts on Ray actors, one at a time on each, as many at once as there are actors.

    An actor that dies is replaced, and its cohort tried once more; if that one dies too, the
    cohort's clients get error replies. A cohort that nobody waits for any more is ended with its
    actor. Ray has to run, with enough CPUs and GPUs.

    Args:
        node_configs: of each node.
        cohort: clients trained in one batch.
        workers: number of actors.
        gpus: that each actor has for itself.
        experiment: TOML of what the actors load before anything is asked of them.
        module: has ``app`` and ``train_together``, as :mod:`clients.app`.

    Raises:
        RunFailed: an actor does not start.
    """

    def __init__(
        self,
        node_configs: Sequence[NodeConfig],
        cohort: int,
        workers: int,
        gpus: int = 0,
        experiment: str = "",
        module: str = CLIENTS,
    ):
        super().__init__(node_configs, cohort)
        self._arguments, self._gpus = (module, experiment), gpus
        self._actors = [self._start() for _ in range(workers)]
        self._wait()
        self._tasks: dict[Any, _Task] = {}  # by Ray's reference to what it will answer

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Keep all actors at work; return the replies of a cohort that is done, if one is soon."""
        import ray

        wanted = [*message_ids]
        self._end_others(set(wanted))
        self._hand_out(wanted)
        if not self._tasks:
            return []
        done, _ = ray.wait([*self._tasks], timeout=_PATIENCE)
        replies = [reply for reference in done for reply in self._collect(reference)]
        self._hand_out(wanted)  # so that no actor waits while the server looks at the replies
        return replies

    def _hand_out(self, wanted: Sequence[str]) -> None:
        """Give every idle actor a cohort of the messages that wait."""
        busy = {task.place for task in self._tasks.values()}
        for place in range(len(self._actors)):
            if place not in busy and (cohort := self._next_cohort(wanted)):
                self._run_on(_Task(place, cohort, again=False))

    def _run_on(self, task: _Task) -> None:
        sent = [to_wire(message) for message in task.cohort]
        contexts = [context_to_wire(self._context(message)) for message in task.cohort]
        self._tasks[self._actors[task.place].answer.remote(sent, contexts)] = task

    def _collect(self, reference: Any) -> list[Message]:
        """Return the replies of a task that is done; none if it has to be done again."""
        import ray

        task = self._tasks.pop(reference)
        try:
            replies, contexts = ray.get(reference)
        except ray.exceptions.RayTaskError as error:  # no death: it would fail once more
            return [_failed(message, type(error.cause).__name__) for message in task.cohort]
        except ray.exceptions.RayError as error:
            log.warning("actor %d is replaced: %s", task.place, type(error).__name__)
            self._replace(task.place)
            if task.again:
                return [_failed(message, "the client's process died") for message in task.cohort]
            self._run_on(_Task(task.place, task.cohort, again=True))
            return []
        for message, context in zip(task.cohort, contexts, strict=True):
            self._contexts[message.metadata.dst_node_id] = context_from_wire(context)
        return [from_wire(reply) for reply in replies]

    def _end_others(self, wanted: set[str]) -> None:
        """End the tasks none of whose replies is waited for, as they took too long."""
        for reference, task in [*self._tasks.items()]:
            if not wanted & {message.metadata.message_id for message in task.cohort}:
                del self._tasks[reference]
                self._replace(task.place)

    def _start(self) -> Any:
        import ray

        return ray.remote(Worker).options(num_cpus=1, num_gpus=self._gpus).remote(*self._arguments)

    def _wait(self) -> None:
        """Wait until all actors have loaded what they need."""
        import ray

        try:
            ray.get([actor.ready.remote() for actor in self._actors], timeout=_START)
        except ray.exceptions.RayError as error:  # its last line is the actor's own error
            reason = str(error).strip().splitlines()[-1]
            raise RunFailed(
                f"an actor of engine.kind = 'actors' does not start: {reason}"
            ) from None

    def _replace(self, place: int) -> None:
        import ray

        ray.kill(self._actors[place])
        self._actors[place] = self._start()


def _failed(message: Message, reason: str) -> Message:
    """Return the error reply of a client whose actor could not answer."""
    reply = Message(Error(CLIENT_EXCEPTION, reason), reply_to=message)
    give_id(reply)
    return from_wire(to_wire(reply))


def actors_of(engine: EngineSection) -> tuple[int, int]:
    """Return how many actors the engine has, and how many GPUs each of them."""
    import torch

    gpus = int(choose_device(engine.device, engine.dtype).type == "cuda")
    alone = gpus and "RAY_ADDRESS" not in os.environ
    return torch.cuda.device_count() if alone else engine.workers, gpus


@contextmanager
def running_ray(cpus: int) -> Iterator[None]:
    """Run Ray with so many CPUs while the context is open, or join the one at RAY_ADDRESS."""
    import ray

    own = {} if "RAY_ADDRESS" in os.environ else {"num_cpus": cpus, "include_dashboard": False}
    # Nothing is sent to Ray's makers, and a warning of what Ray will do one day is not shown.
    for name in ("RAY_USAGE_STATS_ENABLED", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"):
        os.environ.setdefault(name, "0")
    ray.init(**own, log_to_driver=False, logging_level=logging.ERROR)
    try:
        yield
    finally:
        ray.shutdown()


def run_actors(
    server_app: ServerApp,
    node_configs: Sequence[NodeConfig],
    run_config: NodeConfig,
    cohort: int,
    engine: EngineSection,
) -> None:
    """Run a ServerApp against clients on the actors that ``engine`` asks for."""
    workers, gpus = actors_of(engine)
    with running_ray(workers):
        loaded = str(run_config["experiment"])
        serve(server_app, ActorGrid(node_configs, cohort, workers, gpus, loaded), run_config)
