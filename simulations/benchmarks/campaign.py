"""A campaign of faults on one deployment of three nodes: the bits must be those of a quiet run.

Parts are killed, or stopped (SIGSTOP) and continued after 1 to 100 seconds, at random moments and
while earlier ones are still stopped: tunnel, SuperNode and worker of a node, the gateway, the
SuperLink, and the process of the run. A run that ends by that is resumed, as its own message says.
Runs follow each other until all faults are over; each must need all three nodes in every round, end
with the vector of a simulation, and charge each step once. Once a second, the status of each node
and the health of the server are compared with the processes: how long was a status wrong?

A hundred faults take about half an hour.

Example:
    python -m simulations.benchmarks.campaign --faults 100 --seed 0
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from clients.folder import NodeFolder
from deployment.hosting.timing import Timing
from deployment.loopback import Deployment, deployment, run, until
from deployment.processes import kill
from fedpeft.privacy.ledger import read_ledger
from simulations.benchmarks.common import Report, Row, arguments_of, positive, record, script
from simulations.benchmarks.parts.watching import Watch

NODES = ("north", "south", "west")
#: Program -> whether a node or the server runs it.
PROGRAMS = {
    "deployment.tunnel.tunnel": "node",
    "flower-supernode": "node",
    "deployment.node.worker": "node",
    "deployment.gateway": "server",
    "flower-superlink": "server",
    "deployment.server.process": "server",
}
LONGEST = 100.0  # seconds of a stop; those between it and 1 are drawn evenly in the logarithm
PAUSE = 16.0  # most seconds between two faults
ROUNDS, STEPS = 12, 10  # of each run; steps of each client and round
#: A node that asks for nothing is found after 20 s instead of 60, so that stops are long enough.
TIMING = replace(Timing().scaled(0.1), questions=5.0, silent=20.0)
SETTINGS = [
    "backbone=tiny",
    "method.d=16",
    "task.train_limit=120",
    "task.eval_limit=20",
    f"federation.clients={len(NODES)}",
    f"federation.min_success={len(NODES)}",
    f"federation.rounds={ROUNDS}",
    f"federation.node_wait={4 * LONGEST:g}",
    "federation.timeout=600",
    f"local.steps={STEPS}",
    "engine.cohort=1",  # as at a node, to the bit
    "engine.threads=1",
    "output.eval_every=99",
    "output.plots=false",
    "privacy.unit=example",
    "privacy.noise_multiplier=1",
    "privacy.reproducible=true",
]
_TRIES = 60  # of one run


@dataclass
class Faults:
    """Strikes a deployment at random moments; keeps what was done.

    Args:
        made: the deployment.
        draw: of places, kinds and moments.
    """

    made: Deployment
    draw: random.Random
    done: Counter[tuple[str, str]] = field(default_factory=Counter)
    missed: int = 0  # processes that were not there, as they were being started
    _timers: list[threading.Timer] = field(default_factory=list)

    def strike(self) -> None:
        """Kill or stop one process; a stopped one continues by itself later."""
        program = self.draw.choice(list(PROGRAMS))
        place = self.draw.choice(NODES) if PROGRAMS[program] == "node" else "server"
        stops, seconds = self.draw.random() < 0.5, LONGEST ** self.draw.random()
        pids = self.made.pids(place, program)
        if not pids:
            self.missed += 1
            return
        self.done[program, "stopped" if stops else "killed"] += 1
        if not stops:
            kill(pids[0])
            return
        _send(pids[0], signal.SIGSTOP)
        timer = threading.Timer(seconds, _send, (pids[0], signal.SIGCONT))
        timer.start()
        self._timers.append(timer)

    def rest(self) -> None:
        """Wait until all have been continued."""
        for timer in self._timers:
            timer.join()


def _send(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:  # it was killed meanwhile, or has ended
        return


class Runs:
    """Runs one after the other, in a thread, until ``enough`` is set; resumes those that end."""

    def __init__(self, made: Deployment):
        self.enough = threading.Event()
        self.finished: list[str] = []
        self.resumed = 0
        self.error: Exception | None = None
        self._made = made
        self._thread = threading.Thread(target=self._all)

    @contextmanager
    def going(self) -> Iterator[None]:
        """Start the runs; at the end of the block, let the present one end."""
        self._thread.start()
        try:
            yield
        finally:
            self.enough.set()
            self._thread.join()
        if self.error:
            raise self.error

    def _all(self) -> None:
        try:
            while not self.enough.is_set():
                self._one(f"run{len(self.finished)}")
        except Exception as error:
            self.error = error

    def _one(self, name: str) -> None:
        options: list[str] = []
        for _ in range(_TRIES):
            code = self._made.submit(name, SETTINGS, *options).wait()
            if code == 0:
                self.finished.append(name)
                return
            if (self._made.state / "runs" / name / "run.json").exists():
                options = ["--resume"]
            self.resumed += 1
            time.sleep(2)
        raise RuntimeError(f"{name} did not end: {self._made.output(f'run-{name}')[-3000:]}")


def main(arguments: Sequence[str] | None = None) -> Report:
    """Run the campaign from its command line."""
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = arguments_of(__doc__, None)
    parser.add_argument("--faults", type=positive, default=100, help="how many (100)")
    parser.add_argument("--seed", type=int, default=0, help="of the faults (0)")
    parser.add_argument("--keep", type=Path, help="an empty folder for the deployment's files")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as home:
        report = measure(options.keep or Path(home), options)
    record("campaign", f"{options.faults} faults", report, arguments, options.results)
    return report


def measure(home: Path, options: argparse.Namespace) -> Report:
    """Start three nodes, strike while they run experiments, and check every result."""
    with deployment(home, timing=TIMING) as made:
        for number, name in enumerate(NODES):
            made.add_node(name)
            made.start_node(name, "--partition", str(number), "--backbone", "tiny")
        faults, runs = Faults(made, random.Random(options.seed)), Runs(made)
        with Watch(made, NODES) as watch, runs.going():
            while sum(faults.done.values()) < options.faults and not runs.error:
                time.sleep(faults.draw.uniform(0, PAUSE))
                faults.strike()
                print(f"{sum(faults.done.values())} faults, {len(runs.finished)} runs", flush=True)
            faults.rest()
        until(lambda: watch.all_well(), "a status that says that all is well")
        facts = check(made, runs, home / "quiet")
    facts |= {"resumed": runs.resumed, "found missing": faults.missed, **watch.longest()}
    return Report({"seed": options.seed, "settings": SETTINGS}, table(faults), facts, {})


def table(faults: Faults) -> list[Row]:
    """Return how often each part was killed and stopped."""
    kinds = ("killed", "stopped")
    return [
        {"part": program, **{kind: faults.done[program, kind] for kind in kinds}}
        for program in PROGRAMS
    ]


def check(made: Deployment, runs: Runs, quiet: Path) -> dict[str, object]:
    """Compare each run with a simulation, and the nodes' ledgers with what was asked.

    Raises:
        RuntimeError: they differ.
    """
    asked = [part for setting in SETTINGS for part in ("-s", setting)]
    run("simulate", *asked, "--out", str(quiet))
    expected = json.loads((quiet / "result.json").read_text())["digests"]["vector"]
    for name in runs.finished:
        found = json.loads((made.folder / name / "result.json").read_text())["digests"]["vector"]
        if found != expected:
            raise RuntimeError(f"{name}: the vector is {found}; expected {expected}")
        if any(line["failed"] for line in made.rounds(name)):
            raise RuntimeError(f"{name}: a node is missing in a round")
    due = len(runs.finished) * ROUNDS * STEPS
    for name in NODES:
        charges = read_ledger(NodeFolder(made.node(name)).ledger).charges
        held = sum(charge.mechanism.steps for charge in charges)
        if held != due:
            raise RuntimeError(f"{name}: {held} steps are charged; expected {due}")
    return {"runs with the bits of a quiet one": len(runs.finished), "steps charged, each": due}


if __name__ == "__main__":
    script(main)
