"""A deployment on this machine: savings of the resident worker, and bytes over a slow line.

Worker: two deployments, each a server and two nodes with TLS and node authentication, one with the
resident worker and one without, run the same experiment alternately. Clients do one step on four
examples, so the time is that of everything except training.

Wire: two nodes reach the server over relays that count TCP payload: while idle, and in a run with
messages of 1 KB of which the last round, with its evaluation, is left out.

Line: the server and the nodes are three hosts (network namespaces; root, Linux), connected by lines
of 64 kbit/s with a delay of 300 ms each way and 1 % loss. Reports the bytes counted by the nodes'
network devices, including IP, TCP and TLS, and those of the byte ledger.

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

from deployment.loopback import Deployment, deployment
from fedpeft.experiment.config import Experiment
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
from simulations.benchmarks.parts.relay import Relay

PARTS = ("worker", "wire", "line")
NODES = ("north", "south")
DATA = ("--labels", "negative,positive", "--data")
ROUNDS = 4  # of a run; the first is warm-up
WIRE_ROUNDS = 12  # of the run whose bytes are counted; the first and the last are left out
#: With the head of the tiny backbone: 256 numbers, 1,024 bytes.
WIRE_METHOD = ("method.name=jr_warp", "method.d=190")
IDLE = 60.0  # seconds


def settings_of(backbone: str, rounds: int) -> list[str]:
    """Return the experiment: clients train and evaluate on the nodes' files."""
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
    """Yield a deployment whose two nodes are online."""
    folder.mkdir()
    with deployment(folder) as made:
        for name, file in zip(NODES, write_data(folder), strict=True):
            made.add_node(name)
            made.start_node(name, *DATA, str(file), "--backbone", backbone, *options)
        yield made


def worker_report(options: argparse.Namespace) -> Report:
    """Time the same run with and without the resident worker, alternating."""
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
        for side in sides:  # warm up: files in memory, nodes known to the server
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
    seconds, arrived = [], None
    for line in log:
        when = datetime.fromisoformat(line["time"]).timestamp()
        if "Receiving: train" in line["message"]:
            arrived = when
        elif "Sending: train" in line["message"] and arrived is not None:
            seconds.append(when - arrived)
            arrived = None
    return seconds[1:]  # the first message of a run builds the model


def wire_report(options: argparse.Namespace) -> Report:
    """Count the bytes on the wire of idle nodes and of rounds of training."""
    with tempfile.TemporaryDirectory() as home, ExitStack() as stack:
        folder = Path(home)
        made = stack.enter_context(deployment(folder))
        relays = [stack.enter_context(Relay(made.port)) for _ in NODES]
        for name, file, relay in zip(NODES, write_data(folder), relays, strict=True):
            made.add_node(name)
            kept = (*DATA, str(file), "--backbone", "tiny")
            made.start_node(name, *kept, port=relay.port)
        time.sleep(5)  # the nodes activate themselves
        before = _counts(relays)
        time.sleep(IDLE)
        idle = _mean(before, _counts(relays), IDLE)
        made.run("warm", settings_of("tiny", 1))
        marks = [_counts(relays)]
        settings = [*settings_of("tiny", WIRE_ROUNDS), *WIRE_METHOD]
        process = made.submit("trial", settings)
        while process.poll() is None:
            if len(made.rounds("trial")) >= len(marks):
                marks.append(_counts(relays))
            time.sleep(0.02)
        made.finish("trial")
        used = range(2, WIRE_ROUNDS)
        rounds = [_mean(marks[number - 1], marks[number], 1) for number in used]
        seconds = [line["seconds"] for line in made.rounds("trial")[1:-1]]
        message = {
            way: median(
                line[way]["message"]
                for line in made.sent("trial")
                if line["kind"] == "train" and way in line
            )
            for way in ("up", "down")
        }
    row: Row = {"case": "two nodes"}
    for way in ("up", "down"):
        row[f"message {way}, bytes"] = message[way]
        row[f"wire {way}, bytes"] = median(each[way] for each in rounds)
    for way in ("up", "down"):
        row[f"idle {way}, bytes/s"] = round(idle[way], 1)
    row["s a round"] = round(median(seconds), 2)
    facts = {
        "wire": "TCP payload for a client and round, TLS included; median of "
        f"{len(rounds)} rounds, mean over nodes",
        "connections": f"{sum(relay.accepted for relay in relays)} in all",
    }
    return Report(about(options), [row], facts, {"rounds": rounds, "seconds": seconds})


def _counts(relays: Sequence[Relay]) -> list[dict[str, int]]:
    return [{"up": relay.up, "down": relay.down} for relay in relays]


def _mean(
    before: Sequence[dict[str, int]], after: Sequence[dict[str, int]], by: float
) -> dict[str, float]:
    """Return the bytes of each direction between two counts, mean over nodes, divided by ``by``."""
    return {
        way: sum(b[way] - a[way] for a, b in zip(before, after, strict=True)) / by / len(before)
        for way in ("up", "down")
    }


def line_report(options: argparse.Namespace) -> Report:
    """Run over slow lines; compare the bytes on the wire with the byte ledger."""
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
            made.start_node(name, *DATA, str(file), "--backbone", options.backbone)
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
    """Return the bytes per second that an idle node sends and receives, mean over nodes."""
    before = [line.wire() for line in lines]
    time.sleep(seconds)
    return _mean(before, [line.wire() for line in lines], seconds)


def _wire_rows(made: Deployment, marks: list[list[dict[str, int]]]) -> Iterator[Row]:
    """Yield a row for each round, client and direction."""
    for number in range(1, len(marks)):
        for client in range(len(NODES)):
            for way in ("down", "up"):
                wire = marks[number][client][way] - marks[number - 1][client][way]
                ledger = sum(
                    line[way]["message"]
                    for line in made.sent("trial")
                    if line["kind"] != "wire"
                    and (line["round"], line["client"]) == (number, client)
                    and way in line
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
    """Return the settings of a report."""
    return {"backbone": options.backbone, "nodes": len(NODES), "repeats": options.repeats}


def main(arguments: Sequence[str] | None = None) -> list[Report]:
    """Run the benchmark from its command line."""
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = arguments_of(__doc__)
    parser.add_argument("--backbone", default="minilm", help="minilm (default), tiny")
    parser.add_argument("--parts", nargs="+", default=PARTS, choices=PARTS, help="default: all")
    parser.add_argument("--rate", type=float, default=64, help="line: kbit/s (64)")
    parser.add_argument("--delay", type=float, default=300, help="line: ms each way (300)")
    parser.add_argument("--loss", type=float, default=1, help="line: %% of the packets (1)")
    options = parser.parse_args(arguments)
    reports = []
    measures = {"worker": worker_report, "wire": wire_report, "line": line_report}
    for part, measure in measures.items():
        if part in options.parts:
            reports.append(measure(options))
            case = f"{part}, {options.backbone}"
            record("deployment", case, reports[-1], arguments, options.results)
    return reports


if __name__ == "__main__":
    script(main)
