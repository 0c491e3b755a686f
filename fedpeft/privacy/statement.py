"""Privacy statements of a result: everything needed to check the epsilon.

Each protected unit has one statement, a dictionary with the same keys everywhere.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from fedpeft.errors import UserError
from fedpeft.experiment.config import Experiment
from fedpeft.privacy import accounting
from fedpeft.privacy.accounting import Mechanism
from fedpeft.privacy.ledger_store import Charge, Unit
from fedpeft.privacy.plan import client_delta, example_delta

#: Limits of what a client may report.
MAX_MECHANISMS, MAX_NOISE, MAX_STEPS = 100, 1e6, 10**9
_ROUNDING = 1e-6  # relative difference of one epsilon computed on two machines

_MECHANISMS = {
    ("example", "Poisson"): "DP-SGD (Abadi et al. 2016): Poisson-subsampled Gaussian",
    ("client", "Poisson"): "DP-FedAvg (McMahan et al. 2018): Poisson-subsampled Gaussian",
    ("client", "none"): "local DP: Gaussian noise on each client's update, with noise multiplier "
    "times 2 clip, the largest difference of two updates",
    ("client", "turns"): "DP-FTRL with a matrix factorization (Choquette-Choo et al. 2023): one "
    "Gaussian mechanism for all rounds",
    ("client", "skellam"): "distributed DP: Skellam noise of the clients of a sum under masks "
    "(Agarwal et al. 2021), with noise multiplier times clip in every sum that can be read",
}
_NEIGHBOURING = {
    ("example", "Poisson"): "add or remove one example",
    ("client", "Poisson"): "add or remove one client with all its examples",
    ("client", "none"): "replace all examples of one client by as many others",
    ("client", "turns"): "add or remove one client with all its examples",
    ("client", "skellam"): "replace the update of one client, in each of its rounds, by zero",
}


@dataclass(frozen=True)
class Composition:
    """The charges of one unit in a ledger: all that a client reports about its privacy.

    Attributes:
        mechanisms: the different mechanisms with the sum of their steps, the one that ran last
            at the end.
        reproducible: whether the noise of any charge can be drawn again.
    """

    mechanisms: tuple[Mechanism, ...]
    reproducible: bool

    @classmethod
    def of(cls, charges: Sequence[Charge]) -> Composition:
        """Return the composition of the charges of one unit, at least one."""
        steps: dict[Mechanism, int] = {}
        for charge in charges:
            key = replace(charge.mechanism, steps=0)
            steps[key] = steps.pop(key, 0) + charge.mechanism.steps  # moves it to the end
        mechanisms = tuple(replace(key, steps=count) for key, count in steps.items())
        return cls(mechanisms, any(charge.draw is not None for charge in charges))

    def to_bytes(self) -> bytes:
        """Return the composition for a message: float64 numbers, little-endian.

        1 if the noise is reproducible, otherwise 0; then of each mechanism the noise multiplier,
        the sampling rate and the steps. The steps of Skellam noise are negative.
        """
        numbers: list[float] = [self.reproducible]
        for run in self.mechanisms:
            sign = -1 if run.noise == "skellam" else 1
            numbers += [run.noise_multiplier, run.sampling_rate, sign * run.steps]
        return struct.pack(f"<{len(numbers)}d", *numbers)

    @classmethod
    def from_bytes(cls, data: bytes) -> Composition:
        """Return the composition in a message, which is not trusted.

        Raises:
            ValueError: wrong length, or a value out of its range.
        """
        count, rest = divmod(len(data) - 8, 24)
        if rest or not 1 <= count <= MAX_MECHANISMS:
            raise ValueError(
                f"the privacy statement does not hold 1 to {MAX_MECHANISMS} mechanisms"
            )
        reproducible, *values = struct.unpack(f"<{1 + 3 * count}d", data)
        runs = list(zip(values[::3], values[1::3], values[2::3], strict=True))
        for sigma, rate, steps in runs:
            # Comparisons with NaN are false.
            if not (0 <= sigma <= MAX_NOISE and 0 < rate <= 1 and 1 <= abs(steps) <= MAX_STEPS):
                raise ValueError("a value of the privacy statement is out of range")
        if reproducible not in (0, 1) or any(steps % 1 for _, _, steps in runs):
            raise ValueError("a value of the privacy statement is not a whole number")
        if any(steps < 0 and rate != 1 for _, rate, steps in runs):
            raise ValueError("the privacy statement has a sample with Skellam noise")
        mechanisms = tuple(
            Mechanism(sigma, rate, abs(int(steps)), "skellam" if steps < 0 else "gaussian")
            for sigma, rate, steps in runs
        )
        return cls(mechanisms, reproducible == 1)


def statement(
    unit: Unit,
    composition: Composition,
    delta: float,
    clip: float,
    clipping: str,
    sampling: Literal["Poisson", "none", "turns"] = "Poisson",
    detail: str = "",
) -> dict[str, Any]:
    """Return the statement of one unit.

    ``noise_multiplier`` and ``sampling_rate`` are those of the last mechanism, ``steps`` is the sum
    of all steps, and ``composition`` lists the composed mechanisms as [multiplier, rate, steps]. An
    infinite epsilon becomes null.

    Args:
        unit: what is protected.
        composition: the charges.
        delta: the delta at which epsilon holds.
        clip: the largest L2 norm after clipping.
        clipping: the kind of clipping.
        sampling: "none" = every round uses all data, "turns" = clients take turns by a public
            order.
        detail: further facts about the mechanism.
    """
    last, runs = composition.mechanisms[-1], composition.mechanisms
    kind = sampling if last.noise == "gaussian" else last.noise
    spent = accounting.spent(runs, delta)
    bounded = math.isfinite(spent.epsilon)
    return {
        "mechanism": _MECHANISMS[unit, kind] + detail,
        "unit": unit,
        "neighbouring": _NEIGHBOURING[unit, kind],
        "sampling": sampling,
        "sampling_rate": last.sampling_rate,
        "clipping": clipping,
        "clip": clip,
        "noise_multiplier": last.noise_multiplier,
        "steps": sum(run.steps for run in runs),
        "composition": [[run.noise_multiplier, run.sampling_rate, run.steps] for run in runs],
        "delta": delta,
        "epsilon": spent.epsilon if bounded else None,
        "epsilon_error": spent.epsilon_error if bounded else None,
        "accountant": spent.accountant,
        # Anyone who knows the seed can remove reproducible noise, including that of old charges.
        "releasable": bounded and not composition.reproducible,
    }


def read_statement(
    data: bytes, unit: Unit, experiment: Experiment, examples: int
) -> dict[str, Any]:
    """Return the statement of a client that protects a unit itself.

    Only the composition comes from the client, and its last mechanism must be the experiment's.
    Everything else follows from the experiment, and epsilon is computed here.

    Args:
        data: the composition in the client's reply, not trusted.
        unit: what the client protects.
        experiment: the run's experiment.
        examples: the client's number of examples, from the handshake.

    Raises:
        ValueError: the composition is invalid, or its epsilon exceeds the experiment's budget.
    """
    privacy, composition = experiment.privacy, Composition.from_bytes(data)
    clipping: str
    detail = ""
    sampling: Literal["Poisson", "none"]
    noise, detail = "gaussian", ""
    try:
        if unit == "example":
            epsilon, sigma = privacy.epsilon, privacy.noise_multiplier
            rate, delta = (
                experiment.local.batch_size / examples,
                example_delta(experiment, examples),
            )
            clip, clipping, sampling = privacy.clip, privacy.clipping, "Poisson"
            if privacy.rank:
                detail = f"; RGP (Yu et al. 2021): gradients of carriers of rank {privacy.rank}"
        else:
            epsilon, sigma, given = privacy.of_clients()
            rate, delta = 1.0, client_delta(experiment.federation.clients, given)
            clip, clipping, sampling = privacy.client_clip, "fixed", "none"
            if privacy.distributed:
                noise, detail = "skellam", _against(experiment)
    except UserError as error:
        raise ValueError(str(error)) from None
    last, budget = composition.mechanisms[-1], privacy.budget or epsilon
    if (last.sampling_rate, last.noise) != (rate, noise) or (
        sigma not in (None, last.noise_multiplier)
    ):
        raise ValueError("the privacy statement is of another mechanism than the experiment's")
    made = statement(unit, composition, delta, clip, clipping, sampling, detail)
    spent = math.inf if made["epsilon"] is None else made["epsilon"]
    if budget and spent > budget * (1 + _ROUNDING):
        raise ValueError(f"the privacy statement exceeds the budget of epsilon {budget:g}")
    return made


def _against(experiment: Experiment) -> str:
    """Return whom the noise of a sum protects from, for the statement."""
    colluders = experiment.secure.colluders
    return (
        f"; holds against the server together with up to {colluders} "
        f"client{'s' * (colluders != 1)} of each round, and "
        f"against everyone who sees who takes part; no amplification by sampling, so the epsilon "
        f"of the released model is the same"
    )


def so_far(before: dict[str, Any] | None, statements: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return ``{"epsilon", "privacy"}`` of a run: each unit's statement of the largest epsilon.

    It also has the largest delta: (e_i, d_i)-DP implies (max e_i, max d_i)-DP for every client.
    ``epsilon`` is that of examples, or of clients if only clients are protected.

    Args:
        before: the result for the previous rounds; None before the first round.
        statements: the statements of this round.
    """
    previous = (before or {}).get("privacy") or {}
    known = [*(previous[unit] for unit in previous if previous[unit]), *statements]
    if not known:
        return {"epsilon": None, "privacy": None}
    units = {unit: _worst([s for s in known if s["unit"] == unit]) for unit in get_args(Unit)}
    first = units["example"] or units["client"]
    return {"epsilon": first and first["epsilon"], "privacy": units}


def _worst(statements: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the statement of the largest epsilon, with the largest delta; None if empty.

    It is releasable only if all statements are.
    """
    if not statements:
        return None

    def epsilon(statement: dict[str, Any]) -> float:
        return math.inf if statement["epsilon"] is None else statement["epsilon"]

    # Reversed: the last of equal ones has the most steps.
    largest: dict[str, Any] = max(reversed(statements), key=epsilon)
    return {
        **largest,
        "delta": max(statement["delta"] for statement in statements),
        "releasable": all(statement["releasable"] for statement in statements),
    }
