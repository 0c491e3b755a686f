"""A client's privacy in one round: charge the ledger, train with DP-SGD, hide the update.

The ledger is charged before anything is computed from the data. A client whose budget does not
cover the round refuses it.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace

import numpy as np

from clients.assignment import Assignment
from clients.data.rules import require_rules
from clients.errors import checking_settings, withheld
from fedpeft.privacy.dpsgd import DPSGD
from fedpeft.privacy.ledger import PrivacyLedger, Unit
from fedpeft.privacy.noise import Noise, noise_of
from fedpeft.privacy.plan import Plan, client_plan, example_plan
from fedpeft.privacy.statement import Composition
from fedpeft.privacy.updates import noisy_update


@dataclass(frozen=True)
class Protection:
    """Protection of one client's round.

    Attributes:
        dpsgd: protection of examples during training, or None.
        hiding: protection of the whole update by this client's noise alone, or None.
        statements: each unit charged, and the composition of its charges in the ledger.
    """

    dpsgd: DPSGD | None = None
    hiding: Plan | None = None
    statements: tuple[tuple[Unit, Composition], ...] = ()


def charge(assignment: Assignment) -> Protection:
    """Charge the client's ledger for a round and return the protection of that round.

    Raises:
        BudgetSpent: the round would exceed the client's budget; nothing is computed. With two
            units, the first may be charged although the round is refused.
        LedgerDamaged: the privacy spent so far cannot be read.
        SettingsError: the settings do not fit the client's number of examples.
        DataError: the data cannot be read.
        OtherLedger: the ledger is of other data.
        UserError: the ledger cannot be used.
        Refusal: the experiment breaks a rule of the data's owner.
        Withheld: any other error, where the owner limits epsilon.
    """
    experiment, data = assignment.experiment, assignment.data
    privacy = experiment.privacy
    require_rules(data)
    if not (privacy.examples or privacy.charges_clients):
        return Protection()
    with withheld(data.limited):
        return _charged(assignment, PrivacyLedger(data.ledger, data.owner, data.digest))


def _charged(assignment: Assignment, ledger: PrivacyLedger) -> Protection:
    experiment, data = assignment.experiment, assignment.data
    privacy, protection = experiment.privacy, Protection()
    limit = None if data.max_epsilon is None else (data.max_epsilon, data.delta)
    examples = data.examples if privacy.examples else 0
    with checking_settings():  # before the first charge, see ``BEFORE_CHARGE``
        of_examples = example_plan(experiment, examples) if privacy.examples else None
        of_client = client_plan(experiment) if privacy.charges_clients else None
    if of_examples:
        spent = _charge(ledger, "example", of_examples, assignment, limit)
        noise = _noise(assignment, "example-noise")
        dpsgd = DPSGD(
            *(of_examples.mechanism, privacy.clip, privacy.clipping, privacy.physical_batch, noise),
            examples=examples,
            rank=privacy.rank,
        )
        protection = Protection(dpsgd=dpsgd, statements=(spent,))
    if of_client:
        spent = _charge(ledger, "client", of_client, assignment, limit)
        statements = (*protection.statements, spent)
        # Noise for a sum is added to the levels of the update, see ``fedpeft.updates.sums``.
        hiding = of_client if privacy.local else None
        protection = replace(protection, hiding=hiding, statements=statements)
    return protection


def hide(protection: Protection, assignment: Assignment, vector: np.ndarray) -> np.ndarray:
    """Return the shared part [S] of a trained task vector [P] in the form that may be sent."""
    shared = ~assignment.runtime.parameters.personal
    if protection.hiding is None:
        return vector[shared]
    start, clip = assignment.start[shared], assignment.experiment.privacy.client_clip
    sigma = protection.hiding.mechanism.noise_multiplier
    update = noisy_update(vector[shared] - start, clip, sigma, _noise(assignment, "client-noise"))
    return (start + update).astype(vector.dtype)


def _charge(
    ledger: PrivacyLedger,
    unit: Unit,
    plan: Plan,
    assignment: Assignment,
    limit: tuple[float, float] | None,
) -> tuple[Unit, Composition]:
    """Charge one unit's mechanism and return all its charges; see PrivacyLedger.charge."""
    experiment, privacy = assignment.experiment, assignment.experiment.privacy
    clipping: str
    if unit == "example":
        clip, clipping = privacy.clip, privacy.clipping
    else:
        clip, clipping = privacy.client_clip, "fixed"
    ledger.charge(
        unit,
        plan.mechanism,
        plan.delta,
        plan.budget,
        limit,
        run=experiment.digest,
        round_number=assignment.round,
        note={"clipping": clipping, "clip": clip, "task": experiment.task.name},
        draw=_draw(assignment) if privacy.reproducible else None,
        attempt=assignment.attempt,
    )
    return unit, Composition.of(ledger.charges(unit))


def _noise(assignment: Assignment, purpose: str) -> Noise:
    experiment = assignment.experiment
    reproducible = experiment.privacy.reproducible
    return noise_of(reproducible, experiment.seed, purpose, assignment.round, assignment.client)


def _draw(assignment: Assignment) -> str:
    """Return a digest of all that determines the noise and result of a reproducible round."""
    total = hashlib.sha256(assignment.start.tobytes())
    digest = assignment.experiment.digest
    total.update(f"{digest}|{assignment.round}|{assignment.client}".encode())
    return total.hexdigest()
