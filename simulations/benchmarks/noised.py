"""Error of the mean of a sum with the clients' noise, beside that of a trusted server.

Clients of a round, with updates of the clip's norm, add their parts of the noise for an epsilon;
all of them stay. The error is the root mean square of the mean's numbers less those of the exact
mean, over that of a trusted server with Gaussian noise for the same epsilon and participations,
and no amplification by sampling. It includes rounding, clamping and what bounded rounding costs.

Example:
    python -m simulations.benchmarks.noised
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import numpy as np

from fedpeft.experiment.config import Experiment
from fedpeft.privacy.accounting import calibrate
from fedpeft.privacy.noise import SecureNoise
from fedpeft.privacy.plan import client_plan, participations
from fedpeft.secure.masks import FACTS
from fedpeft.updates import sums
from fedpeft.wire import steps, uniform
from simulations.benchmarks.common import Report, Row, arguments_of, record, script

#: Clients of a round, colluders, and secure.threshold, 0 = the default.
ROUNDS = ((10, 1, 0), (10, 1, 10), (50, 2, 0), (50, 2, 48), (100, 10, 0), (100, 10, 95))


def experiment_of(clients: int, colluders: int, chosen: int, bits: int) -> Experiment:
    """Return a run of 1,000 clients, in 100 rounds, at epsilon 8."""
    return Experiment.load(
        "",
        [
            *("backbone=tiny", "federation.clients=1000", f"federation.per_round={clients}"),
            *("federation.rounds=100", "federation.secure=true", f"wire.up=uniform{bits}"),
            *(f"secure.colluders={colluders}", f"secure.threshold={chosen}"),
            *("privacy.unit=client", "privacy.client_noise=secure", "privacy.epsilon=8"),
        ],
    )


def error_of(experiment: Experiment, size: int, repeats: int) -> float:
    """Return the root mean square error of a number of the mean, at clip 1."""
    draw, asked = np.random.default_rng(0), experiment.clients_asked
    squares = []
    for number in range(1, repeats + 1):
        changes = draw.standard_normal((asked, size))
        changes /= np.linalg.norm(changes, axis=1, keepdims=True)
        total, noise = np.zeros(size, np.uint64), SecureNoise()
        for client, change in enumerate(changes):
            total += sums.encoded(experiment, number, client, change, 0, 1.0, 1.0, noise)[0]
        facts = np.zeros(FACTS, np.uint64)
        mean = sums.decoded(experiment, number, total, facts, asked, 1.0, float(asked)).change
        squares.append(np.mean((mean - changes.mean(axis=0)) ** 2))
    return float(np.sqrt(np.mean(squares)))


def row_of(clients: int, colluders: int, chosen: int, bits: int, size: int, repeats: int) -> Row:
    """Return a row of the table."""
    experiment = experiment_of(clients, colluders, chosen, bits)
    plan, turns = client_plan(experiment), participations(experiment)
    trusted = calibrate(8.0, plan.delta, 1.0, turns) / clients
    honest = sums.honest(experiment)
    stretched = (steps.norm_limit(size, bits) ** 0.5) * uniform.distance(size, bits, 1.0)
    return {
        "clients": clients,
        "colluders": colluders,
        "threshold": sums.sharing_for(experiment).survivors,
        "honest": honest,
        "bits": bits,
        "participations": turns,
        "bound of the norm, clips": round(stretched, 3),
        "noise of honest ones": round((clients / honest) ** 0.5, 3),
        "error": round(error_of(experiment, size, repeats) / trusted, 3),
        "bits of a number": sums.width(experiment, clients, size),
        "bytes of an update": sums.update_bytes(experiment, size),
    }


def main(arguments: Sequence[str] | None = None) -> Report:
    """Run the benchmark from its command line."""
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = arguments_of(__doc__, None)
    parser.add_argument("--bits", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--size", type=int, default=1794, help="numbers of a vector (1794)")
    parser.add_argument("--repeats", type=int, default=10, help="sums for each row (10)")
    options = parser.parse_args(arguments)
    rows = [
        row_of(*round_, bits, options.size, options.repeats)
        for round_ in ROUNDS
        for bits in options.bits
    ]
    facts = {
        "error": "root mean square error of the mean over that of a trusted server without "
        "amplification by sampling, at the same epsilon 8 and delta",
        "noise of honest ones": "square root of clients / honest: what of the error is noise that "
        "only lies and collusion make necessary",
        "bound of the norm": "to which rounding may lengthen an update of the clip's norm",
    }
    settings = {"numbers": options.size, "repeats": options.repeats, "epsilon": 8}
    report = Report(settings, rows, facts, {"rows": rows})
    record("noised", "sums with noise of the clients", report, arguments, options.results)
    return report


if __name__ == "__main__":
    script(main)
