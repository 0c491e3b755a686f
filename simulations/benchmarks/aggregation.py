"""What the server does with 10,000 replies of 4,099 numbers: SLaSh, d = 1,024, roberta-large.

One round of ``server.app``'s own parts in a fresh process: the question to every client, the
replies, the byte ledger, the checks, the strategy. The grid is ours: it makes each reply as bytes
when it is asked for, and has Flower parse them. Making them is in no figure.

- a question s: messages to all clients made and counted.
- parsing s: Flower's, bytes to messages.
- counting s: the byte ledger of the replies, and the waiting for them.
- checking s: replies to vectors, nothing in them trusted.
- strategy s: vectors to the next one.
- aggregation s: the last three together; this and the memory have targets.

Beside it a bare loop: ``numpy.load`` of each vector's bytes, then a running mean in float32. Both
must end in the same vector. Memory is the peak, less what the process had before the round.

Example:
    python -m simulations.benchmarks.aggregation
    python -m simulations.benchmarks.aggregation --clients 1000
"""

from __future__ import annotations

import io
import json
import logging
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path

import numpy as np

from fedpeft.config import Experiment
from fedpeft.runtime import runtime_of
from server.app import check_update, combine
from server.ledger import ByteLedger
from server.nodes import Node
from server.round import Round, check_all
from server.runfolder import RunFolder
from server.strategies import build_strategy
from simulations.benchmarks.common import (
    APART,
    Report,
    alternate,
    arguments_of,
    child,
    compare,
    difference,
    record,
    script,
    timed,
)
from simulations.benchmarks.memory import resident
from simulations.benchmarks.parts.answering import Answering

CLIENTS, SIZE = 10_000, 4_099
TARGETS = {"aggregation s": 1.0, "memory MB": 400.0}
SAME = 1e-5  # most that both sides' vectors may differ, relative: rounding

Measurement = dict[str, float]


def vectors_of(clients: int, size: int) -> Iterator[np.ndarray]:
    """Yield the clients' vectors [P], float32, the same in every process."""
    draw = np.random.default_rng(0)
    return (draw.standard_normal(size, dtype=np.float32) for _ in range(clients))


def server_process(arguments: Sequence[str]) -> None:
    """Do one round in this process; save its vector, print the seconds and MB as JSON."""
    clients, size, out = int(arguments[0]), int(arguments[1]), Path(arguments[2])
    logging.getLogger("flwr").setLevel(logging.ERROR)  # as fedpeft.cli does
    experiment = Experiment.load("", ["backbone=tiny", f"federation.clients={clients}"])
    runtime, strategy = runtime_of(experiment.to_toml()), build_strategy(experiment.federation)
    grid = Answering(runtime.digest, vectors_of(clients, size))
    folder = RunFolder.create(out / "run", experiment)
    run = Round(1, grid, runtime, folder, ByteLedger())
    start = np.zeros(size, dtype=np.float32)
    asked = {client: Node(client, 1) for client in range(clients)}
    loaded, began = resident("VmRSS"), time.perf_counter()
    replies, failed = run.ask("train", start, asked)
    asking = time.perf_counter() - began
    checking, good = timed(
        lambda: check_all(replies, failed, lambda each: check_update(runtime, each, start))
    )
    strategic, vector = timed(lambda: combine(strategy, None, start, good, asked, run))
    assert len(good) == clients, failed
    question = grid.first_look - began
    counting = asking - question - grid.making - grid.parsing
    np.save(out / "vector.npy", vector)
    found = {
        "a question s": question,
        "parsing s": grid.parsing,
        "counting s": counting,
        "checking s": checking.wall,
        "strategy s": strategic.wall,
        "aggregation s": counting + checking.wall + strategic.wall,
        "memory MB": resident("VmHWM") - loaded,
    }
    print(json.dumps(found))


def bare_process(arguments: Sequence[str]) -> None:
    """Average the vectors in this process as a script would; save and print as above."""
    clients, size, out = int(arguments[0]), int(arguments[1]), Path(arguments[2])
    loaded, received = resident("VmRSS"), []
    for vector in vectors_of(clients, size):
        file = io.BytesIO()
        np.save(file, vector)
        received.append(file.getvalue())

    def mean() -> np.ndarray:
        total = np.zeros(size, dtype=np.float32)
        for data in received:
            total += np.load(io.BytesIO(data)) * (1 / clients)
        return total

    timing, vector = timed(mean)
    out.mkdir(parents=True, exist_ok=True)
    np.save(out / "vector.npy", vector)
    print(json.dumps({"aggregation s": timing.wall, "memory MB": resident("VmHWM") - loaded}))


def in_process(side: str, options: Namespace, out: Path) -> tuple[Measurement, np.ndarray]:
    """Return what one side of this module finds in a fresh process, and its vector [P]."""
    code = f"import sys; from simulations.benchmarks import aggregation as module; module.{side}"
    command = child(f"{code}(sys.argv[1:])", str(options.clients), str(SIZE), str(out))
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{side}: {done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1]), np.load(out / "vector.npy")


def measure(options: Namespace) -> Report:
    """Run both sides in turns.

    Raises:
        SystemExit: they do not end in the same vector.
    """
    with tempfile.TemporaryDirectory() as scratch:
        folders = (Path(scratch) / str(number) for number in count())
        ours, bare = alternate(
            lambda: in_process("server_process", options, next(folders)),
            lambda: in_process("bare_process", options, next(folders)),
            options.repeats,
        )
    start = np.zeros(SIZE, dtype=np.float32)
    apart = max(difference(a[1], b[1], start) for a, b in zip(ours, bare, strict=True))
    if not apart <= SAME:
        raise SystemExit(f"the server's vector is {apart:.2g} apart from the mean: not the same")
    return report([each for each, _ in ours], [each for each, _ in bare], apart, options)


def report(
    ours: Sequence[Measurement], bare: Sequence[Measurement], apart: float, options: Namespace
) -> Report:
    """Return the table of medians and ratios, and the parts of the server's time."""
    table = []
    for figure, target in TARGETS.items():
        sides = [each[figure] for each in ours], [each[figure] for each in bare]
        row = compare(figure, ("server", "bare loop"), *sides)
        table.append(row | {"at most": target if options.clients == CLIENTS else "-"})
    parts = {
        figure: float(np.median([each[figure] for each in ours]))
        for figure in ours[0]
        if figure not in TARGETS
    }
    facts = {"ratio": "server / bare loop, of each pair of processes", **parts, APART: apart}
    settings = {"clients": options.clients, "numbers each": SIZE, "repeats": options.repeats}
    return Report(settings, table, facts, {"server": [*ours], "bare loop": [*bare]})


def main(arguments: Sequence[str] | None = None) -> Report:
    """Run the benchmark from its command line."""
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = arguments_of(__doc__)
    parser.add_argument("--clients", type=int, default=CLIENTS, help=f"replies ({CLIENTS:,})")
    options = parser.parse_args(arguments)
    found = measure(options)
    record("aggregation", f"{options.clients} clients", found, arguments, options.results)
    return found


if __name__ == "__main__":
    script(main)
