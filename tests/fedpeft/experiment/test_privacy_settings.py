"""Privacy settings that protect nothing, or less than they claim, are refused."""

from __future__ import annotations

import pytest

from fedpeft.errors import UserError
from fedpeft.experiment.config import Experiment

EXAMPLE = ["privacy.unit=example", "privacy.epsilon=3"]
CLIENT = ["privacy.unit=client", "privacy.epsilon=3"]
NOISED = [*CLIENT, "privacy.client_noise=secure", "federation.secure=true"]
BANDED = [*CLIENT, "privacy.mechanism=banded", "federation.clients=100"]
REFUSED = {
    "epsilon and zero noise": ([*EXAMPLE, "privacy.noise_multiplier=0"], "expected one of the two"),
    "negative noise": (["privacy.unit=example", "privacy.noise_multiplier=-1"], "greater than"),
    "epsilon of zero": (["privacy.unit=example", "privacy.epsilon=0"], "greater than 0"),
    "neither epsilon nor noise": (["privacy.unit=example"], "expected one of the two"),
    "epsilon without unit": (["privacy.epsilon=3"], "set privacy.unit"),
    "no clip of examples": ([*EXAMPLE, "privacy.clip=0"], "privacy.clip = 0"),
    "no clip of clients": ([*CLIENT, "privacy.client_clip=0"], "privacy.client_clip = 0"),
    "unused epsilon": (
        [*CLIENT, "privacy.client_epsilon=9"],
        "is not used with privacy.unit = 'client'",
    ),
    "unused clip": ([*CLIENT, "privacy.clip=5"], "is not used"),
    "carriers of another method": (
        [*EXAMPLE, "privacy.rank=2", "method.name=lora"],
        "RGP is for full fine-tuning; expected method.name = 'full', not 'lora'",
    ),
    "carriers without privacy of examples": (
        [*CLIENT, "privacy.rank=2", "method.name=full"],
        "is not used with privacy.unit = 'client'",
    ),
    "client key with unit example": (
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
    "delta of clients without prefix": ([*CLIENT, "privacy.delta=0.1"], "less than 1 / federation"),
    "adaptive clip at the clients": (
        [*CLIENT, "privacy.client_noise=clients", "privacy.client_quantile=0.5"],
        "only the server sees",
    ),
    "matrix without privacy": (["privacy.mechanism=blt"], "nothing is protected"),
    "matrix for examples": ([*EXAMPLE, "privacy.mechanism=blt"], "is for noise of the server"),
    "matrix with noise of the clients": (
        [*BANDED, "privacy.client_noise=clients"],
        r"privacy.mechanism = 'banded': is for noise of the server; expected privacy.unit = "
        r"'client' or 'both', and privacy.client_noise = 'server'",
    ),
    "matrix with adaptive clip": ([*BANDED, "privacy.client_quantile=0.5"], "needs one clip"),
    "separation of Poisson samples": ([*CLIENT, "privacy.separation=1"], "leave it out"),
    "separation that cannot hold": (
        [*BANDED, "federation.per_round=10", "privacy.separation=11"],
        r"privacy.separation = 11: 10 clients a round, at least 11 rounds apart, need 110 clients, "
        r"and federation.clients is 100; expected at most 10",
    ),
    "separation with all clients": ([*BANDED, "privacy.separation=2"], "expected at most 1"),
    "matrix of asynchronous rounds": ([*BANDED, "federation.mode=async"], "mode = 'async'"),
    "noise of sums without sums": (
        [*CLIENT, "privacy.client_noise=secure"],
        "is noise of sums under masks; set federation.secure = true",
    ),
    "noise of a server in sums": (
        [*CLIENT, "federation.secure=true"],
        "privacy.client_noise = 'server' is noise on single updates or by a server that sees them; "
        "expected privacy.client_noise = 'secure'",
    ),
    "noise of single clients in sums": (
        [*CLIENT, "privacy.client_noise=clients", "federation.secure=true"],
        "expected privacy.client_noise = 'secure'",
    ),
    "adaptive clip in sums": (
        [*NOISED, "privacy.client_quantile=0.5"],
        "client_quantile = 0.5: privacy.client_noise = 'secure' has a fixed clip",
    ),
    "sums without a clip": (
        ["privacy.unit=client", *NOISED[2:], "privacy.noise_multiplier=0", "privacy.client_clip=0"],
        "which sets the distance of the levels",
    ),
    "two clips in sums": (
        [*NOISED, "federation.max_update_norm=3"],
        "max_update_norm = 3: with privacy.client_noise = 'secure' updates are clipped at privacy",
    ),
    "matrix in sums": ([*NOISED, "privacy.mechanism=banded"], "is for noise of the server"),
    "weights in sums": ([*NOISED, "federation.weighting=examples"], "matched to uniform weights"),
    "asynchronous sums": (
        [*NOISED, "federation.mode=async", "federation.buffer=2"],
        "expected federation.mode = 'sync'",
    ),
    "noise of sums for examples": (
        [*EXAMPLE, "privacy.client_noise=secure", "federation.secure=true"],
        "is about whole clients",
    ),
    "matrix with reserve": (
        [*BANDED, "federation.per_round=10", "federation.over_selection=1.5"],
        "over_selection",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_settings_that_protect_less_than_they_claim_are_refused(case: str) -> None:
    overrides, message = REFUSED[case]
    with pytest.raises(UserError, match=message):
        Experiment.load("", overrides)


@pytest.mark.parametrize(
    "overrides",
    [
        [],
        EXAMPLE,
        CLIENT,
        [*EXAMPLE, "privacy.rank=2", "method.name=full"],
        ["privacy.unit=both", "privacy.epsilon=3", "privacy.client_noise_multiplier=0.7"],
        ["privacy.unit=example", "privacy.noise_multiplier=0", "privacy.clip=0"],
        [*BANDED, "federation.per_round=10", "privacy.separation=10"],
        [*BANDED, "privacy.mechanism=blt", "privacy.unit=both"],
        NOISED,
        [*NOISED, "privacy.unit=both", "federation.strategy=fedadam", "wire.up=uniform8"],
        # Each client's own noise hides it however its update is weighed or picked.
        [*CLIENT, "privacy.client_noise=clients", "federation.strategy=fedmedian"],
        [*CLIENT, "privacy.client_noise=clients", "federation.weighting=examples"],
    ],
)
def test_privacy_settings_survive_a_toml_round_trip(overrides: list[str]) -> None:
    experiment = Experiment.load("", overrides)
    assert Experiment.load(experiment.to_toml()) == experiment


def test_client_keys_default_to_the_keys_without_prefix() -> None:
    plain = Experiment.load("", ["privacy.unit=both", "privacy.epsilon=3", "privacy.delta=1e-3"])
    assert plain.privacy.of_clients() == (3, None, 1e-3)
    values = ["privacy.client_noise_multiplier=2", "privacy.client_delta=0.01"]
    separate = Experiment.load("", ["privacy.unit=both", "privacy.epsilon=3", *values])
    assert separate.privacy.of_clients() == (None, 2, 0.01)
    assert separate.privacy.epsilon == 3
