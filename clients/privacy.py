"""What a client does for its privacy in a round: charge its ledger, train privately, hide.

The ledger is charged before anything is computed from the data, and a client whose budget does
not cover the round refuses it.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from clients.data import LocalData
from clients.errors import Refusal
from fedpeft.config import Experiment
from fedpeft.privacy.accounting import spent
from fedpeft.privacy.example import DPSGD
from fedpeft.privacy.ledger import PrivacyLedger, Unit
from fedpeft.privacy.noise import Noise, noise_of
from fedpeft.privacy.plan import Plan, client_plan, example_delta, example_plan
from fedpeft.privacy.statement import statement
from fedpeft.privacy.updates import hidden


@dataclass(frozen=True)
class Request:
    """Which round of which client, from which whole task vector [P], on which data."""

    experiment: Experiment
    data: LocalData
    round: int
    start: np.ndarray

    @property
    def client(self) -> int:
        """Number of the client."""
        return self.data.client


@dataclass(frozen=True)
class Protection:
    """How one client's round is protected; both are None where nothing is."""

    dpsgd: DPSGD | None = None
    hiding: Plan | None = None
    statements: tuple[dict[str, Any], ...] = ()


def charge(request: Request) -> Protection:
    """Charge the client's ledger for a round and return how the round is to be done.

    Raises:
        BudgetSpent: the round would exceed the client's budget, and nothing is done; with two
            units the first one may have been charged for nothing.
        LedgerDamaged: what was spent cannot be known.
        UserError: settings that do not fit the client's data, or a ledger of other data.
        Refusal: less privacy than the owner of the data asks for.
    """
    experiment, data = request.experiment, request.data
    privacy = experiment.privacy
    require_rules(data)
    if not (privacy.examples or privacy.local):
        return Protection()
    ledger = PrivacyLedger(data.ledger, data.owner, data.digest)
    protection = Protection()
    if privacy.examples:
        plan = _within(example_plan(experiment, len(data.train)), data.max_epsilon)
        said = _charge(ledger, "example", plan, request)
        noise = _noise(request, "example-noise")
        how = DPSGD(plan.mechanism, privacy.clip, privacy.clipping, privacy.physical_batch, noise)
        protection = replace(protection, dpsgd=how, statements=(said,))
    if privacy.local:
        plan = client_plan(experiment)
        said = _charge(ledger, "client", plan, request)
        protection = replace(protection, hiding=plan, statements=(*protection.statements, said))
    return protection


def require_open(data: LocalData) -> None:
    """Refuse an evaluation, whose exact counts no noise covers, where privacy is limited.

    Raises:
        Refusal: the owner of the data has set a limit.
    """
    if data.max_epsilon is not None:
        raise Refusal(
            "this node limits its epsilon, which evaluation has none of; it trains only "
            "(federation.evaluation = 'server' evaluates elsewhere)"
        )


def require_rules(data: LocalData) -> None:
    """Refuse an experiment that makes less of privacy than its data's owner asks for.

    Known before anything is trained; what earlier runs have spent is the ledger's to say.

    Raises:
        Refusal: it does, with the reason.
        UserError: its privacy does not fit the client's data.
    """
    most = data.max_epsilon
    if most is None:
        return
    experiment = data.runtime.experiment
    privacy, task = experiment.privacy, experiment.task
    if not privacy.examples:
        raise Refusal(
            f"privacy.unit = '{privacy.unit}': this node takes part only with privacy for "
            f"examples, of an epsilon up to {most:g}"
        )
    if privacy.reproducible:  # the server chose the seed
        raise Refusal(
            "privacy.reproducible = true: this node takes part only with noise that nobody can "
            "draw again"
        )
    for key in ("train_limit", "eval_limit", "validation"):
        if limit := getattr(task, key):
            raise Refusal(
                f"task.{key} = {limit}: this node limits its epsilon, and trains on all of its "
                f"examples"
            )
    # Of few examples a delta may be large; which few, the server would choose.
    delta = example_delta(experiment, len(data.train))
    if delta * data.rows >= 1:
        raise Refusal(
            f"privacy.delta = {delta:g}, task.held_out = {task.held_out:g}: this node limits its "
            f"epsilon, and expects a delta below 1 / its {data.rows} examples"
        )
    once = spent([example_plan(experiment, len(data.train)).mechanism], delta).epsilon
    if once > most:
        raise Refusal(
            f"one round spends epsilon {once:.4g} (delta {delta:g}), and this node's limit is "
            f"{most:g}; expected a larger privacy.noise_multiplier, or a smaller privacy.epsilon"
        )


def hide(protection: Protection, request: Request, vector: np.ndarray) -> np.ndarray:
    """Return the shared part [S] of the trained task vector [P] as it may leave the client."""
    shared = ~request.data.runtime.trainable.personal
    if protection.hiding is None:
        return vector[shared]
    start, clip = request.start[shared], request.experiment.privacy.client_clip
    sigma = protection.hiding.mechanism.noise_multiplier
    update = hidden(vector[shared] - start, clip, sigma, _noise(request, "client-noise"))
    return (start + update).astype(vector.dtype)


def _within(plan: Plan, most: float | None) -> Plan:
    """Return a plan whose budget is no more than the owner of the data allows."""
    if most is None:
        return plan
    return replace(plan, budget=most if plan.budget is None else min(plan.budget, most))


def _charge(ledger: PrivacyLedger, unit: Unit, plan: Plan, request: Request) -> dict[str, Any]:
    """Charge one unit's mechanism and return the client's statement."""
    experiment, privacy = request.experiment, request.experiment.privacy
    of_unit: dict[Unit, tuple[float, str]] = {
        "example": (privacy.clip, privacy.clipping),
        "client": (privacy.client_clip, "fixed"),
    }
    clip, clipping = of_unit[unit]
    now = ledger.charge(
        unit,
        plan.mechanism,
        plan.delta,
        plan.budget,
        run=experiment.digest,
        round=request.round,
        note={"clipping": clipping, "clip": clip, "task": experiment.task.name},
        draw=_draw(request) if privacy.reproducible else None,
    )
    sampling: Literal["Poisson", "none"] = "Poisson" if unit == "example" else "none"
    return statement(ledger.charges(unit), now, clip, clipping, sampling)


def _noise(request: Request, purpose: str) -> Noise:
    experiment = request.experiment
    reproducible = experiment.privacy.reproducible
    return noise_of(reproducible, experiment.seed, purpose, request.round, request.client)


def _draw(request: Request) -> str:
    """Return what all random numbers and results of a reproducible round follow from."""
    total = hashlib.sha256(request.start.tobytes())
    total.update(f"{request.experiment.digest}|{request.round}|{request.client}".encode())
    return total.hexdigest()
