"""Two real nodes of a deployment, the settings of short runs on them, and stopped workers."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from simulations.loopback import Deployment, deployment, until

PARTS = {"north": 0, "south": 1}
SETTINGS = [
    "backbone=tiny",
    "method.d=16",
    "task.train_limit=80",
    "task.eval_limit=20",
    "federation.clients=2",
    "federation.node_wait=240",
    "engine.cohort=1",  # as at a node, to the bit
    "engine.threads=1",
    "output.eval_every=9",
    "output.plots=false",
]
PRIVATE = ["privacy.unit=example", "privacy.noise_multiplier=1"]
Seen = dict[str, int]


@contextmanager
def two_nodes(folder: Path) -> Iterator[Deployment]:
    """Yield a deployment with a server and the nodes of ``PARTS``."""
    with deployment(folder) as made:
        for name in PARTS:
            made.add_node(name)
            start(made, name)
        yield made


def start(deployed: Deployment, name: str) -> None:
    deployed.start_node(name, "--partition", str(PARTS[name]), "--backbone", "tiny")


def seen(deployed: Deployment) -> Seen:
    """Return the present lengths of the logs."""
    return {name: len(deployed.log(name)) for name in ("server", *PARTS)}


def pid_of(deployed: Deployment, name: str, program: str) -> int:
    """Wait until one process of a server or node runs a program; return its pid."""

    def only() -> int:
        pids = deployed.pids(name, program)
        return pids[0] if len(pids) == 1 else 0

    return int(until(only, f"one {program} of {name}"))


@contextmanager
def held(
    deployed: Deployment, run: str, number: int, before: Seen, *names: str, times: int = 1
) -> Iterator[Callable[[str], None]]:
    """Stop nodes' workers while they train for the ``times``-th time in a round.

    Yield a function that continues the worker of a node; the others continue at the end.
    """
    stopped: dict[str, int] = {}

    def go_on(name: str) -> None:
        with suppress(ProcessLookupError):
            os.kill(stopped.pop(name), signal.SIGCONT)

    def all_stopped() -> bool:
        assert deployed.processes[f"run-{run}"].poll() is None, deployed.output(f"run-{run}")
        for name in set(names) - set(stopped):
            if len(deployed.logged(name, f"^train, round {number}: begun", before[name])) == times:
                stopped[name] = pid_of(deployed, name, "clients.worker")
                os.kill(stopped[name], signal.SIGSTOP)
        return len(stopped) == len(names)

    try:
        until(all_stopped, f"round {number} at {' and '.join(names)}")
        for name in names:
            ended = deployed.logged(name, f"^train, round {number}: done", before[name])
            assert len(ended) < times, f"{name} was too quick"
        yield go_on
    finally:
        for name in [*stopped]:
            go_on(name)
