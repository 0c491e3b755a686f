"""What a result says about privacy: everything somebody needs to check the number.

Each unit that is protected has one statement, a dictionary with the same keys everywhere.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

from fedpeft.privacy.accounting import Mechanism, Spent

Unit = Literal["example", "client"]

_NUMBERS = ("sampling_rate", "clip", "noise_multiplier", "steps", "delta", "epsilon_error")
_WORDS = ("mechanism", "unit", "neighbouring", "sampling", "clipping", "accountant")

_MECHANISMS = {
    ("example", "Poisson"): "DP-SGD (Abadi et al. 2016): Poisson-subsampled Gaussian",
    ("client", "Poisson"): "DP-FedAvg (McMahan et al. 2018): Poisson-subsampled Gaussian",
    ("client", "none"): "each client's update hidden by its own Gaussian noise (local DP)",
}
_NEIGHBOURING = {
    ("example", "Poisson"): "add or remove one example",
    ("client", "Poisson"): "add or remove one client with all its examples",
    ("client", "none"): "replace all examples of one client",
}


def statement(
    unit: Unit,
    mechanism: Mechanism,
    spent: Spent,
    clip: float,
    clipping: str,
    releasable: bool,
    sampling: Literal["Poisson", "none"] = "Poisson",
) -> dict[str, Any]:
    """Return a statement.

    Args:
        unit: what is protected.
        mechanism: sigma and q of the last step, and all steps so far.
        spent: what they cost with everything before them; infinite is told as null.
        clip: the L2 norm clipped to.
        clipping: in what way.
        releasable: whether nobody else can draw the same noise.
        sampling: "none" = every round uses everything.
    """
    bounded = math.isfinite(spent.epsilon)
    return {
        "mechanism": _MECHANISMS[unit, sampling],
        "unit": unit,
        "neighbouring": _NEIGHBOURING[unit, sampling],
        "sampling": sampling,
        "sampling_rate": mechanism.sampling_rate,
        "clipping": clipping,
        "clip": clip,
        "noise_multiplier": mechanism.noise_multiplier,
        "steps": mechanism.steps,
        "delta": spent.delta,
        "epsilon": spent.epsilon if bounded else None,
        "epsilon_error": spent.epsilon_error if bounded else None,
        "accountant": spent.accountant,
        "releasable": releasable and bounded,
    }


def read_statement(text: str, unit: str) -> dict[str, Any]:
    """Return the statement of a unit in a client's reply; nothing in it is trusted.

    Raises:
        ValueError: it has not exactly a statement's keys, or a value that cannot be.
    """
    found = json.loads(text)
    keys = {*_NUMBERS, *_WORDS, "epsilon", "releasable"}
    if not isinstance(found, Mapping) or set(found) != keys or found["unit"] != unit:
        raise ValueError("the privacy statement has not the keys of one")
    unbounded = found["epsilon"] is None
    for key in (*_NUMBERS, "epsilon"):
        value = found[key]
        if unbounded and value is None and key.startswith("epsilon"):
            continue
        if type(value) not in (int, float) or not 0 <= value < math.inf:
            raise ValueError(f"{key} of the privacy statement is no number from 0 up")
    if not all(isinstance(found[key], str) and len(found[key]) < 100 for key in _WORDS):
        raise ValueError("a word of the privacy statement is none")
    if type(found["releasable"]) is not bool or (found["releasable"] and unbounded):
        raise ValueError("the privacy statement would be released without an epsilon")
    return dict(found)


def so_far(before: dict[str, Any] | None, said: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return ``{"epsilon", "privacy"}`` of a run: each unit's statement of the largest epsilon.

    ``epsilon`` is that of examples, or of clients where only they are protected.

    Args:
        before: the same of the rounds before, None before the first.
        said: the statements of this round.
    """
    kept = (before or {}).get("privacy") or {}
    known = [*(kept[unit] for unit in kept if kept[unit]), *said]
    if not known:
        return {"epsilon": None, "privacy": None}
    units = {unit: _worst([s for s in known if s["unit"] == unit]) for unit in get_args(Unit)}
    first = units["example"] or units["client"]
    return {"epsilon": first and first["epsilon"], "privacy": units}


def _worst(statements: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the statement of the largest epsilon, releasable only if all are; None of none."""
    if not statements:
        return None

    def epsilon(said: dict[str, Any]) -> float:
        return math.inf if said["epsilon"] is None else said["epsilon"]

    # Of equal ones the last: it has the most steps.
    largest: dict[str, Any] = max(reversed(statements), key=epsilon)
    return {**largest, "releasable": all(said["releasable"] for said in statements)}
