"""Two real nodes of a deployment, the settings of short runs on them, and trainings that wait."""

from __future__ import annotations

import fcntl
import json
import os
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

from clients.folder import NodeFolder
from deployment.hosting.timing import Timing
from deployment.loopback import PATIENCE, Deployment, deployment, until
from deployment.node.traffic import recorded

#: A question to Flower takes 2 s of a processor, so they are not as frequent as the other pauses.
TIMING = replace(Timing().scaled(0.1), questions=5.0)
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
#: What the command of a run says whose ServerApp was killed.
DIED = "stopped: the server app died; the same command with --resume continues after its last round"
Seen = dict[str, int]


@contextmanager
def two_nodes(folder: Path) -> Iterator[Deployment]:
    """Yield a deployment with a server and the nodes of ``PARTS``."""
    with deployment(folder, timing=TIMING) as made:
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


def is_offline(deployed: Deployment, name: str) -> bool:
    """Return whether a node's heartbeats have ended for Flower, which is told by its database."""
    entries = json.loads((deployed.state / "nodes.json").read_text())
    node_id = next(entry["node_id"] for entry in entries if entry["name"] == name)
    signed = node_id - 2**64 if node_id >= 2**63 else node_id
    with closing(sqlite3.connect(deployed.state / "superlink.db")) as database:
        query = "SELECT online_until FROM node WHERE node_id = ?"
        [until_when] = database.execute(query, (signed,)).fetchone()
    return bool(until_when < time.time())


class Gates:
    """Hold nodes' trainings: one that begins waits until its node's gate opens.

    A node trains under a lock (``clients.memory.attempts``), which a shut gate holds. So a test
    decides when a training proceeds, whatever the speed of the machine.

    Args:
        deployed: the deployment; lines of its logs count from now on.
        run: name of the run.
    """

    def __init__(self, deployed: Deployment, run: str):
        self._deployed, self._run = deployed, run
        self._after: dict[str, int] = {}  # lengths of the logs at the start
        self._locks: dict[str, int] = {}  # handles of the lock files

    def shut(self, *names: str) -> None:
        """Shut gates; wait for the end of a training that is under way."""
        for name in names:
            node = self._deployed.node(name)
            self._after.setdefault(name, len(self._deployed.log(name)))
            if name not in self._locks:
                flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
                self._locks[name] = os.open(node / "train.lock", flags, 0o600)
            # Not polled: the next training must not come first.
            waiting = threading.Thread(target=fcntl.flock, args=(self._locks[name], fcntl.LOCK_EX))
            waiting.daemon = True
            waiting.start()
            waiting.join(PATIENCE)
            assert not waiting.is_alive(), f"{name} did not end its training"

    def open(self, *names: str) -> None:
        """Open gates."""
        for name in names:
            fcntl.flock(self._locks[name], fcntl.LOCK_UN)

    def next(self, *names: str) -> None:
        """Let one training of each node through; wait until its reply is about to leave."""
        for name in names:
            answered = self._answered(name)
            self.open(name)
            until(lambda n=name, a=answered: self._taken(n) or self._answered(n) > a, name)
            self.shut(name)
            # The record comes after the training; late, it would count as that of the next one.
            until(lambda n=name, a=answered: self._answered(n) > a, f"the answer of {name}")

    def begun(self, number: int, *names: str, times: int = 1) -> None:
        """Wait until nodes' trainings have begun in a round, for the ``times``-th time."""
        pattern = rf"^train, round {number}: begun"

        def all_begun() -> bool:
            submitted = self._deployed.processes[f"run-{self._run}"]
            assert submitted.poll() is None, self._deployed.output(f"run-{self._run}")
            return all(
                len(self._deployed.logged(name, pattern, self._after[name])) >= times
                for name in names
            )

        until(all_begun, f"round {number} at {' and '.join(names)}")

    def answered(self, number: int, name: str) -> None:
        """Wait until a node has answered the train message of a round of the run."""
        run = json.loads((self._deployed.state / "runs" / self._run / "run.json").read_text())
        wanted = str(run["run"]), "train", number
        folder = NodeFolder(self._deployed.node(name))

        def there() -> bool:
            lines = recorded(folder)
            return any((line["run"], line["kind"], line["round"]) == wanted for line in lines)

        until(there, f"the answer of {name} in round {number}")

    def close(self) -> None:
        """Open all gates for good."""
        for lock in self._locks.values():
            os.close(lock)
        self._locks.clear()

    def _taken(self, name: str) -> bool:
        try:
            fcntl.flock(self._locks[name], fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        self.open(name)
        return False

    def _answered(self, name: str) -> int:
        lines = recorded(NodeFolder(self._deployed.node(name)))
        return sum(line["kind"] == "train" for line in lines)


@contextmanager
def gates(deployed: Deployment, run: str, *shut: str) -> Iterator[Gates]:
    """Yield the gates of a run's nodes, some of them shut; open all at the end."""
    with closing(Gates(deployed, run)) as made:
        made.shut(*shut)
        yield made
