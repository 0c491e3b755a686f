"""Bytes and time of secure aggregation, by the number of clients of a round.

Federations of vectors of 1,794 numbers on the tiny backbone, whose clients make one step: bytes
that a client sends in a round, in all three exchanges and with Flower's metadata, and seconds that
masking takes a client and unmasking the server. A second table has vectors of 4,099 numbers and
lost trainings: a tenth, and nearly the fifth that may be lost. A tenth of the clients may collude,
of more than a hundred a twentieth.

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
from fedpeft.secure.thresholds import sharing_of, threshold
from simulations.benchmarks.common import Report, Row, arguments_of, record, script
from simulations.simulation import prepare, quiet, simulate

_HEAD = 66  # numbers of the head with two classes
#: Most bytes that a client should send in a round, by the number of clients.
AIMS = {10: 3500, 100: 7000, 1000: 9000}
LOSING = ("devices.step_seconds=1",)


def experiment_of(clients: int, size: int, rounds: int, more: Sequence[str] = ()) -> Experiment:
    """Return a federation of ``clients`` whose vectors have ``size`` numbers."""
    return Experiment.load(
        "",
        [
            *("backbone=tiny", "method.name=said", f"method.d={size - _HEAD}"),
            *(f"federation.clients={clients}", f"federation.rounds={rounds}"),
            *(f"task.train_limit={16 * clients}", "task.eval_limit=20", "local.steps=1"),
            f"secure.colluders={clients // (10 if clients <= 100 else 20)}",
            "federation.secure=true",
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
    rules = sharing_of(clients, colluders, threshold(clients, colluders))
    return {
        "clients": clients,
        "numbers": size,
        "colluders": colluders,
        "threshold": rules.survivors,
        "holders": rules.holders,
        "shares": rules.needed,
        "honest clients of a sum": rules.least,
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
    parser.add_argument("--clients", type=int, nargs="+", default=[10, 40, 100, 255, 1000])
    parser.add_argument("--size", type=int, default=1794, help="numbers of a vector (1794)")
    parser.add_argument("--rounds", type=int, default=3, help="of a run (3)")
    parser.add_argument(
        "--lost", type=float, nargs="*", default=[0.1, 0.17], help="rates (0.1 0.17)"
    )
    options = parser.parse_args(arguments)
    size, rounds, most = options.size, options.rounds, options.clients[-1]
    facts = {
        "bytes up": "of a client and round: prepare, train and unmask, with Flower's metadata, at "
        "4-bit levels",
        "client": "checks, shares and masks, its file of secrets included",
        "server": "checks of keys and shares, and removal of the masks from the sum",
        "client and server": "of this machine with all that ran on it, see its load; clients of a "
        "simulation share the checks of each other's keys",
        "honest clients of a sum": "at least, if the server and the colluders lie",
    }
    settings = {"rounds": rounds, "levels": experiment_of(3, size, 1).wire.up}

    def report(case: str, rows: list[Row]) -> Report:
        made = Report(settings, rows, facts, {"rows": rows})
        record("secure", case, made, arguments, options.results)
        return made

    rows = [row_of(clients, size, rounds) for clients in options.clients]
    plain = report(f"sums under masks, up to {most} clients", rows)
    lost = [(*LOSING, f"devices.dropout={rate}") for rate in options.lost]
    rows = [row_of(most, 4099, rounds, more) for more in lost]
    return report(f"{most} clients, of which some are lost", rows) if rows else plain


if __name__ == "__main__":
    script(main)
