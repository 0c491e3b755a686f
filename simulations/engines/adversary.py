"""The attack of a run, applied to the updates of a round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from fedpeft.experiment.config import Experiment
from fedpeft.randomness import generator
from server.aggregation.clipping import clip_factors
from server.aggregation.strategies import next_vector
from simulations.engines import attacks

#: Attacks that scale each attacker's own update; the default factor, None = by the round.
_OWN = {"sign_flip": -1.0, "scaling": -10.0, "label_flip": 1.0, "backdoor": None}
#: Default strength of attacks in which all attackers send the same.
_JOINT = {"gaussian": 10.0, "ipm": 0.5}


def craft(
    experiment: Experiment, number: int, changes: Mapping[int, np.ndarray], attackers: Sequence[int]
) -> dict[int, np.ndarray]:
    """Return what each attacker sends as the change of its vector [P].

    Args:
        experiment: all settings.
        number: of the round, from 1.
        changes: of the clients that trained, the attackers' own included, float64 [P].
        attackers: those of these clients that attack.
    """
    adversary, own = experiment.adversary, {client: changes[client] for client in attackers}
    strength = adversary.strength
    if adversary.attack in _OWN:
        default = _OWN[adversary.attack] or len(changes) / len(own)  # model replacement
        factor = default if strength is None else strength
        return {client: factor * change for client, change in own.items()}
    # Attackers that are alone know their own updates only.
    known = [change for client, change in changes.items() if client not in own] or [*own.values()]
    return dict.fromkeys(own, _joint(experiment, number, np.stack(known), len(own)))


def _joint(experiment: Experiment, number: int, honest: np.ndarray, count: int) -> np.ndarray:
    """Return the change [P] that all ``count`` attackers send, given the honest ones [n, P]."""
    attack, strength = experiment.adversary.attack, experiment.adversary.strength
    if strength is None:
        unseen = attacks.largest_unseen(len(honest) + count, count)
        strength = _JOINT.get(attack, unseen)
    if attack == "gaussian":
        draw = generator(experiment.seed, "gaussian attack", number)
        return attacks.gaussian(honest, strength, draw)
    if attack == "mimic":
        return honest[attacks.mimicked(honest)]
    formula = attacks.inner_product if attack.startswith("ipm") else attacks.little_is_enough
    if not attack.endswith("_optimal"):
        return formula(honest, strength)
    return attacks.optimal(
        formula, honest, count, lambda updates: expected_step(experiment, number, updates)
    )


def expected_step(experiment: Experiment, number: int, updates: np.ndarray) -> np.ndarray:
    """Return the step [P] that the server makes of updates [n, P] of equally long training."""
    factors = np.ones(len(updates))
    if experiment.clips_updates:
        factors = clip_factors(np.linalg.norm(updates, axis=1), factors)
    weighted = [*zip(updates * factors[:, None], factors.tolist(), strict=True)]
    step, _ = next_vector(experiment, number, np.zeros(updates.shape[1]), weighted, {})
    return step
