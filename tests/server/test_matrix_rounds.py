"""Correlated noise at the server: charges, noise, turns, resumed and repeated rounds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from scipy.linalg import toeplitz
from scipy.stats import chi2

from fedpeft.experiment.config import Experiment
from fedpeft.privacy.accounting import Mechanism, spent
from fedpeft.privacy.factorize import factorize
from fedpeft.privacy.ledger import BudgetSpent, LedgerDamaged, read_ledger
from fedpeft.privacy.plan import limits
from fedpeft.privacy.turns import TurnRefused
from fedpeft.runs.checkpoints import Checkpoint
from fedpeft.runs.folder import RunFolder
from server.privacy.central_privacy import CentralPrivacy

Quick = Callable[..., Experiment]
Make = Callable[..., CentralPrivacy]
START = np.zeros(5)
#: 12 clients, 3 a round: turns are 4 rounds apart, and there are 3 turns in 9 rounds.
TURNS = ("federation.clients=12", "federation.per_round=3", "federation.rounds=9")
SEEDED = ("privacy.reproducible=true", "engine.dtype=float64")
each_mechanism = pytest.mark.parametrize("kind", ["banded", "blt"])


def settings(kind: str, *more: str, noise: str = "noise_multiplier=2") -> list[str]:
    return [*TURNS, "privacy.unit=client", f"privacy.{noise}", f"privacy.mechanism={kind}", *more]


@pytest.fixture
def central(quick: Quick, tmp_path: Path) -> Make:
    """Return a maker of a server's protection; one ledger for the same settings."""

    def make(kind: str, *more: str, noise: str = "noise_multiplier=2") -> CentralPrivacy:
        experiment = quick(*settings(kind, *more, noise=noise))
        made = CentralPrivacy.of(experiment, tmp_path / experiment.digest)
        assert made is not None
        return made

    return make


def play(central: CentralPrivacy, number: int, size: int = 5) -> np.ndarray:
    """Return the noise [size] of a round without updates."""
    central.charge(number, np.full(size, float(number)))
    return central.mean_update([np.zeros(size)])


def saved(central: CentralPrivacy, number: int, folder: Path, quick: Quick) -> Checkpoint:
    """Return the state after a round, written to a checkpoint and read again."""
    made = RunFolder.create(folder, quick())
    made.save_round({"round": number}, [], Checkpoint(number, START, central.state()))
    assert (made.path / "checkpoint.safetensors").stat().st_mode & 0o777 == 0o600
    kept = made.checkpoint()
    assert kept is not None
    return kept


def mechanisms(central: CentralPrivacy) -> list[Mechanism]:
    return read_ledger(central._ledger.path).mechanisms("client")


@each_mechanism
def test_the_whole_run_is_charged_in_its_first_round(central: Make, kind: str) -> None:
    made = central(kind, noise="epsilon=4")
    epsilons, delta = [], made.plan.delta
    for number in range(1, 10):
        said = made.charge(number, START)
        epsilons.append(said["epsilon"])
        made.mean_update([START])
    assert len({*epsilons}) == 1 and 3.9 < epsilons[0] <= 4
    sigma = made.plan.mechanism.noise_multiplier
    assert said["composition"] == [[sigma, 1.0, 1]]
    assert (said["sampling"], said["sampling_rate"], said["steps"]) == ("turns", 1.0, 1)
    assert "at most 3 of 9 rounds, at least 4 apart" in said["mechanism"]
    assert said["releasable"] and said["neighbouring"][:13] == "add or remove"
    assert spent([Mechanism(sigma * 0.98, 1.0, 1)], delta).epsilon > 4
    assert [each.steps for each in mechanisms(made)] == [1, *[0] * 9]
    with pytest.raises(TurnRefused, match="the charge is for 9 rounds"):
        made.charge(10, START)


@each_mechanism
def test_the_noise_is_that_of_the_dense_inverse(central: Make, quick: Quick, kind: str) -> None:
    """Means of rounds turn back into independent z of sigma * sensitivity * clip."""
    size = 20_000
    made = central(kind, "privacy.client_clip=0.2")
    noise = np.array([play(made, number, size) for number in range(1, 10)])
    factors = factorize(kind, limits(quick(*settings(kind))))
    column = factors.matrix.column(9)
    z = toeplitz(column, np.zeros(9)) @ noise * 3 / (2 * factors.sensitivity * 0.2)
    low, high = chi2.ppf([1e-9, 1 - 1e-9], size)
    for row in z:
        assert low < row @ row < high
    products = (z @ z.T / np.sqrt(size))[np.triu_indices(9, 1)]
    assert np.abs(products).max() < 6  # each about standard normal
    measured = np.sqrt(np.mean((noise.cumsum(axis=0) * 3 / (2 * 0.2)) ** 2))
    assert measured == pytest.approx(factors.prefix_noise, rel=0.02)


@each_mechanism
def test_updates_are_clipped_and_divided_by_the_number_of_clients(central: Make, kind: str) -> None:
    made = central(kind, noise="noise_multiplier=0")
    made.charge(1, START)
    mean = made.mean_update([START + 10, START - 0.1])
    np.testing.assert_allclose(mean, (5**-0.5 - 0.1) / 3)


@each_mechanism
@pytest.mark.parametrize("apart", [0, 2, 1])
def test_clients_take_turns_also_when_some_are_offline(
    central: Make, kind: str, apart: int
) -> None:
    made, twin = (central(kind, f"privacy.separation={apart}", *each) for each in ((), SEEDED))
    everybody, online = np.arange(12), np.array([0, 2, 3, 5, 7, 8, 11])
    last: dict[int, int] = {}
    for number in range(1, 10):
        for each in (made, twin):
            each.charge(number, START)
        chosen = made.sample(everybody, number)
        assert made.sample(online, number) == [each for each in chosen if each in online]
        assert twin.sample(everybody, number) == chosen  # the order is public
        assert len(chosen) == 3
        for client in chosen:
            assert number - last.get(client, -99) >= (apart or 4)
            last[client] = number
        for each in (made, twin):
            each.mean_update([])


@each_mechanism
@pytest.mark.parametrize("after", [1, 2, 6])
def test_a_resumed_run_continues_with_the_same_noise(
    central: Make, quick: Quick, tmp_path: Path, kind: str, after: int
) -> None:
    made = central(kind, *SEEDED)
    for number in range(1, after + 1):
        play(made, number)
    kept = saved(made, after, tmp_path / "run", quick)
    resumed = central(kind, *SEEDED)
    resumed.restore(kept.memory, after)
    for number in range(after + 1, 10):
        assert np.array_equal(play(made, number), play(resumed, number))
    assert [each.steps for each in mechanisms(made)] == [1, *[0] * 9]  # both are the same run


@each_mechanism
def test_a_separation_of_one_keeps_and_restores_its_state(
    central: Make, quick: Quick, tmp_path: Path, kind: str
) -> None:
    """Banded: no vector is kept, and an array without rows is in the checkpoint."""
    made = central(kind, "privacy.separation=1")
    play(made, 1)
    resumed = central(kind, "privacy.separation=1")
    resumed.restore(saved(made, 1, tmp_path / "run", quick).memory, 1)
    assert play(resumed, 2).shape == (5,)


def test_an_interrupted_round_costs_only_if_its_noise_was_drawn(
    central: Make, quick: Quick, tmp_path: Path
) -> None:
    made = central("banded")
    play(made, 1)
    kept = saved(made, 1, tmp_path / "run", quick)
    made.charge(2, START)  # killed while clients train
    for tries in (1, 2):
        resumed = central("banded")
        resumed.restore(kept.memory, 1)
        said = resumed.charge(2, START)
        assert said["steps"] == tries
        resumed.mean_update([START])  # killed before the checkpoint
    factors = made.plan.factorization
    assert factors is not None
    repeated = Mechanism(2 * factors.sensitivity / factors.row_sensitivity, 1.0, 1)
    run = Mechanism(2.0, 1.0, 1)
    assert said["epsilon"] == spent([run, repeated], made.plan.delta).epsilon
    assert mechanisms(made).count(repeated) == 1


def test_a_repeated_round_beyond_the_budget_ends_the_run(
    central: Make, quick: Quick, tmp_path: Path
) -> None:
    made = central("blt", noise="epsilon=4")
    play(made, 1)
    kept = saved(made, 1, tmp_path / "run", quick)
    play(made, 2)
    resumed = central("blt", noise="epsilon=4")
    resumed.restore(kept.memory, 1)
    with pytest.raises(BudgetSpent, match="above the budget of 4"):
        resumed.charge(2, START)
    roomy = ("blt", "privacy.budget=4.5")
    play(central(*roomy, noise="epsilon=4"), 1)
    resumed = central(*roomy, noise="epsilon=4")  # its first round was published: a second run
    with pytest.raises(BudgetSpent):
        resumed.charge(1, START)


def test_a_run_that_starts_again_is_charged_again_if_it_had_begun(central: Make) -> None:
    central("banded").charge(1, START)
    made = central("banded")
    assert made.charge(1, START)["steps"] == 1  # nothing was published
    other = central("banded")
    assert other.charge(1, START)["steps"] == 1  # another process with the same charge
    made.mean_update([START])
    with pytest.raises(TurnRefused, match="drawn before"):
        other.mean_update([START])
    assert central("banded").charge(1, START)["steps"] == 2
    again = central("banded", *SEEDED)
    play(again, 1)
    assert np.array_equal(play(central("banded", *SEEDED), 1), play(central("banded", *SEEDED), 1))
    assert len(mechanisms(again)) == 2


def test_a_run_whose_ledger_or_matrix_differs_is_not_resumed(
    central: Make, quick: Quick, tmp_path: Path
) -> None:
    made = central("banded")
    play(made, 1)
    memory = saved(made, 1, tmp_path / "run", quick).memory
    made.restore(memory, 1)
    with pytest.raises(LedgerDamaged, match="lacks some of the 2 rounds"):
        made.restore(memory, 2)
    with pytest.raises(LedgerDamaged, match="lacks some"):
        central("banded", "seed=1").restore(memory, 1)
    changed = memory | {"privacy.matrix": memory["privacy.matrix"] * [1, 1, 1, 0.9]}
    with pytest.raises(LedgerDamaged, match="lacks some"):
        central("banded").restore(changed, 1)


def test_the_matrix_of_the_checkpoint_is_used_not_one_computed_again(
    central: Make, quick: Quick, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after an update of scipy."""
    made = central("banded")
    play(made, 1)
    memory = saved(made, 1, tmp_path / "run", quick).memory
    monkeypatch.setattr(
        "server.privacy.central_privacy.factorize",
        lambda _, each: factorize.__wrapped__("blt", each),
    )
    resumed = central("banded")
    resumed.restore(memory, 1)
    play(resumed, 2)
    assert resumed.state()["privacy.matrix"].tolist() == memory["privacy.matrix"].tolist()
