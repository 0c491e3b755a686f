"""Bytes and time of secure aggregation, by the number of clients of a round.

Federations of vectors of 1,794 numbers on the tiny backbone, whose clients make one step: bytes
that a client sends in a round, in all three exchanges and with Flower's metadata, and seconds that
masking takes a client and unmasking the server. In the last row a tenth of the trainings is lost.

Example:
    python -m simulations.benchmarks.secure
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from fedpeft.experiment.config import Experiment
from fedpeft.profiling import Stopwatch
from fedpeft.secure.thresholds import least_sum, threshold
from simulations.benchmarks.common import Report, Row, arguments_of, record, script
from simulations.simulation import prepare, quiet, simulate

_HEAD = 66  # numbers of the head with two classes
#: Most bytes that a client should send in a round, by the number of clients.
AIMS = {10: 3500, 100: 7000}
LOST = ("devices.step_seconds=1", "devices.dropout=0.1")


def experiment_of(clients: int, size: int, rounds: int, more: Sequence[str] = ()) -> Experiment:
    """Return a federation of ``clients`` whose vectors have ``size`` numbers."""
    return Experiment.load(
        "",
        [
            *("backbone=tiny", "method.name=said", f"method.d={size - _HEAD}"),
            *(f"federation.clients={clients}", f"federation.rounds={rounds}"),
            *(f"task.train_limit={16 * clients}", "task.eval_limit=20", "local.steps=1"),
            *(f"secure.colluders={clients // 10}", "federation.secure=true"),
            *(f"output.eval_every={rounds}", "output.plots=false", "engine.threads=1"),
            *more,
        ],
    )


def row_of(clients: int, size: int, rounds: int, more: Sequence[str] = ()) -> Row:
    """Return a row of the table: the mean over the rounds of one run."""
    experiment = experiment_of(clients, size, rounds, more)
    with tempfile.TemporaryDirectory() as scratch, quiet():
        folder, _ = prepare(experiment, Path(scratch) / "run")
        with Stopwatch().running() as watch:
            result = simulate(folder, experiment)
        left = sum(line["clients"] for line in folder.rounds()) / rounds
    sent = result["bytes"]["up"]["message"] / rounds / clients
    colluders = experiment.secure.colluders
    needed = threshold(clients, colluders)
    return {
        "clients": clients,
        "numbers": size,
        "colluders": colluders,
        "threshold": needed,
        "honest clients of a sum": least_sum(clients, colluders, needed),
        "left": round(left, 1),
        "bytes up": round(sent),
        "aim": AIMS.get(clients, "") if size == 1794 else "",
        "client, ms": round(1000 * watch.seconds["masking"] / rounds / clients, 1),
        "server, s": round(watch.seconds.get("unmasking", 0) / rounds, 2),
    }


def main(arguments: Sequence[str] | None = None) -> Report:
    """Run the benchmark from its command line."""
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = arguments_of(__doc__, None)
    parser.add_argument("--clients", type=int, nargs="+", default=[10, 40, 100, 255])
    parser.add_argument("--size", type=int, default=1794, help="numbers of a vector (1794)")
    parser.add_argument("--rounds", type=int, default=3, help="of a run (3)")
    options = parser.parse_args(arguments)
    size, rounds, most = options.size, options.rounds, options.clients[-1]
    rows = [row_of(clients, size, rounds) for clients in options.clients]
    rows.append(row_of(most, 4099, rounds))
    rows.append(row_of(most, 4099, rounds, LOST))
    facts = {
        "bytes up": "of a client and round: prepare, train and unmask, with Flower's metadata, at "
        "4-bit levels",
        "client": "checks, shares and masks, its file of secrets included",
        "server": "removal of the masks from the sum",
        "honest clients of a sum": "at least, if the server and the colluders lie",
    }
    settings = {"rounds": rounds, "levels": experiment_of(3, size, 1).wire.up}
    report = Report(settings, rows, facts, {"rows": rows})
    record("secure", "sums under masks", report, arguments, options.results)
    return report


if __name__ == "__main__":
    script(main)
