"""``fedpeft privacy calibrate --mechanism banded | blt``: one mechanism for all rounds."""

from __future__ import annotations

import math
from typing import Any, Literal

from fedpeft.cli.printing import print_json
from fedpeft.errors import UserError
from fedpeft.privacy.accounting import Mechanism, Spent, calibrate, spent
from fedpeft.privacy.factorize import factorize
from fedpeft.privacy.plan import participation


def show_matrix(
    kind: Literal["banded", "blt"],
    epsilon: float,
    delta: float,
    clients: int,
    per_round: int,
    rounds: int,
    separation: int,
    error: float | None,
    as_json: bool,
) -> None:
    """Print the noise of a matrix factorization within epsilon, and that of Poisson DP-SGD.

    Args:
        kind: of factorization.
        epsilon: the largest epsilon allowed.
        delta: its delta.
        clients, per_round, rounds: of the run.
        separation: rounds between a client's turns; 0 = as many as possible.
        error: of the accountant; None = the default.
        as_json: whether to print JSON.

    Raises:
        UserError: there are too few clients for the separation, or a value is out of its range.
    """
    if separation * per_round > clients:
        raise UserError(
            f"--separation {separation}: {per_round} clients a round, at least {separation} rounds "
            f"apart, need {separation * per_round:,} clients, and --examples is {clients:,}; "
            f"expected at most {clients // per_round}"
        )
    limits = participation(clients, per_round, rounds, separation)
    factorization = factorize(kind, limits)
    sigma = calibrate(epsilon, delta, 1.0, 1, error)
    total = spent([Mechanism(sigma, 1.0, 1)], delta, error)
    poisson = calibrate(epsilon, delta, per_round / clients, rounds, error)
    sums = sigma * factorization.prefix_noise
    poisson_sums = poisson * math.sqrt((rounds + 1) / 2)  # round t has t times the variance
    facts: dict[str, Any] = {
        "mechanism": kind,
        "noise_multiplier": sigma,
        "epsilon": total.epsilon,
        "epsilon_error": total.epsilon_error,
        "accountant": total.accountant,
        "delta": delta,
        "rounds": rounds,
        "separation": limits.separation,
        "participations": limits.participations,
        "vectors": factorization.matrix.memory,
        "sensitivity": factorization.sensitivity,
        "noise": {"round": sigma * factorization.round_noise, "sums": sums},
        "poisson": {"round": poisson, "sums": poisson_sums},
        "ratio": sums / poisson_sums,
    }
    if as_json:
        print_json(facts)
    else:
        print(_summary(facts, total, clients, per_round))


def _summary(facts: dict[str, Any], total: Spent, clients: int, per_round: int) -> str:
    noise, poisson = facts["noise"], facts["poisson"]
    rounds, vectors = facts["rounds"], facts["vectors"]
    return "\n".join(
        [
            f"noise multiplier  {facts['noise_multiplier']:g} (standard deviation of the noise "
            f"over the sensitivity of all rounds, {facts['sensitivity']:.4g} clips)",
            f"epsilon           {total.epsilon:.4g} at most ({total.accountant.upper()})",
            f"delta             {total.delta:.3g}",
            f"mechanism         {facts['mechanism']} matrix factorization: one Gaussian mechanism "
            f"for {rounds:,} rounds, which keeps {vectors:,} vectors",
            f"turns             {per_round:,} of {clients:,} clients a round; each at most "
            f"{facts['participations']:,} times, at least {facts['separation']:,} rounds apart",
            f"noise of a round  {noise['round']:.4g} clips (Poisson DP-SGD: "
            f"{poisson['round']:.4g})",
            f"noise of sums     {noise['sums']:.4g} clips, root mean square over the sums of the "
            f"first rounds (Poisson DP-SGD: {poisson['sums']:.4g}, so {facts['ratio']:.3g} times)",
            f"unit              one of {clients:,} clients, with all its examples",
            "neighbors         add or remove one client",
        ]
    )
