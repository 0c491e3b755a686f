"""Cost of a server round with 10,000 replies of 4,099 numbers (SLaSh, d = 1,024, roberta-large).

One round of ``server.app``'s parts in a fresh process: messages to all clients, their replies, the
byte ledger, the checks, and the strategy. The benchmark's grid serializes each reply when it is
pulled and lets Flower parse it; the time to serialize replies is in no figure.

- a question s: create and count the messages to all clients.
- parsing s: Flower parses bytes to messages.
- counting s: count the replies in the byte ledger, including the wait for them.
- checking s: validate the replies and convert them to vectors.
- strategy s: compute the next vector.
- aggregation s: the last three together; has a target, as has memory.

The bare loop calls ``numpy.load`` on the bytes of each vector and keeps a running mean in float32.
Both must end in the same vector. Memory is the peak minus the memory before the round.

Example:
    python -m simulations.benchmarks.aggregation
    python -m simulations.benchmarks.aggregation --clients 1000
"""

from __future__ import annotations

import io
import json
import logging
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path

import numpy as np

from fedpeft.experiment.config import Experiment
from fedpeft.runs.folder import RunFolder
from fedpeft.runtime import runtime_of
from server.aggregation.combining import combine
from server.aggregation.updates import check_update
from server.exchange.byte_ledger import ByteLedger
from server.exchange.sending import check_replies
from server.exchange.wire_bytes import WireMeter
from server.members.nodes import Node, Nodes
from server.members.participants import Participants
from server.run import Run
from server.state import ServerState
from simulations.benchmarks.common import (
    APART,
    Report,
    alternate,
    arguments_of,
    child_json,
    compare,
    difference,
    record,
    script,
    timed,
)
from simulations.benchmarks.memory import resident
from simulations.benchmarks.parts.answering import Answering

CLIENTS, SIZE = 10_000, 4_099
HEAD = 66  # numbers of the head: two classes on the tiny backbone of width 32
TARGETS = {"aggregation s": 1.0, "memory MB": 400.0}
SAME = 1e-5  # largest relative difference of both vectors (rounding)

Measurement = dict[str, float]


def vectors_of(clients: int, size: int) -> Iterator[np.ndarray]:
    """Yield the clients' vectors [P], float32, the same in every process."""
    draw = np.random.default_rng(0)
    return (draw.standard_normal(size, dtype=np.float32) for _ in range(clients))


def server_process(arguments: Sequence[str]) -> None:
    """Run one round in this process; save its vector, print the seconds and MB as JSON."""
    clients, size, out = int(arguments[0]), int(arguments[1]), Path(arguments[2])
    logging.getLogger("flwr").setLevel(logging.ERROR)  # as fedpeft.cli does
    settings = ["backbone=tiny", "method.name=said", f"method.d={size - HEAD}"]
    experiment = Experiment.load("", [*settings, f"federation.clients={clients}"])
    runtime = runtime_of(experiment)
    grid = Answering(vectors_of(clients, size))
    folder = RunFolder.create(out / "run", experiment)
    run = Run(grid, runtime, folder)
    start = np.zeros(size, dtype=np.float32)
    participants = Participants(Nodes(grid), experiment, identity={})
    state = ServerState(0, start, privacy={}, participants=participants, wire=WireMeter(None))
    asked = {client: Node(client, 1) for client in range(clients)}
    loaded, began = resident("VmRSS"), time.perf_counter()
    replies, failed = run.ask(
        "train", 1, dict.fromkeys(asked, start.tobytes()), asked, ByteLedger()
    )
    asking = time.perf_counter() - began
    checking, good = timed(
        lambda: check_replies(
            replies, failed, lambda client, reply: check_update(runtime, 1, client, reply, start, 1)
        )
    )
    strategic, (vector, _) = timed(lambda: combine(run, state, start, good, asked))
    assert len(good) == clients, failed
    question = grid.first_look - began
    counting = asking - question - grid.making - grid.parsing
    np.save(out / "vector.npy", vector)
    figures = {
        "a question s": question,
        "parsing s": grid.parsing,
        "counting s": counting,
        "checking s": checking.wall,
        "strategy s": strategic.wall,
        "aggregation s": counting + checking.wall + strategic.wall,
        "memory MB": resident("VmHWM") - loaded,
    }
    print(json.dumps(figures))


def bare_process(arguments: Sequence[str]) -> None:
    """Average the vectors in this process with a plain loop; save and print as above."""
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
    """Run one side of this module in a fresh process; return its figures and vector [P]."""
    code = f"import sys; from simulations.benchmarks import aggregation as module; module.{side}"
    arguments = str(options.clients), str(SIZE), str(out)
    figures = child_json(f"{code}(sys.argv[1:])", *arguments)
    return figures, np.load(out / "vector.npy")


def measure(options: Namespace) -> Report:
    """Run both sides in turns.

    Raises:
        SystemExit: they do not end in the same vector.
    """
    with tempfile.TemporaryDirectory() as scratch:
        folders = (Path(scratch) / str(number) for number in count())
        server, bare = alternate(
            lambda: in_process("server_process", options, next(folders)),
            lambda: in_process("bare_process", options, next(folders)),
            options.repeats,
        )
    start = np.zeros(SIZE, dtype=np.float32)
    apart = max(difference(a[1], b[1], start) for a, b in zip(server, bare, strict=True))
    if not apart <= SAME:
        raise SystemExit(f"the server's vector is {apart:.2g} apart from the mean: not the same")
    return report([run for run, _ in server], [run for run, _ in bare], apart, options)


def report(
    server: Sequence[Measurement], bare: Sequence[Measurement], apart: float, options: Namespace
) -> Report:
    """Return the table of medians and ratios, and the parts of the server's time."""
    table = []
    for figure, target in TARGETS.items():
        sides = [run[figure] for run in server], [run[figure] for run in bare]
        row = compare(figure, ("server", "bare loop"), *sides)
        table.append(row | {"at most": target if options.clients == CLIENTS else "-"})
    parts = {
        figure: float(np.median([run[figure] for run in server]))
        for figure in server[0]
        if figure not in TARGETS
    }
    facts = {"ratio": "server / bare loop, of each pair of processes", **parts, APART: apart}
    settings = {"clients": options.clients, "numbers each": SIZE, "repeats": options.repeats}
    return Report(settings, table, facts, {"server": [*server], "bare loop": [*bare]})


def main(arguments: Sequence[str] | None = None) -> Report:
    """Run the benchmark from its command line."""
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = arguments_of(__doc__)
    parser.add_argument("--clients", type=int, default=CLIENTS, help=f"replies ({CLIENTS:,})")
    options = parser.parse_args(arguments)
    result = measure(options)
    record("aggregation", f"{options.clients} clients", result, arguments, options.results)
    return result


if __name__ == "__main__":
    script(main)
