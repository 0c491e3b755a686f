"""``fedpeft privacy calibrate --mechanism skellam``: noise that clients of a sum add together."""

from __future__ import annotations

import math
from typing import Any

from fedpeft.cli.printing import print_json
from fedpeft.privacy.accounting import Mechanism, Spent, calibrate, spent
from fedpeft.secure.thresholds import sharing_of, threshold


def show_distributed(
    epsilon: float,
    delta: float,
    clients: int,
    per_round: int,
    rounds: int,
    colluders: int,
    chosen: int,
    as_json: bool,
) -> None:
    """Print the noise of sums under masks within epsilon, and that of a trusted server.

    Args:
        epsilon: the largest epsilon allowed.
        delta: its delta.
        clients, per_round, rounds: of the run.
        colluders: clients of a round that work together with the server.
        chosen: clients that must stay to the end of a round; 0 = the default.
        as_json: whether to print JSON.

    Raises:
        UserError: no threshold is safe, or a value is out of its range.
    """
    needed = threshold(per_round, colluders, chosen)
    honest = sharing_of(per_round, colluders, needed).least
    turns = -(-rounds * per_round // clients)
    sigma = calibrate(epsilon, delta, 1.0, turns, noise="skellam")
    trusted = calibrate(epsilon, delta, 1.0, turns)
    total = spent([Mechanism(sigma, 1.0, turns, "skellam")], delta)
    facts: dict[str, Any] = {
        "mechanism": "skellam",
        "noise_multiplier": sigma,
        "epsilon": total.epsilon,
        "epsilon_error": total.epsilon_error,
        "accountant": total.accountant,
        "delta": delta,
        "participations": turns,
        "threshold": needed,
        "honest": honest,
        "noise": {
            "client": sigma / math.sqrt(honest),
            "mean": sigma / math.sqrt(honest * per_round),
            "trusted": trusted / per_round,
        },
    }
    print_json(facts) if as_json else print(_summary(facts, total, clients, per_round))


def _summary(facts: dict[str, Any], total: Spent, clients: int, per_round: int) -> str:
    noise, honest = facts["noise"], facts["honest"]
    return "\n".join(
        [
            f"noise multiplier  {facts['noise_multiplier']:g} (standard deviation over the clip of "
            f"the noise in every sum that can be read)",
            f"epsilon           {total.epsilon:.4g} at most ({total.accountant.upper()})",
            f"delta             {total.delta:.3g}",
            f"mechanism         Skellam noise of the clients of a sum; a client takes part "
            f"{facts['participations']:,} times, no amplification by sampling",
            f"threshold         {facts['threshold']:,} of {per_round:,} clients must stay; every "
            f"sum has the noise of {honest:,} honest ones",
            f"noise of a client {noise['client']:.4g} clips",
            f"noise of the mean {noise['mean']:.4g} clips if all {per_round:,} stay (of a trusted "
            f"server without amplification: {noise['trusted']:.4g}, so "
            f"{noise['mean'] / noise['trusted']:.3g} times)",
            f"unit              one of {clients:,} clients, with all its examples",
            "neighbors         replace the update of one client, in each of its rounds, by zero",
        ]
    )
