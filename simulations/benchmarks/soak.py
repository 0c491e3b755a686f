"""A long deployed run: memory, descriptors and files of each process over hundreds of rounds.

A server and three nodes with TLS and node authentication run one experiment with DP-SGD on a tiny
backbone. After every tenth round, the memory (RSS), the open descriptors and the threads of each
process are read from /proc, and the files and bytes below each state folder. What grows is told
from noise by comparing the medians of the second and the last quarter of the run.

Example:
    python -m simulations.benchmarks.soak --rounds 300
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import median

from simulations.benchmarks.common import Report, Row, arguments_of, positive, record, script
from simulations.loopback import Deployment, deployment, until

NODES = ("north", "south", "west")
#: Program -> whether a node or the server runs it.
PROGRAMS = {
    "clients.tunnel": "north",
    "flower-supernode": "north",
    "clients.worker": "north",
    "server.host.gateway": "server",
    "flower-superlink": "server",
    "server.process": "server",
}
_EVERY = 10  # rounds between two readings


def settings_of(rounds: int) -> list[str]:
    """Return the experiment: short rounds of all three nodes."""
    return [
        "backbone=tiny",
        "method.d=16",
        "task.train_limit=120",
        "task.eval_limit=20",
        f"federation.clients={len(NODES)}",
        f"federation.min_success={len(NODES)}",
        f"federation.rounds={rounds}",
        "local.steps=2",
        "engine.threads=1",
        f"output.eval_every={rounds}",
        "output.plots=false",
        "privacy.unit=example",
        "privacy.noise_multiplier=1",
    ]


def main(arguments: Sequence[str] | None = None) -> Report:
    """Run the rounds from the command line."""
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = arguments_of(__doc__, None)
    parser.add_argument("--rounds", type=positive, default=300, help="of the run (300)")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as home:
        report = measure(Path(home), options)
    record("soak", f"{options.rounds} rounds", report, arguments, options.results)
    return report


def measure(home: Path, options: argparse.Namespace) -> Report:
    """Run the experiment and read the processes after every tenth round."""
    settings, readings = settings_of(options.rounds), []
    with deployment(home) as made:
        for number, name in enumerate(NODES):
            made.add_node(name)
            made.start_node(name, "--partition", str(number), "--backbone", "tiny")
        submitted = made.submit("soak", settings)
        for done in range(_EVERY, options.rounds - 1, _EVERY):
            until(partial(_reached, made, submitted, done), f"round {done}")
            readings.append(read(made))
            print(f"{done} rounds", flush=True)
        made.finish("soak")
        rounds = made.rounds("soak")
    failed = sum(len(line["failed"]) for line in rounds)
    facts = {"rounds": len(rounds), "failed replies": failed}
    return Report({"settings": settings}, table(readings), facts, {"readings": readings})


def _reached(made: Deployment, submitted: subprocess.Popen[bytes], rounds: int) -> bool:
    return len(made.rounds("soak")) >= rounds or submitted.poll() is not None


def read(made: Deployment) -> dict[str, float]:
    """Return the state of processes and folders: name of the quantity -> value."""
    values: dict[str, float] = {}
    for program, place in PROGRAMS.items():
        for pid in made.pids(place, program)[:1]:
            status = Path(f"/proc/{pid}/status").read_text()
            resident = re.search(r"VmRSS:\s+(\d+)", status)
            threads = re.search(r"Threads:\s+(\d+)", status)
            assert resident and threads
            values[f"{program}, MB"] = int(resident[1]) / 1000
            values[f"{program}, threads"] = int(threads[1])
            values[f"{program}, descriptors"] = len(list(Path(f"/proc/{pid}/fd").iterdir()))
    for place in ("server", "north"):
        files = [path for path in (made.folder / place).rglob("*") if path.is_file()]
        values[f"{place}, files"] = len(files)
        values[f"{place}, KB"] = sum(path.stat().st_size for path in files) / 1000
    return values


def table(readings: Sequence[dict[str, float]]) -> list[Row]:
    """Return the medians of the second and of the last quarter, by quantity."""
    quarter = max(1, len(readings) // 4)
    parts = {"second quarter": readings[quarter : 2 * quarter], "last quarter": readings[-quarter:]}
    rows = []
    for name in readings[-1]:
        held = {
            label: median(reading[name] for reading in part if name in reading)
            for label, part in parts.items()
        }
        rows.append({"of": name, **{label: round(value, 1) for label, value in held.items()}})
    return rows


if __name__ == "__main__":
    script(main)
