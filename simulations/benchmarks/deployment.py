"""A deployment on this machine: what the resident worker saves, and what a slow line carries.

Worker: two deployments side by side, each a server and two nodes with TLS and node authentication,
the nodes of one with the resident worker, of the other without; the same run in turns. Clients do
one step on four examples, so the time is what surrounds the training.

Line: server and nodes as three hosts (network namespaces; root, Linux), joined by lines of 64
kbit/s with 300 ms each way and 1 % loss. The bytes on the wire are those of the nodes' network
devices, IP and TCP and TLS included, beside the byte ledger's.

Example:
    python -m simulations.benchmarks.deployment
    python -m simulations.benchmarks.deployment --parts line
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import Any

from fedpeft.config import Experiment
from fedpeft.tasks import load_task
from simulations.benchmarks.common import (
    Report,
    Row,
    alternate,
    arguments_of,
    compare,
    record,
    script,
)
from simulations.benchmarks.parts.link import Line, hosts, inside
from simulations.loopback import Deployment, deployment

PARTS = ("worker", "line")
NODES = ("north", "south")
ROUNDS = 4  # of a run; the first is warming up


def settings_of(backbone: str, rounds: int) -> list[str]:
    """Return the experiment: the nodes' own files, evaluated there."""
    d = 32 if backbone == "tiny" else 1024
    return [
        f"backbone={backbone}",
        f"method.d={d}",
        "task.name=custom",
        "task.labels=negative,positive",
        "local.steps=1",
        "local.batch_size=4",
        "federation.clients=2",
        f"federation.rounds={rounds}",
        "federation.evaluation=clients",
        f"output.eval_every={rounds}",
        "output.plots=false",
        "engine.threads=1",
    ]


def write_data(folder: Path) -> list[Path]:
    """Write a small file of examples for each node."""
    section = Experiment.load("", ["task.train_limit=80"]).task
    task = load_task(section)
    files = []
    for place, name in enumerate(NODES):
        rows = range(place, len(task.train), len(NODES))
        lines = [f"{task.train.text[k]}\t{task.info.labels[task.train.labels[k]]}" for k in rows]
        file = folder / f"{name}.tsv"
        file.write_text("\n".join(["text\tlabel", *lines]) + "\n", encoding="utf-8")
        files.append(file)
    return files


@contextmanager
def with_nodes(folder: Path, backbone: str, *options: str) -> Iterator[Deployment]:
    """Give a deployment whose two nodes are up."""
    folder.mkdir()
    with deployment(folder) as made:
        for name, file in zip(NODES, write_data(folder), strict=True):
            made.add_node(name)
            made.start_node(name, "--data", str(file), "--backbone", backbone, *options)
        yield made


def worker_report(options: argparse.Namespace) -> Report:
    """Time the same run with and without the resident worker, in turns."""
    rounds: dict[str, list[float]] = {"with": [], "without": []}
    messages: dict[str, list[float]] = {"with": [], "without": []}
    settings = settings_of(options.backbone, ROUNDS)
    with tempfile.TemporaryDirectory() as home, ExitStack() as stack:
        sides = {
            side: stack.enter_context(with_nodes(Path(home) / side, options.backbone, *more))
            for side, more in (("with", ()), ("without", ("--no-worker",)))
        }

        def run(side: str, number: Iterator[int]) -> float:
            made, name = sides[side], f"run{next(number)}"
            before = len(made.log(NODES[0]))
            made.run(name, settings)
            messages[side] += answered(made.log(NODES[0])[before:])
            seconds = [line["seconds"] for line in made.rounds(name)[1:]]
            return median(seconds)

        counts = {side: iter(range(options.repeats + 1)) for side in sides}
        for side in sides:  # once, so that files are in memory and nodes have met the server
            run(side, counts[side])
        rounds["without"], rounds["with"] = alternate(
            lambda: run("without", counts["without"]),
            lambda: run("with", counts["with"]),
            options.repeats,
        )
    pairs = list(zip(messages["without"], messages["with"], strict=False))
    names = "s without worker", "s with"
    table = [
        compare("a round", names, rounds["without"], rounds["with"]),
        compare("a train message at a node", names, *map(list, zip(*pairs, strict=True))),
    ]
    facts = {"rounds": f"{ROUNDS} a run, the first left out; median of each run"}
    return Report(about(options), table, facts, {"rounds": rounds, "messages": messages})


def answered(log: Sequence[dict[str, Any]]) -> list[float]:
    """Return the seconds from each train message's arrival at a node to its reply's departure."""
    found, arrived = [], None
    for line in log:
        when = datetime.fromisoformat(line["time"]).timestamp()
        if "Receiving: train" in line["message"]:
            arrived = when
        elif "Sending: train" in line["message"] and arrived is not None:
            found.append(when - arrived)
            arrived = None
    return found[1:]  # the first of a run makes the model


def line_report(options: argparse.Namespace) -> Report:
    """Run over slow lines, and set the bytes on the wire beside the ledger's."""
    names = ["fedpeft-server", *(f"fedpeft-{name}" for name in NODES)]
    server = "10.99.0.1"
    prefixes = {name: inside(f"fedpeft-{name}") for name in ("server", *NODES)}
    with tempfile.TemporaryDirectory() as home, hosts(names), ExitStack() as stack:
        lines = [
            stack.enter_context(
                Line(
                    (names[0], f"fedpeft-{name}"),
                    (server, f"10.99.{place}.2"),
                    options.rate * 1000,
                    options.delay / 1000,
                    options.loss / 100,
                    seed=place,
                )
            )
            for place, name in enumerate(NODES)
        ]
        folder = Path(home)
        made = stack.enter_context(deployment(folder, server, prefixes))
        for name, file in zip(NODES, write_data(folder), strict=True):
            made.add_node(name)
            made.start_node(name, "--data", str(file), "--backbone", options.backbone)
        idle = _idle(lines)
        begun, marks = time.monotonic(), [[line.wire() for line in lines]]
        process = made.submit("trial", settings_of(options.backbone, ROUNDS))
        while process.poll() is None:
            if len(made.rounds("trial")) >= len(marks):
                marks.append([line.wire() for line in lines])
            time.sleep(0.1)
        result, seconds = made.finish("trial"), time.monotonic() - begun
        table = [*_wire_rows(made, marks)]
    facts = {
        "line": f"{options.rate:g} kbit/s, {options.delay:g} ms and {options.loss:g} % loss, "
        "each way",
        "the run": f"{ROUNDS} rounds completed in {seconds:.0f} s, score {result['score']:.4f}",
        "an idle node": f"{idle['up']:.0f} bytes a second up, {idle['down']:.0f} down",
        "ledger": "messages of training, evaluation and handshakes as they are serialised",
    }
    return Report(about(options), table, facts, {"marks": marks})


def _idle(lines: Sequence[Line], seconds: float = 30.0) -> dict[str, float]:
    """Return the bytes a second that a node without work sends and gets, mean of the nodes."""
    before = [line.wire() for line in lines]
    time.sleep(seconds)
    after = [line.wire() for line in lines]
    return {
        way: sum(b[way] - a[way] for a, b in zip(before, after, strict=True)) / seconds / len(lines)
        for way in ("up", "down")
    }


def _wire_rows(made: Deployment, marks: list[list[dict[str, int]]]) -> Iterator[Row]:
    """Yield a row for each round, client and direction."""
    for number in range(1, len(marks)):
        for client in range(len(NODES)):
            for way in ("down", "up"):
                wire = marks[number][client][way] - marks[number - 1][client][way]
                ledger = sum(
                    line[way]["message"]
                    for line in made.sent("trial")
                    if (line["round"], line["client"]) == (number, client) and way in line
                )
                yield {
                    "round": number,
                    "client": client,
                    "way": way,
                    "ledger, bytes": ledger,
                    "wire, bytes": wire,
                    "wire / ledger": round(wire / ledger, 2) if ledger else "-",
                }


def about(options: argparse.Namespace) -> dict[str, Any]:
    """Return what a report says of the options."""
    return {"backbone": options.backbone, "nodes": len(NODES), "repeats": options.repeats}


def main(arguments: Sequence[str] | None = None) -> list[Report]:
    """Run the benchmark from its command line."""
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = arguments_of(__doc__)
    parser.add_argument("--backbone", default="minilm", help="minilm (default), tiny")
    parser.add_argument("--parts", nargs="+", default=PARTS, choices=PARTS, help="default: both")
    parser.add_argument("--rate", type=float, default=64, help="line: kbit/s (64)")
    parser.add_argument("--delay", type=float, default=300, help="line: ms each way (300)")
    parser.add_argument("--loss", type=float, default=1, help="line: %% of the packets (1)")
    options = parser.parse_args(arguments)
    reports = []
    for part, measure in (("worker", worker_report), ("line", line_report)):
        if part in options.parts:
            reports.append(measure(options))
            case = f"{part}, {options.backbone}"
            record("deployment", case, reports[-1], arguments, options.results)
    return reports


if __name__ == "__main__":
    script(main)
