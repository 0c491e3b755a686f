"""Start-up times, each in a fresh process.

- ``fedpeft --help``, against a Python that does nothing. It must not import heavy packages.
- ``fedpeft simulate`` until round 1 begins, against a Python that imports torch, transformers and
  Flower's apps.
- the process of a node per message without the resident worker (``clients.app``), against the same.
- the process with it (``deployment.node.relay``), against a Python that imports only Flower's apps.

Example:
    python -m simulations.benchmarks.startup
    python -m simulations.benchmarks.startup --backbone tiny
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from pathlib import Path

from simulations.benchmarks.common import (
    Report,
    Row,
    alternate,
    arguments_of,
    child,
    compare,
    record,
    script,
    slash_d,
)
from simulations.benchmarks.engines import run

TARGET = 0.5  # seconds of fedpeft --help
HEAVY = ("torch", "transformers", "flwr", "cryptography", "matplotlib", "pandas", "scipy")
NOTHING = "pass"
LIBRARIES = "import torch, transformers, flwr.app, flwr.serverapp, flwr.clientapp"
HELP = "from fedpeft.cli.app import main; main(['--help'])"
#: Process of a node -> reference.
NODE = {
    "import clients.app": LIBRARIES,
    "import deployment.node.relay": "import flwr.app, flwr.clientapp",
}


def seconds_of(command: Sequence[str]) -> float:
    """Return the seconds that a command takes from its start to its end.

    Raises:
        RuntimeError: it failed.
    """
    began = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True)
    seconds = time.perf_counter() - began
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr[-2000:]}")
    return seconds


def heavy_imports(code: str) -> str:
    """Return the heavy packages that a fresh process has imported after ``code``."""
    asked = f"{code}\nimport sys\nprint(*sys.modules)"
    done = subprocess.run(child(asked), capture_output=True, text=True, check=True)
    imported = done.stdout.splitlines()[-1].split()
    return ", ".join(name for name in HEAVY if name in imported) or "none"


def until_first_round(options: Namespace, folder: Path) -> float:
    """Return the seconds until a simulation of few clients begins its first round."""
    small = ["federation.clients=2", "federation.rounds=2", "task.train_limit=20"]
    settings = [*small, "task.eval_limit=16", "local.steps=1", "output.plots=false"]
    d = f"method.d={slash_d(options.backbone)}"
    return run([f"backbone={options.backbone}", d, *settings], folder).first_round


def measure(options: Namespace) -> Report:
    """Time every process alternately with its reference."""
    table: list[Row] = []
    raw = {}

    def add(figure: str, start: Callable[[], float], beside: str, target: object = "-") -> None:
        sides = alternate(start, lambda: seconds_of(child(beside)), options.repeats)
        row = compare(figure, ("s", "s of the other"), *sides)
        table.append(row | {"at most": target})
        raw[figure] = sides

    seconds_of(child(HELP))  # warm up: files in memory
    seconds_of(child(LIBRARIES))
    add("fedpeft --help", lambda: seconds_of(child(HELP)), NOTHING, TARGET)
    with tempfile.TemporaryDirectory() as scratch:
        folders = (Path(scratch) / str(number) for number in count())
        figure = f"fedpeft simulate, {options.backbone}, until round 1"
        add(figure, lambda: until_first_round(options, next(folders)), LIBRARIES)
    for code, beside in NODE.items():
        add(code, partial(seconds_of, child(code)), beside)
    facts = {
        "ratio": "to a Python that does nothing (--help) or imports the libraries alone",
        "heavy packages that --help imports": heavy_imports(HELP),
        "heavy packages that the relay imports": heavy_imports("import deployment.node.relay"),
    }
    return Report({"backbone": options.backbone, "repeats": options.repeats}, table, facts, raw)


def main(arguments: Sequence[str] | None = None) -> Report:
    """Run the benchmark from its command line."""
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = arguments_of(__doc__)
    parser.add_argument("--backbone", default="minilm", help="minilm (default), tiny")
    options = parser.parse_args(arguments)
    result = measure(options)
    record("startup", options.backbone, result, arguments, options.results)
    return result


if __name__ == "__main__":
    script(main)
