"""What an experiment's privacy means for a client with n examples."""

from __future__ import annotations

import pytest

from fedpeft.errors import UserError
from fedpeft.experiment.config import Experiment
from fedpeft.privacy.accounting import Mechanism, spent
from fedpeft.privacy.plan import client_plan, example_delta, example_plan, participations


def private(*overrides: str) -> Experiment:
    usual = ["privacy.unit=example", "privacy.epsilon=4", "local.batch_size=20"]
    return Experiment.load("", [*usual, *overrides])


def test_noise_is_calibrated_for_all_rounds_of_the_client() -> None:
    plan = example_plan(private("federation.rounds=6", "local.epochs=2"), 110)
    assert plan.mechanism.sampling_rate == 20 / 110
    assert plan.mechanism.steps == 11  # 2 epochs of 110 examples in batches of 20
    assert plan.delta == pytest.approx(110**-1.1)
    total = Mechanism(plan.mechanism.noise_multiplier, 20 / 110, 6 * 11)
    assert 3.9 < spent([total], plan.delta).epsilon <= plan.budget == 4


def test_a_client_of_fewer_rounds_gets_less_noise() -> None:
    often = example_plan(private("federation.rounds=20"), 200)
    seldom = example_plan(private("federation.rounds=20", "federation.fraction=0.3"), 200)
    assert participations(private("federation.rounds=20", "federation.fraction=0.3")) == 6
    assert seldom.mechanism.noise_multiplier < often.mechanism.noise_multiplier
    sevens = private("federation.clients=100", "federation.rounds=100", "federation.per_round=7")
    assert participations(sevens) == 7  # not 8, as 100 * 0.07 would make it
    same = private("federation.rounds=20", "federation.fraction=0.3", "privacy.participations=20")
    assert example_plan(same, 200) == often


def test_a_given_noise_multiplier_is_used() -> None:
    overrides = ["privacy.noise_multiplier=0.7", "local.steps=3", "privacy.delta=1e-4"]
    usual = ["privacy.unit=example", "local.batch_size=20"]
    given = Experiment.load("", [*usual, *overrides])
    plan = example_plan(given, 100)
    assert (plan.mechanism, plan.delta, plan.budget) == (Mechanism(0.7, 0.2, 3), 1e-4, None)


@pytest.mark.parametrize(
    ("overrides", "examples", "message"),
    [
        ([], 19, r"local.batch_size = 20: expected at most 19"),
        (["privacy.delta=0.01"], 100, r"privacy.delta = 0.01: expected less than 1 / 100"),
        (["local.batch_size=1"], 1, r"expected less than 1 / 1"),
    ],
)
def test_a_delta_or_batch_that_is_too_large_is_refused(
    overrides: list[str], examples: int, message: str
) -> None:
    with pytest.raises(UserError, match=message):
        example_delta(private(*overrides), examples)


def test_a_budget_may_be_wider_or_narrower_than_the_runs_epsilon() -> None:
    assert example_plan(private("privacy.budget=10"), 100).budget == 10
    hidden = ["privacy.unit=client", "privacy.client_noise=clients", "privacy.budget=2"]
    assert client_plan(private(*hidden)).budget == 2


def test_local_dp_has_no_sampling() -> None:
    local_dp = private("privacy.unit=client", "privacy.client_noise=clients", "federation.rounds=5")
    plan = client_plan(local_dp)
    assert plan.mechanism.sampling_rate == plan.mechanism.steps == 1
    total = Mechanism(plan.mechanism.noise_multiplier, 1.0, 5)
    assert 3.8 < spent([total], plan.delta).epsilon <= 4
