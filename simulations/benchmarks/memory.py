"""Memory of a simulation: memory per additional client, with a single copy of the backbone.

Every figure is the peak resident memory of a fresh process that trains one step at each client in
one round. First part: several numbers of clients share the same examples on the tiny backbone; the
slope gives the cost of 100 additional clients. Second part: a real backbone after loading, with 10,
and with 100 clients, which would reveal copies of the backbone.

Example:
    python -m simulations.benchmarks.memory
    python -m simulations.benchmarks.memory --full
"""

from __future__ import annotations

import json
import logging
import resource
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from fedpeft.experiment.config import Experiment
from simulations.benchmarks.common import (
    Report,
    Row,
    arguments_of,
    child_json,
    record,
    script,
    slash_d,
)
from simulations.simulation import prepare, simulate

TARGET = 5.0  # MB for 100 additional clients
FEW, MANY = 10, 100  # clients of the second part
EXAMPLES = 4000  # of all clients together

Measurement = dict[str, float]


def measure_process(arguments: Sequence[str]) -> None:
    """Run one simulation in this process and print its memory in MB as JSON."""
    backbone, clients, examples = arguments
    logging.getLogger("flwr").setLevel(logging.ERROR)  # as fedpeft.cli does
    experiment = Experiment.load(
        "",
        [
            f"backbone={backbone}",
            f"method.d={slash_d(backbone)}",
            f"task.train_limit={examples}",
            "task.eval_limit=16",
            f"federation.clients={clients}",
            "federation.rounds=1",
            "local.steps=1",
            "engine.threads=1",
            "engine.device=cpu",
            "output.plots=false",
        ],
    )
    with tempfile.TemporaryDirectory() as scratch:
        folder, runtime = prepare(experiment, Path(scratch) / "run")
        loaded = resident("VmRSS")
        simulate(folder, experiment)
    weights = sum(p.numel() * p.element_size() for p in runtime.backbone.model.parameters())
    figures = {"loaded": loaded, "peak": resident("VmHWM"), "backbone": weights / 1e6}
    print(json.dumps(figures))


def resident(key: str) -> float:
    """Return VmRSS (now) or VmHWM (peak) of this process in MB.

    Not ``ru_maxrss`` where there is another way: on Linux it starts from the parent's peak.
    """
    status = Path("/proc/self/status")
    if status.exists():
        lines = status.read_text(encoding="utf-8").splitlines()
        (line,) = (line for line in lines if line.startswith(f"{key}:"))
        return int(line.split()[1]) * 1024 / 1e6
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 1e6 if sys.platform == "darwin" else peak * 1024 / 1e6


def in_processes(
    backbone: str, sizes: Sequence[int], examples: int, repeats: int
) -> dict[int, list[Measurement]]:
    """Return the measurements of each number of clients, taken alternately."""
    code = (
        "import sys; from simulations.benchmarks.memory import measure_process; "
        "measure_process(sys.argv[1:])"
    )
    measurements: dict[int, list[Measurement]] = {size: [] for size in sizes}
    for _ in range(repeats):
        for size in sizes:
            measurements[size].append(child_json(code, backbone, str(size), str(examples)))
    return measurements


def slope(peaks: dict[int, float]) -> float:
    """Return the MB per 100 additional clients, by least squares."""
    return float(100 * np.polyfit([*peaks], [*peaks.values()], 1)[0])


def clients_report(backbone: str, sizes: Sequence[int], examples: int, repeats: int) -> Report:
    """Measure how memory grows with the number of clients."""
    measurements = in_processes(backbone, sizes, examples, repeats)
    table = rows(measurements)
    per_100 = slope({row["clients"]: row["peak MB"] for row in table})
    facts = {
        "MB for 100 further clients": per_100,
        "target": f"at most {TARGET:g} MB, ratio {per_100 / TARGET:.2f}",
    }
    return Report(_settings(backbone, examples, repeats), table, facts, _raw(measurements))


def backbone_report(
    backbone: str, examples: int, repeats: int, few: int = FEW, many: int = MANY
) -> Report:
    """Check that additional clients do not copy the backbone."""
    measurements = in_processes(backbone, (few, many), examples, repeats)
    table = rows(measurements)
    size = measurements[few][0]["backbone"]
    further = table[1]["peak MB"] - table[0]["peak MB"]
    facts = {
        "MB of the backbone's weights": size,
        f"MB of {many - few} further clients": further,
        "in backbones (a copy a client would be their number)": further / size,
    }
    return Report(_settings(backbone, examples, repeats), table, facts, _raw(measurements))


def rows(measurements: dict[int, list[Measurement]]) -> list[Row]:
    """Return a row of medians for each number of clients; the ratio is to the first row."""
    peaks = {size: [run["peak"] for run in runs] for size, runs in measurements.items()}
    first = median(next(iter(peaks.values())))
    return [
        {
            "clients": size,
            "loaded MB": round(median(run["loaded"] for run in measurements[size]), 1),
            "peak MB": round(median(values), 1),
            "least": round(min(values), 1),
            "largest": round(max(values), 1),
            "ratio": round(median(values) / first, 4),
        }
        for size, values in peaks.items()
    ]


def _settings(backbone: str, examples: int, repeats: int) -> dict[str, Any]:
    return {
        "backbone": backbone,
        "task": "synthetic/sentiment",
        "examples": examples,
        "rounds": 1,
        "local steps": 1,
        "torch threads": 1,
        "repeats": repeats,
    }


def _raw(measurements: dict[int, list[Measurement]]) -> dict[str, Any]:
    return {f"{size} clients": runs for size, runs in measurements.items()}


def main(arguments: Sequence[str] | None = None) -> list[Report]:
    """Run the benchmark from its command line."""
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = arguments_of(__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[100, 200, 400])
    parser.add_argument("--full", action="store_true", help="1,000 clients as well")
    parser.add_argument("--backbone", default="minilm", help="backbone of the second part (minilm)")
    parser.add_argument("--examples", type=int, default=EXAMPLES, help="examples of all clients")
    options = parser.parse_args(arguments)
    sizes = [*options.sizes, 1000] if options.full else options.sizes
    first = clients_report("tiny", sizes, options.examples, options.repeats)
    record("memory", "further clients, tiny", first, arguments, options.results)
    second = backbone_report(options.backbone, options.examples, options.repeats)
    record("memory", f"one backbone, {options.backbone}", second, arguments, options.results)
    return [first, second]


if __name__ == "__main__":
    script(main)
