"""Simulated devices: what they draw from the seed, and how long they take."""

from __future__ import annotations

from collections.abc import Callable
from math import inf, log

import numpy as np
import pytest

from fedpeft.errors import UserError
from fedpeft.experiment.config import Experiment
from fedpeft.simulated.devices import SLOT, Device, device_of, reachable, vanishes

Quick = Callable[..., Experiment]
SPEED = ("devices.step_seconds=2", "federation.clients=400")


def test_devices_are_log_normal_around_the_medians(quick: Quick) -> None:
    experiment = quick(*SPEED, "devices.spread=0.5", "devices.up=1000", "devices.rate_spread=1")
    devices = [device_of(experiment, client) for client in range(400)]
    steps = np.log([device.step_seconds for device in devices])
    rates = np.log([device.up for device in devices])
    assert np.median(steps) == pytest.approx(log(2), abs=0.1)
    assert steps.std() == pytest.approx(0.5, abs=0.06)
    assert np.median(rates) == pytest.approx(log(1000), abs=0.15)
    assert rates.std() == pytest.approx(1, abs=0.12)
    assert {device.down for device in devices} == {inf}  # no limit
    assert devices == [device_of(experiment, client) for client in range(400)]


def test_all_devices_are_equal_without_a_spread(quick: Quick) -> None:
    assert {device_of(quick(*SPEED), client) for client in range(9)} == {Device(2.0, inf, inf)}


def test_steps_and_messages_take_time() -> None:
    device = Device(step_seconds=2, up=10, down=100)
    assert device.seconds(5, 200, 30) == 2 + 10 + 3
    assert device.steps_within(15.1, 200, 30) == 5
    assert device.steps_within(15, 200, 30) == 4  # a reply at the deadline is late
    assert device.steps_within(1, 200, 30) == 1  # the least


def test_a_share_of_the_clients_is_within_reach_and_changes_with_time(quick: Quick) -> None:
    experiment = quick(*SPEED, "devices.availability=0.3")
    now, soon, later = (reachable(experiment, at) for at in (0, SLOT - 1, SLOT))
    assert now.mean() == pytest.approx(0.3, abs=0.08)
    np.testing.assert_array_equal(now, soon)
    assert (now != later).any()
    assert reachable(quick(*SPEED), 0).all()


def test_a_share_of_the_trainings_ends_without_a_reply(quick: Quick) -> None:
    experiment = quick(*SPEED, "devices.dropout=0.2")
    gone = [[vanishes(experiment, number, client) for client in range(400)] for number in (1, 2)]
    assert np.mean(gone) == pytest.approx(0.2, abs=0.06)
    assert gone[0] != gone[1]
    assert not vanishes(quick(*SPEED), 1, 0)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["devices.dropout=0.1"], "devices.dropout = 0.1: clients have no speed"),
        (["federation.deadline=0"], "federation.deadline = 0: expected greater than 0"),
        (["federation.over_selection=2"], "asks 6 clients, more than federation.clients = 3"),
        (["federation.partial=true"], "set federation.deadline"),
        (["devices.availability=1.2"], "devices.availability = 1.2: expected"),
        (
            ["federation.partial=true", "federation.deadline=9", "local.perturbations=2"],
            "expected local.perturbations = 0",
        ),
        (
            ["federation.fednova=true", "privacy.unit=client", "privacy.noise_multiplier=1"],
            "lengthens updates beyond privacy.client_clip",
        ),
        (
            [
                *("federation.over_selection=1.5", "federation.per_round=2"),
                *("privacy.unit=client", "privacy.noise_multiplier=1"),
            ],
            "a fast client displaces another",
        ),
    ],
)
def test_contradictions_are_one_line(quick: Quick, overrides: list[str], words: str) -> None:
    with pytest.raises(UserError) as refused:
        quick(*overrides)
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)
