"""Time of the server's robust strategies on one round of updates.

Each strategy, alone and after mixing, on 1,000 updates of 4,099 numbers, with a tenth of them
malicious; the aim is less than 2 s. Ratio: to the mean of the same updates in float64.

Example:
    python -m simulations.benchmarks.robust
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import numpy as np

from fedpeft.experiment.config import Experiment
from fedpeft.experiment.robust import ROBUST
from server.aggregation.robust import robust_step
from simulations.benchmarks.common import (
    Report,
    Row,
    alternate,
    arguments_of,
    compare,
    record,
    script,
    timed,
)

AIM = 2.0  # seconds
#: Strategies that use ``federation.byzantine``.
TOLD = ("krum", "multikrum", "bulyan")


def experiment_of(strategy: str, mixing: str, clients: int) -> Experiment:
    """Return an experiment in which a round has these clients and a tenth may be malicious."""
    told = strategy in TOLD or mixing == "nnm"
    return Experiment.load(
        "",
        [
            "backbone=tiny",
            f"federation.clients={clients}",
            f"federation.strategy={strategy}",
            f"federation.mixing={mixing}",
            f"federation.byzantine={clients // 10 if told else 0}",
        ],
    )


def row_of(updates: np.ndarray, strategy: str, mixing: str, repeats: int) -> Row:
    """Return the row of a strategy; the mean of the same updates is timed in turn with it."""
    experiment = experiment_of(strategy, mixing, len(updates))
    pairs = alternate(
        lambda: timed(lambda: robust_step(experiment, 1, updates, {}))[0].wall,
        lambda: timed(lambda: updates.mean(axis=0))[0].wall,
        repeats,
    )
    name = strategy if mixing == "none" else f"{strategy} after {mixing}"
    return compare(name, ("seconds", "mean, s"), *pairs)


def main(arguments: Sequence[str] | None = None) -> Report:
    """Run the benchmark from its command line."""
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = arguments_of(__doc__)
    parser.add_argument("--clients", type=int, default=1000, help="updates (1000)")
    parser.add_argument("--size", type=int, default=4099, help="numbers of an update (4099)")
    options = parser.parse_args(arguments)
    shape = options.clients, options.size
    updates = np.random.default_rng(0).standard_normal(shape)
    rows = [
        row_of(updates, strategy, mixing, options.repeats)
        for mixing in ("none", "bucketing", "nnm")
        for strategy in ROBUST
    ]
    settings = {"updates": options.clients, "numbers": options.size, "repeats": options.repeats}
    report = Report(settings, rows, {"aim": f"less than {AIM:g} s"}, {"rows": rows})
    record("robust", "one round", report, arguments, options.results)
    return report


if __name__ == "__main__":
    script(main)
