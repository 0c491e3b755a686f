"""The audit of noise that clients add to a sum: the honest mechanism stands, sabotage is caught."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fedpeft.attacks.canary_clients import Population, audit_clients
from fedpeft.attacks.summed_rounds import SummedRounds
from fedpeft.experiment.config import Experiment
from fedpeft.privacy.plan import participations
from fedpeft.updates import sums
from fedpeft.wire import steps

#: Ten clients in each of two rounds, one of them a colluder.
SETTINGS = (
    "federation.clients=10", "federation.rounds=2", "federation.secure=true", "secure.colluders=1",
    "wire.up=uniform8", "privacy.unit=client", "privacy.client_noise=secure", "privacy.epsilon=3",
    "privacy.reproducible=true",
)  # fmt: skip


def audit(trials: int = 3000) -> dict[str, Any]:
    experiment = Experiment.load("", SETTINGS)
    honest = sums.honest(experiment)

    def make(number: int) -> SummedRounds:
        return SummedRounds(Experiment.load("", [*SETTINGS, f"seed={number}"]))

    return audit_clients(make, Population(honest, honest, 2, seed=3), trials, 0.95)


def largest(result: dict[str, Any]) -> float:
    return max(result["lower_bound"], result["gaussian_bound"])


def test_an_honest_sum_stands_and_something_is_found() -> None:
    result = audit()
    assert participations(Experiment.load("", SETTINGS)) == 2
    assert 2.9 < result["claimed_epsilon"] <= 3 and result["delta"] == 10**-1.1
    assert 0.4 < largest(result) < result["claimed_epsilon"]


def test_a_sum_without_noise_gives_the_mean_of_clipped_updates() -> None:
    """And claims nothing."""
    without = [each for each in SETTINGS if "epsilon" not in each]
    experiment = Experiment.load("", [*without, "privacy.noise_multiplier=0"])
    rounds, count = SummedRounds(experiment), sums.honest(experiment)
    assert rounds.charge(1, np.zeros(4))["epsilon"] is None
    mean = rounds.mean_update([np.array([10.0, 0, 0, 0]), np.array([0, 0.5, 0, 0])])
    np.testing.assert_allclose(mean * count, [1, 0.5, 0, 0], atol=0.03)


def test_half_of_the_noise_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = sums.noise_variance
    monkeypatch.setattr(sums, "noise_variance", lambda *args: honest(*args) / 4)
    result = audit()
    assert largest(result) > result["claimed_epsilon"] > 2.9


@pytest.mark.long
def test_noise_divided_among_clients_who_may_be_left_out_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each adds a tenth, and the server reads a sum of fewer."""
    honest = sums.noise_variance
    count = sums.honest(Experiment.load("", SETTINGS))

    def divided(experiment: Experiment, size: int) -> float:
        return honest(experiment, size) * count / 10

    monkeypatch.setattr(sums, "noise_variance", divided)
    result = audit(20_000)
    assert largest(result) > result["claimed_epsilon"] > 2.9


@pytest.mark.long
def test_missing_clipping_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of a bounded norm clip, too, so both have to be missing."""
    monkeypatch.setattr(sums, "clipped", lambda update, clip: (update, True))
    assert largest(audit()) < 3
    monkeypatch.setattr(steps, "bounded", lambda places, bits, own: np.rint(places).astype(int))
    result = audit(600)
    assert largest(result) > result["claimed_epsilon"] > 2.9
