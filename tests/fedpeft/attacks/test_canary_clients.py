"""The audit of clients: honest mechanisms stand, and each sabotage of the server's code is caught.

Sabotage replaces a function that the server calls; what the server claims stays the same.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedpeft.attacks.canary_clients import Population, Watched, audit_clients, scores, watch
from fedpeft.experiment.config import Experiment
from fedpeft.privacy import noise, updates
from fedpeft.privacy.turns import Turn, TurnRefused
from server.privacy.central_privacy import CentralPrivacy, central_plan
from server.privacy.schedule import Schedule

KINDS = ["gaussian", "banded", "blt"]
each_mechanism = pytest.mark.parametrize("kind", KINDS)
LONG = [pytest.param(kind, marks=pytest.mark.long) for kind in KINDS[1:]]
a_mechanism = pytest.mark.parametrize("kind", [KINDS[0], *LONG])
#: 300 clients, 30 a round: two turns, at least 5 rounds apart.
SETTINGS = (
    "federation.clients=300", "federation.per_round=30", "federation.rounds=20",
    "privacy.separation=5", "privacy.unit=client", "privacy.reproducible=true",
)  # fmt: skip
Audit = Callable[..., dict[str, Any]]


def experiment_of(kind: str, *more: str, epsilon: float = 2) -> Experiment:
    without = [each for each in SETTINGS if kind != "gaussian" or "separation" not in each]
    settings = [*without, f"privacy.mechanism={kind}", *more]
    if not any("noise_multiplier" in each for each in more):
        plan = central_plan(Experiment.load("", [*settings, f"privacy.epsilon={epsilon}"]))
        settings.append(f"privacy.noise_multiplier={plan.mechanism.noise_multiplier}")
    return Experiment.load("", settings)


@pytest.fixture
def audit(tmp_path: Path) -> Audit:
    """Return an audit of a mechanism through the server's code, with 10 runs."""

    def run(kind: str, *more: str, trials: int = 3000, rounds: int = 20) -> dict[str, Any]:
        experiment = experiment_of(kind, *more)

        def make(number: int) -> CentralPrivacy:
            again = Experiment.load(experiment.to_toml(), [f"seed={number}"])
            made = CentralPrivacy.of(again, tmp_path / str(number))
            assert made
            return made

        return audit_clients(make, Population(300, 30, rounds, seed=5), trials, 0.95)

    return run


def largest(result: dict[str, Any]) -> float:
    return max(result["lower_bound"], result["gaussian_bound"] or 0.0)


@each_mechanism
def test_an_honest_mechanism_stands_and_something_is_found(audit: Audit, kind: str) -> None:
    result = audit(kind)
    assert 1.9 < result["claimed_epsilon"] <= 2.01 and result["delta"] == 300**-1.1
    least = 0.0 if kind == "gaussian" else 1.0  # secret samples have no tight bound
    assert least < largest(result) < result["claimed_epsilon"]
    assert (result["gaussian_bound"] is None) == (kind == "gaussian")
    assert (result["unit"], result["runs"], result["rounds"]) == ("client", 10, 20)


@a_mechanism
def test_half_of_the_noise_is_caught(
    audit: Audit, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def weak(rows: Any, clip: float, sigma: float, expected: float, source: Any) -> np.ndarray:
        return updates.noisy_mean(rows, clip, sigma / 2, expected, source)

    monkeypatch.setattr("server.privacy.central_privacy.noisy_mean", weak)
    result = audit(kind)
    assert largest(result) > result["claimed_epsilon"] > 1.9


@a_mechanism
def test_missing_clipping_is_caught(
    audit: Audit, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(updates, "clipped", lambda update, clip: (update, True))
    result = audit(kind, trials=600)
    assert largest(result) > result["claimed_epsilon"] > 1.9


@pytest.mark.parametrize("kind", ["banded", LONG[1]])
def test_turns_too_near_and_too_many_are_refused_and_otherwise_caught(
    audit: Audit, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fifth of the clients takes all turns: ten each, two rounds apart."""

    def crowded(clients: int, per_round: int, separation: int, seed: int) -> Schedule:
        return Schedule(clients // 5, per_round, 2, seed)

    monkeypatch.setattr("server.privacy.matrix_rounds.Schedule", crowded)
    with pytest.raises(TurnRefused, match="must be at least 5 apart"):
        audit(kind)
    monkeypatch.setattr(Turn, "require", lambda *_: None)
    result = audit(kind)
    assert largest(result) > result["claimed_epsilon"] > 1.9
    assert result["trials"] < 5 * 60 + 1  # only clients with turns count


def test_a_larger_secret_sample_is_caught(audit: Audit, monkeypatch: pytest.MonkeyPatch) -> None:
    def larger(source: noise.Noise, count: int, rate: float) -> np.ndarray:
        return noise.poisson(source, count, 5 * rate)

    monkeypatch.setattr("server.privacy.central_privacy.poisson", larger)
    result = audit("gaussian")
    assert largest(result) > result["claimed_epsilon"] > 1.9


def test_without_noise_all_canaries_are_found_and_nothing_is_claimed(audit: Audit) -> None:
    """300 trials and no mistake: a bound of about log(150 / 4.4) = 3.5."""
    result = audit("gaussian", "privacy.noise_multiplier=0", "federation.fraction=1",
                   "federation.per_round=0", trials=600)  # fmt: skip
    assert result["claimed_epsilon"] is None
    assert result["lower_bound"] > 3 and result["gaussian_bound"] > result["lower_bound"]


def test_an_adaptive_clip_is_audited(audit: Audit) -> None:
    result = audit("gaussian", "privacy.client_quantile=0.5", trials=600)
    assert largest(result) < result["claimed_epsilon"]


@each_mechanism
def test_scores_are_standard_normal_without_the_client(kind: str, tmp_path: Path) -> None:
    """And the shift of one in its turns is the length that the claim is about."""
    made = CentralPrivacy.of(experiment_of(kind), tmp_path)
    assert made
    watched, _ = watch(made, Population(300, 30, 20, seed=0), np.zeros(300, bool))
    plan, found = made.plan, scores(watched, made.plan)
    if kind == "gaussian":
        assert abs(watched.released.std() / plan.mechanism.noise_multiplier - 1) < 0.05
        return
    assert plan.factorization
    found = found[~np.isnan(found)]
    deviation = plan.mechanism.noise_multiplier * plan.factorization.sensitivity
    assert len(found) > 30 and abs(found.std() / deviation - 1) < 0.25
    alone = scores(Watched(watched.turns.astype(float), watched.turns), plan)
    assert np.nanmax(alone) == pytest.approx(plan.factorization.sensitivity, rel=0.05)
