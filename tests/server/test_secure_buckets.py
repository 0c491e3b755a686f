"""Several sums a round, which robust strategies compare."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from flwr.app import Message
from messaging import changed
from outcomes import final_vector

from fedpeft.errors import UserError
from fedpeft.experiment.config import Experiment
from fedpeft.runs.folder import RunFolder
from fedpeft.runtime import runtime_of

Quick = Callable[..., Experiment]
Federate = Callable[..., RunFolder]
BUCKETS = [
    *("federation.secure=true", "federation.clients=15", "secure.buckets=5"),
    *("task.train_limit=120", "federation.strategy=fedmedian", "wire.up=uniform8"),
]


def distance(experiment: Experiment, one: RunFolder, other: RunFolder) -> float:
    """Return how far two vectors lie apart, in lengths of the second one's change."""
    start = runtime_of(experiment).parameters.initial_shared(0)
    vector, reference = final_vector(one), final_vector(other)
    return float(np.linalg.norm(vector - reference) / np.linalg.norm(reference - start))


def garbage(reply: Message) -> Message:
    size = len(reply.content["m"]["v"])
    return changed(reply, v=np.random.default_rng(0).bytes(size))


def test_a_client_that_sends_garbage_spoils_the_mean_of_one_bucket_only(
    quick: Quick, federate: Federate
) -> None:
    experiment = quick(*BUCKETS)
    honest = federate(experiment, out="honest")
    attacked = federate(experiment, garbage, client=3, out="attacked")
    assert [line["clients"] for line in attacked.rounds()] == [15, 15]
    # One sum of all is worth nothing after the same attack.
    single = quick(*BUCKETS, "secure.buckets=1", "federation.strategy=fedavg")
    one, spoiled = federate(single, out="one"), federate(single, garbage, client=3, out="spoiled")
    assert 5 * distance(experiment, attacked, honest) < distance(single, spoiled, one)


def test_the_sums_of_a_round_are_over_all_clients_once(quick: Quick, federate: Federate) -> None:
    """A mean of means of equal size is the mean of all, up to the rounding of levels."""
    experiment = quick(
        *BUCKETS, "federation.strategy=fedtrimmedavg", "federation.trim=0.2", "secure.buckets=5"
    )
    sums = federate(experiment, out="sums")
    plain = federate(quick("federation.clients=15", "task.train_limit=120"), out="plain")
    assert distance(experiment, sums, plain) < 0.5


def test_a_bucket_that_loses_too_many_clients_is_left_out(quick: Quick, federate: Federate) -> None:
    lost: list[int] = []

    def lose(reply: Message) -> Message:
        raise ValueError("lost")

    folder = federate(quick(*BUCKETS, "secure.colluders=1"), lose, client=3, rounds=[1])
    first, second = folder.rounds()
    # With one colluder all three of a sum have to stay: client 3's two peers are lost with it.
    assert (first["clients"], second["clients"]) == (12, 15)
    lost = [failed["client"] for failed in first["failed"]]
    assert len(lost) == 3 and 3 in lost
    assert sum(failed["reason"].startswith("lost: 2 of 3") for failed in first["failed"]) == 2


def test_fewer_sums_than_the_strategy_needs_leave_the_vector(
    quick: Quick, federate: Federate
) -> None:
    def lose(reply: Message) -> Message:
        raise ValueError("lost")

    krum = ["federation.strategy=krum", "federation.byzantine=1", "secure.colluders=1"]
    experiment = quick(*BUCKETS, *krum)
    folder = federate(experiment, lose, client=3, rounds=[1])
    first, second = folder.rounds()
    assert (first["clients"], second["clients"]) == (0, 15)
    reasons = {failed["reason"] for failed in first["failed"]}
    assert "lost: 4 sums, strategy 'krum' needs 5" in reasons


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (["secure.buckets=4"], "15 clients of a round cannot be divided into sums of equal size"),
        (["secure.buckets=15"], "1 clients in a sum; expected 3 to 4096"),
        (["federation.strategy=fedavg"], "strategy 'fedavg' does not compare sums; leave it out"),
        (
            ["federation.strategy=krum", "federation.byzantine=2"],
            "krum needs 7 sums per round, got 5",
        ),
        (["secure.buckets=3", "federation.trim=0.2", "federation.strategy=fedtrimmedavg"], "of 3"),
        (["secure.colluders=2"], "secure.colluders = 2: of 3 clients in a round"),
    ],
)
def test_sums_that_the_strategy_cannot_use_are_refused(
    quick: Quick, settings: list[str], expected: str
) -> None:
    with pytest.raises(UserError, match=expected):
        quick(*BUCKETS, *settings)
