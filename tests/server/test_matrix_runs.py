"""Whole runs with correlated noise: statements, turns, interruptions and absent clients."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from flwr.app import Message
from outcomes import final_vector, result_of

from fedpeft.errors import UserError
from fedpeft.experiment.config import Experiment
from fedpeft.privacy.ledger import read_ledger
from fedpeft.runs.folder import RunFolder
from server.privacy.schedule import Schedule

Quick = Callable[..., Experiment]
Federate = Callable[..., RunFolder]
#: 12 clients, 3 a round: turns are 4 rounds apart, and there are 3 turns in 9 rounds.
TURNS = ("federation.clients=12", "federation.per_round=3", "federation.rounds=9")
SEEDED = ("privacy.reproducible=true", "engine.dtype=float64")
each_mechanism = pytest.mark.parametrize("kind", ["banded", "blt"])


def settings(kind: str, *more: str, noise: str = "noise_multiplier=2") -> list[str]:
    return [*TURNS, "privacy.unit=client", f"privacy.{noise}", f"privacy.mechanism={kind}", *more]


def test_too_many_rounds_create_no_folder(quick: Quick, tmp_path: Path) -> None:
    from simulations.simulation import prepare

    with pytest.raises(UserError, match="at most 20,000 rounds"):
        prepare(quick(*settings("blt", "federation.rounds=20001")), tmp_path / "run")
    assert not (tmp_path / "run").exists()


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
    experiment = quick(
        *settings("banded", "privacy.unit=both", "task.train_limit=120", noise="epsilon=6")
    )
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
    assert final_vector(again).tobytes() == final_vector(whole).tobytes()
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
