"""Correlated noise at the server: charges, noise, resumed and repeated rounds, whole runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message
from safetensors.numpy import load_file
from scipy.linalg import toeplitz
from scipy.stats import chi2

from fedpeft.errors import UserError
from fedpeft.experiment.config import Experiment
from fedpeft.privacy.accounting import Mechanism, spent
from fedpeft.privacy.factorize import factorize
from fedpeft.privacy.ledger import BudgetSpent, LedgerDamaged, read_ledger
from fedpeft.privacy.plan import limits
from fedpeft.privacy.turns import TurnRefused
from server.central_privacy import CentralPrivacy
from server.checkpoints import Checkpoint
from server.runfolder import RunFolder
from server.schedule import Schedule

Quick = Callable[..., Experiment]
Federate = Callable[..., RunFolder]
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


def test_a_run_that_starts_again_is_charged_again_unless_it_had_not_begun(
    central: Make,
) -> None:
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
        "server.central_privacy.factorize", lambda _, each: factorize.__wrapped__("blt", each)
    )
    resumed = central("banded")
    resumed.restore(memory, 1)
    play(resumed, 2)
    assert resumed.state()["privacy.matrix"].tolist() == memory["privacy.matrix"].tolist()


def test_too_many_rounds_create_no_folder(quick: Quick, tmp_path: Path) -> None:
    from simulations.simulation import prepare

    with pytest.raises(UserError, match="at most 20,000 rounds"):
        prepare(quick(*settings("blt", "federation.rounds=20001")), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def result_of(folder: RunFolder) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder.path / "result.json").read_text())
    return found


def vector_of(folder: RunFolder) -> np.ndarray:
    return load_file(folder.path / "vector.safetensors")["vector"]


@each_mechanism
def test_a_whole_run_states_one_mechanism_and_trains_by_turns(
    quick: Quick, federate: Federate, kind: str
) -> None:
    folder = federate(quick(*settings(kind, noise="epsilon=6")))
    said = result_of(folder)["privacy"]["client"]
    assert said["releasable"] and 5.9 < said["epsilon"] <= 6
    assert {line["epsilon"] for line in folder.rounds()} == {said["epsilon"]}
    rounds: dict[int, list[int]] = {}
    for line in folder.sent():
        if line["kind"] == "train":
            rounds.setdefault(line["client"], []).append(line["round"])
    assert sorted(rounds) == [*range(12)]
    assert all(b - a == 4 for taken in rounds.values() for a, b in pairwise(taken))
    contents = read_ledger(folder.path / "privacy" / "server.sqlite")
    noted = {each.round: each.note["clients"] for each in contents.charges[1:]}
    for number in range(1, 10):
        taking = [client for client in range(12) if number in rounds[client]]
        assert noted[number] == " ".join(map(str, taking))


def test_examples_and_clients_are_protected_together(quick: Quick, federate: Federate) -> None:
    """A client adds noise for its 3 turns, and the server for the whole run."""
    experiment = quick(*settings("banded", "privacy.unit=both", noise="epsilon=6"))
    said = result_of(federate(experiment))["privacy"]
    assert 5.9 < said["example"]["epsilon"] <= 6 and 5.9 < said["client"]["epsilon"] <= 6
    assert (said["client"]["sampling"], said["client"]["steps"]) == ("turns", 1)


@each_mechanism
@pytest.mark.parametrize("strategy", ["fedavg", "fedadam"])
def test_an_interrupted_run_ends_with_the_same_bits(
    quick: Quick, federate: Federate, kind: str, strategy: str
) -> None:
    def interrupt(reply: Message) -> Message:
        raise KeyboardInterrupt

    more = (*SEEDED, f"federation.strategy={strategy}", "privacy.separation=3")
    experiment = quick(*settings(kind, *more))
    whole = federate(experiment, out="whole")
    with pytest.raises(KeyboardInterrupt):
        federate(experiment, interrupt, rounds=[6], out="again")
    again = federate(experiment, resume=True, out="again")
    assert vector_of(again).tobytes() == vector_of(whole).tobytes()
    assert result_of(again)["privacy"] == result_of(whole)["privacy"]


def test_an_interrupted_run_with_secret_noise_continues_at_no_cost(
    quick: Quick, federate: Federate
) -> None:
    """It was killed while clients trained, before noise was drawn."""

    def interrupt(reply: Message) -> Message:
        raise KeyboardInterrupt

    experiment = quick(*settings("banded", noise="epsilon=4"))
    with pytest.raises(KeyboardInterrupt):
        federate(experiment, interrupt, rounds=[5])
    result = result_of(federate(experiment, resume=True))
    assert result["rounds"] == 9
    assert result["privacy"]["client"]["steps"] == 1
    assert result["epsilon"] <= 4


def test_clients_that_are_offline_or_fail_contribute_nothing(
    quick: Quick, federate: Federate
) -> None:
    def broken(reply: Message) -> Message:
        raise OSError("broken")

    offline = ("devices.step_seconds=1", "devices.availability=0.5")
    folder = federate(quick(*settings("blt", *offline)), broken, client=1)
    order = Schedule(12, 3, 4, seed=0)
    asked: dict[int, list[int]] = {number: [] for number in range(1, 10)}
    for line in folder.sent():
        if line["kind"] == "train":
            asked[line["round"]].append(line["client"])
    assert all({*clients} <= {*order.of(number).tolist()} for number, clients in asked.items())
    assert 5 < sum(map(len, asked.values())) < 22  # about half of 27
    for line in folder.rounds():
        assert line["clients"] == len([client for client in asked[line["round"]] if client != 1])
    assert result_of(folder)["privacy"]["client"]["steps"] == 1
