"""Settings that protect nothing, or less than they say, are refused."""

from __future__ import annotations

import pytest

from fedpeft.config import Experiment
from fedpeft.errors import UserError

EXAMPLE = ["privacy.unit=example", "privacy.epsilon=3"]
CLIENT = ["privacy.unit=client", "privacy.epsilon=3"]
REFUSED = {
    "a target and no noise": ([*EXAMPLE, "privacy.noise_multiplier=0"], "expected one of the two"),
    "negative noise": (["privacy.unit=example", "privacy.noise_multiplier=-1"], "greater than"),
    "a target of nothing": (["privacy.unit=example", "privacy.epsilon=0"], "greater than 0"),
    "neither": (["privacy.unit=example"], "expected one of the two"),
    "nothing protected": (["privacy.epsilon=3"], "set privacy.unit"),
    "no clip": ([*EXAMPLE, "privacy.clip=0"], "privacy.clip = 0"),
    "no clip of clients": ([*CLIENT, "privacy.client_clip=0"], "privacy.client_clip = 0"),
    "an epsilon that nobody uses": (
        [*CLIENT, "privacy.client_epsilon=9"],
        "is not used with privacy.unit = 'client'",
    ),
    "a clip that nobody uses": ([*CLIENT, "privacy.clip=5"], "is not used"),
    "clients' keys without them": (
        [*EXAMPLE, "privacy.client_epsilon=2"],
        "is about whole clients",
    ),
    "weights with central noise": ([*CLIENT, "federation.weighting=examples"], "uniform"),
    "median with central noise": (
        [*CLIENT, "federation.strategy=fedmedian"],
        "strategies that",
    ),
    "krum with central noise": ([*CLIENT, "federation.strategy=krum"], "strategies that"),
    "trimmed with central noise": (
        [*CLIENT, "federation.strategy=fedtrimmedavg"],
        "strategies that",
    ),
    "delta of clients": ([*CLIENT, "privacy.client_delta=0.1"], "less than 1 / federation.clients"),
    "delta of clients, the plain one": ([*CLIENT, "privacy.delta=0.1"], "less than 1 / federation"),
    "adaptive at the clients": (
        [*CLIENT, "privacy.client_noise=clients", "privacy.client_quantile=0.5"],
        "only the server sees",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_protects_less_than_it_says_is_refused(case: str) -> None:
    overrides, message = REFUSED[case]
    with pytest.raises(UserError, match=message):
        Experiment.load("", overrides)


@pytest.mark.parametrize(
    "overrides",
    [
        [],
        EXAMPLE,
        CLIENT,
        ["privacy.unit=both", "privacy.epsilon=3", "privacy.client_noise_multiplier=0.7"],
        ["privacy.unit=example", "privacy.noise_multiplier=0", "privacy.clip=0"],
        # Each client's own noise hides it however its update is weighed or picked.
        [*CLIENT, "privacy.client_noise=clients", "federation.strategy=fedmedian"],
        [*CLIENT, "privacy.client_noise=clients", "federation.weighting=examples"],
    ],
)
def test_what_is_written_is_read_again(overrides: list[str]) -> None:
    experiment = Experiment.load("", overrides)
    assert Experiment.load(experiment.to_toml()) == experiment


def test_clients_take_the_plain_values_where_they_have_none() -> None:
    plain = Experiment.load("", ["privacy.unit=both", "privacy.epsilon=3", "privacy.delta=1e-3"])
    assert plain.privacy.of_clients() == (3, None, 1e-3)
    values = ["privacy.client_noise_multiplier=2", "privacy.client_delta=0.01"]
    own = Experiment.load("", ["privacy.unit=both", "privacy.epsilon=3", *values])
    assert own.privacy.of_clients() == (None, 2, 0.01)
    assert own.privacy.epsilon == 3
