"""Central privacy: sampling, ledger, noise, and the mean that the strategy gets."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import binom, chi2, chisquare

from fedpeft.errors import UserError
from fedpeft.experiment.config import Experiment
from fedpeft.privacy import accounting
from fedpeft.privacy.accounting import Mechanism
from fedpeft.privacy.ledger import BudgetSpent, LedgerDamaged, read_ledger
from fedpeft.runs.checkpoints import Checkpoint
from fedpeft.runs.folder import RunFolder
from server.aggregation.strategies import next_vector
from server.privacy.central_privacy import CentralPrivacy, central_plan

Quick = Callable[..., Experiment]
Make = Callable[..., CentralPrivacy]
START = np.zeros(5)
SIGMA = "client_noise_multiplier=1.5"


@pytest.fixture
def central(quick: Quick, tmp_path: Path) -> Make:
    """Return a maker: 40 clients, a quarter of them a round; one ledger for the same settings."""

    def make(*privacy: str, federation: tuple[str, ...] = ()) -> CentralPrivacy:
        experiment = quick(
            *(f"federation.{each}" for each in ("clients=40", "fraction=0.25", *federation)),
            *(f"privacy.{each}" for each in ("unit=client", *privacy)),
        )
        made = CentralPrivacy.of(experiment, tmp_path / experiment.digest)
        assert made is not None
        return made

    return make


@pytest.fixture
def reproducible(central: Make) -> CentralPrivacy:
    return central(SIGMA, "reproducible=true")


def draws(size: int, rounds: int) -> Iterator[np.ndarray]:
    random = np.random.default_rng(size)
    return (random.normal(size=size) for _ in range(rounds))


def test_without_central_privacy_there_is_no_ledger(quick: Quick, tmp_path: Path) -> None:
    local = ["privacy.unit=client", "privacy.noise_multiplier=1", "privacy.client_noise=clients"]
    for experiment in (quick(), quick(*local)):
        assert CentralPrivacy.of(experiment, tmp_path / "ledger") is None
    assert not list(tmp_path.iterdir())


def test_sample_sizes_follow_the_binomial_law(reproducible: CentralPrivacy) -> None:
    rounds, pool = 2000, np.arange(40)
    chosen = [list(reproducible.sample(pool, number)) for number in range(1, rounds + 1)]
    law = binom(40, 0.25)
    edges = [-1, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 40]  # every bin expects 80 rounds or more
    observed = np.histogram([len(each) for each in chosen], np.add(edges, 0.5))[0]
    expected = rounds * np.diff(law.cdf(edges))
    assert chisquare(observed, expected).pvalue > 1e-3
    turns = np.bincount(np.concatenate(chosen), minlength=40)
    squares = ((turns - rounds / 4) ** 2 / (rounds * 0.25 * 0.75)).sum()
    assert chi2.ppf(1e-3, 40) < squares < chi2.ppf(1 - 1e-3, 40)


def test_the_sample_does_not_depend_on_which_clients_are_connected(
    central: Make, reproducible: CentralPrivacy
) -> None:
    everybody = np.arange(40)
    for number in range(1, 20):
        chosen = reproducible.sample(everybody, number)
        assert chosen == sorted(chosen)
        even = [client for client in chosen if client % 2 == 0]
        assert reproducible.sample(everybody[::2], number) == even
    assert reproducible.sample(everybody[:0], 1) == []
    assert central(SIGMA, federation=("fraction=1",)).sample(everybody, 1) == [*range(40)]


def test_samples_are_secret_or_reproducible_as_asked(central: Make) -> None:
    pool = np.arange(40)

    def chosen(*settings: str) -> list[list[int]]:
        return [list(central(SIGMA, *settings).sample(pool, number)) for number in range(1, 9)]

    assert chosen("reproducible=true") == chosen("reproducible=true")
    assert chosen() != chosen()


def test_calibrated_noise_keeps_a_run_within_epsilon_and_hardly_below(central: Make) -> None:
    made = central("client_epsilon=4", federation=("rounds=6",))
    mechanism, delta = made.plan.mechanism, made.plan.delta
    assert (mechanism.sampling_rate, delta) == (0.25, 40**-1.1)
    for number in range(1, 7):
        said = made.charge(number, START)
    assert said["epsilon"] <= 4
    less = Mechanism(mechanism.noise_multiplier * 0.99, 0.25, 6)
    assert accounting.spent([less], delta).epsilon > 4
    with pytest.raises(BudgetSpent):
        made.charge(7, START)
    assert len(read_ledger(made._ledger.path).charges) == 6


def test_the_ledger_composes_over_a_restart(central: Make) -> None:
    first = central(SIGMA)
    first.charge(1, START)
    first.charge(2, START)
    said = central(SIGMA).charge(2, START)  # after a crash in round 2: with new noise
    spent = accounting.spent([Mechanism(1.5, 0.25, 3)], 40**-1.1)
    assert (said["epsilon"], said["epsilon_error"]) == (spent.epsilon, spent.epsilon_error)
    assert (said["unit"], said["sampling"], said["sampling_rate"]) == ("client", "Poisson", 0.25)
    assert (said["steps"], said["noise_multiplier"], said["delta"]) == (3, 1.5, 40**-1.1)
    assert (said["clip"], said["clipping"], said["releasable"]) == (1.0, "fixed", True)


def test_a_reproducible_round_is_charged_once_for_the_same_start(central: Make) -> None:
    assert central(SIGMA, "reproducible=true").charge(1, START)["steps"] == 1
    again = central(SIGMA, "reproducible=true")
    said = again.charge(1, START)
    assert (said["steps"], said["releasable"]) == (1, False)
    assert again.charge(1, START + 1)["steps"] == 2  # from another task vector
    assert again.charge(2, START)["steps"] == 3


def test_a_single_client_without_a_delta_is_refused(quick: Quick) -> None:
    alone = quick("federation.clients=1", "privacy.unit=client", f"privacy.{SIGMA}")
    with pytest.raises(UserError, match=r"federation.clients = 1: .* at least 2 clients"):
        central_plan(alone)


def test_noise_is_scaled_by_the_expected_number_of_clients(central: Make) -> None:
    """sigma C / 10, for no, few or many answers, from clients with small and large updates."""
    made, size = central(SIGMA, "client_clip=0.2"), 20_000
    low, high = chi2.ppf([1e-9, 1 - 1e-9], size)
    for number, answered in enumerate((0, 1, 10, 23), start=1):
        updates = [0.1 * 10**n * each for n, each in enumerate(draws(size, answered))]
        made.charge(number, np.zeros(size))
        exact = sum((u / np.linalg.norm(u) * 0.2 for u in updates), np.zeros(size)) / 10
        noise = (made.mean_update(updates) - exact) / (1.5 * 0.2 / 10)
        assert low < noise @ noise < high


def test_each_charge_allows_one_mean(reproducible: CentralPrivacy) -> None:
    with pytest.raises(RuntimeError, match="charged"):
        reproducible.mean_update([START])
    reproducible.charge(1, START)
    reproducible.mean_update([START])
    with pytest.raises(RuntimeError, match="charged"):
        reproducible.mean_update([START])


def test_noise_is_secret_or_reproducible_as_asked(central: Make) -> None:
    def mean(number: int, *settings: str) -> list[float]:
        made = central(SIGMA, *settings)
        made.charge(number, START)
        return made.mean_update([START + 1]).tolist()

    assert mean(1, "reproducible=true") == mean(1, "reproducible=true")
    assert mean(1, "reproducible=true") != mean(2, "reproducible=true")
    assert mean(1) != mean(1)


def test_a_resumed_run_continues_with_the_adapted_clip(
    central: Make, quick: Quick, tmp_path: Path
) -> None:
    settings = ("client_noise_multiplier=0.9", "client_quantile=0.5", "reproducible=true")
    made, vectors = central(*settings), list(draws(5, 8))
    made.charge(1, START)
    made.mean_update(vectors)
    assert made.clip != 1.0
    folder = RunFolder.create(tmp_path / "run", quick())
    folder.save_round({"round": 1}, [], Checkpoint(1, START, made.state()))
    kept = folder.checkpoint()
    assert kept is not None
    fedadam = quick("federation.strategy=fedadam")
    assert next_vector(fedadam, 2, START, (), kept.memory)[1] == {}  # the clip is not its memory
    resumed = central(*settings)
    resumed.restore(kept.memory, kept.round)
    assert resumed.clip == made.clip
    said = [each.charge(2, START) for each in (made, resumed)]
    assert said[0] == said[1]
    assert (said[0]["clip"], said[0]["clipping"]) == (made.clip, "adaptive to quantile 0.5")
    means = [each.mean_update(vectors) for each in (made, resumed)]
    assert np.array_equal(*means)


def test_a_run_whose_ledger_lacks_its_rounds_is_not_resumed(central: Make, tmp_path: Path) -> None:
    """A run folder copied without its ledger would count from zero."""
    made = central(SIGMA)
    for number in (1, 2):
        made.charge(number, START)
    made.restore({}, 2)
    with pytest.raises(LedgerDamaged, match="lacks some of the 3 rounds"):
        made.restore({}, 3)


def test_a_shared_ledger_adds_up_over_runs_on_the_same_clients(
    central: Make, tmp_path: Path
) -> None:
    kept = f"ledger={tmp_path / 'ledgers'}"
    first = central(SIGMA, kept).charge(1, START)
    other = central(SIGMA, kept, "client_clip=0.5").charge(1, START)
    assert other["composition"] == [[1.5, 0.25, 2]]
    assert other["epsilon"] > first["epsilon"]
    limited = central("client_epsilon=3", kept, "budget=1", federation=("rounds=7",))
    with pytest.raises(BudgetSpent, match="budget of 1"):
        limited.charge(1, START)


def test_an_adaptive_round_costs_what_a_fixed_one_costs(central: Make) -> None:
    """The updates get more noise, the ledger sees the one multiplier."""
    made, size = central("client_noise_multiplier=0.6", "client_quantile=0.5"), 20_000
    said = made.charge(1, np.zeros(size))
    assert said["noise_multiplier"] == 0.6
    noise = made.mean_update([]) / (1.0 / 10)
    left = 1 / math.sqrt(0.6**-2 - 1.0)  # sigma_b = 10 / 20
    low, high = chi2.ppf([1e-9, 1 - 1e-9], size)
    assert low < noise @ noise / left**2 < high


def test_an_impossible_adaptive_clip_is_refused_before_a_ledger_is_made(
    central: Make, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match="a tenth of the 10 clients"):
        central("client_quantile=0.5", "client_noise_multiplier=1")
    with pytest.raises(UserError, match="expected client_clip above 0"):
        central("client_quantile=0.5", "client_noise_multiplier=0", "client_clip=0")
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("flower_run")
def test_no_noise_no_clip_and_all_clients_are_plain_fedavg(central: Make, quick: Quick) -> None:
    made = central("client_noise_multiplier=0", "client_clip=0", federation=("fraction=1",))
    fedavg = quick("federation.strategy=fedavg")
    one = other = next(draws(7, 1))
    for number in (1, 2, 3):
        vectors = [other + 10 * each for each in draws(7, 40)]
        said = made.charge(number, one)
        assert (said["epsilon"], said["releasable"]) == (None, False)
        mean = made.mean_update([vector - one for vector in vectors])
        one, _ = next_vector(fedavg, number, one, [(one + mean, 1.0)], {})
        other, _ = next_vector(fedavg, number, other, [(vector, 1.0) for vector in vectors], {})
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-12)


@pytest.mark.usefixtures("flower_run")
@pytest.mark.parametrize("name", ["fedavg", "fedavgm", "fedadam", "fedyogi", "fedadagrad"])
def test_every_averaging_strategy_handles_a_round_without_replies(
    reproducible: CentralPrivacy, quick: Quick, name: str
) -> None:
    reproducible.charge(1, START)
    mean = reproducible.mean_update([])
    strategy = quick(f"federation.strategy={name}")
    new, _ = next_vector(strategy, 1, START, [(START + mean, 1.0)], {})
    assert np.isfinite(new).all()
    assert not np.array_equal(new, START)
