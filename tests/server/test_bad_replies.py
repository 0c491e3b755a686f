"""No reply of a client stops a run: bad ones are refused by name, and the others continue."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from flwr.app import Error, Message
from flwr.app.message import make_message
from messaging import changed, vector_of

from fedpeft.errors import RunFailed
from fedpeft.experiment.config import Experiment
from fedpeft.wire.failures import CODES, FailureKind
from fedpeft.wire.messages import RECORD
from server.runfolder import RunFolder

Quick = Callable[..., Experiment]
Federate = Callable[..., RunFolder]
SIZE = 16 + 2 * 32 + 2


def on_vector(change: Callable[[np.ndarray], np.ndarray]) -> Callable[[Message], Message]:
    """Return a spoiler that changes the task vector of a reply."""

    def spoil(reply: Message) -> Message:
        return changed(reply, v=change(vector_of(reply).copy()).tobytes())

    return spoil


def on_field(**values: Any) -> Callable[[Message], Message]:
    """Return a spoiler that replaces fields of a reply, or with None takes them out."""
    return lambda reply: changed(reply, **values)


def without_record(reply: Message) -> Message:
    del reply.content[RECORD]
    return reply


def with_nan(vector: np.ndarray) -> np.ndarray:
    vector[3] = np.nan
    return vector


def raising(reply: Message) -> Message:
    raise ValueError("the film was awful")


BAD = {
    "nan": (on_vector(with_nan), "1 of 82 numbers are NaN"),
    "infinite": (on_vector(lambda vector: vector + np.float32(np.inf)), "82 of 82 numbers"),
    "short": (on_vector(lambda vector: vector[:-1]), r"has 324 bytes, expected 328 \(82 x float32"),
    "float64": (on_vector(lambda vector: vector.astype("float64")), "has 656 bytes, expected 328"),
    "no vector": (on_field(v=None), "has 0 bytes, expected 328"),
    "text as vector": (on_field(v="PK"), "vector is str, expected bytes"),
    "loss": (on_field(l=float("inf")), "loss is inf"),
    "loss nan": (on_field(l=float("nan")), "loss is nan"),
    "huge loss": (on_field(l=1.7e308), r"loss is 1.7e\+308, expected 0 to 1e\+06"),
    "negative loss": (on_field(l=-0.5), "loss is -0.5, expected"),
    "losses": (on_field(l=[0.1, 0.2]), "loss is list, expected float"),
    "no loss": (on_field(l=None), "loss is missing"),
    "unknown field": (on_field(q=1), "has 1 unknown fields"),
    "no record": (without_record, "the message has no record of fields"),
    "exception": (raising, r"^error 2: ValueError at test_bad_replies.py:\d+$"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_client_with_a_bad_reply_is_listed_with_the_reason_and_the_run_continues(
    quick: Quick, federate: Federate, name: str
) -> None:
    spoil, reason = BAD[name]
    folder = federate(quick(), spoil, client=1, rounds=[1])
    first, second = folder.rounds()
    assert first["clients"] == 2
    assert [failure["client"] for failure in first["failed"]] == [1]
    assert_matches(first["failed"][0]["reason"], reason)
    assert (second["clients"], second["failed"]) == (3, [])


def assert_matches(text: str, pattern: str) -> None:
    assert re.search(pattern, text), text


def test_two_huge_losses_neither_stop_the_run_nor_its_resumption(
    quick: Quick, federate: Federate
) -> None:
    huge, _ = BAD["huge loss"]
    lines = federate(quick(), huge, client=1).rounds()
    assert [line["clients"] for line in lines] == [2, 2]
    assert all(np.isfinite(line["loss"]) for line in lines)


def test_a_refused_update_is_not_in_the_average(quick: Quick, federate: Federate) -> None:
    """The run is that of the two others, to the bit."""
    experiment = quick("federation.rounds=1", "federation.weighting=uniform")
    updates: dict[str, list[np.ndarray]] = {"kept": []}

    def keep(reply: Message) -> Message:
        updates["kept"].append(vector_of(reply))
        return reply

    federate(experiment, keep, out="all")
    folder = federate(experiment, on_vector(with_nan), client=1, out="two")
    checkpoint = folder.checkpoint()
    assert checkpoint is not None
    first, _, third = updates["kept"]
    np.testing.assert_array_equal(checkpoint.vector, first * 0.5 + third * 0.5)


def test_updates_above_the_norm_limit_are_refused_and_smaller_ones_count(
    quick: Quick, federate: Federate
) -> None:
    experiment = quick("federation.max_update_norm=50", "federation.rounds=1")
    far = on_vector(lambda vector: vector + np.float32(100))
    failed = federate(experiment, far, client=2).rounds()[0]["failed"]
    assert failed[0]["client"] == 2
    assert_matches(failed[0]["reason"], r"update norm 90\d(\.\d)? is above .*max_update_norm = 50")
    assert len(failed) == 1


def test_without_a_norm_limit_a_large_update_counts(quick: Quick, federate: Federate) -> None:
    far = on_vector(lambda vector: vector + np.float32(100))
    assert federate(quick("federation.rounds=1"), far, client=2).rounds()[0]["failed"] == []


@pytest.mark.parametrize("name", ["nan", "exception"])
def test_too_few_valid_replies_stop_the_run_and_it_can_be_resumed(
    quick: Quick, federate: Federate, name: str
) -> None:
    experiment = quick("federation.rounds=3", "federation.min_success=3")
    spoil, reason = BAD[name]
    with pytest.raises(RunFailed, match="round 2: 2 of 3 clients succeeded") as stopped:
        federate(experiment, spoil, client=1, rounds=[2])
    assert_matches(str(stopped.value), f"min_success is 3 .*client 1: .*{reason.strip('^$')}")
    whole = federate(experiment, out="whole")
    kept = RunFolder(whole.path.with_name("run")).checkpoint()
    assert kept is not None
    assert kept.round == 1
    resumed = federate(experiment, resume=True)
    assert [line["round"] for line in resumed.rounds()] == [1, 2, 3]
    one, other = resumed.checkpoint(), whole.checkpoint()
    assert one is not None
    assert other is not None
    np.testing.assert_array_equal(one.vector, other.vector)


def test_a_client_without_a_ledger_cannot_claim_that_its_budget_is_spent(
    quick: Quick, federate: Federate
) -> None:
    """The claim would lower the number of valid replies that a round needs."""

    def claim(reply: Message) -> Message:
        error = Error(CODES[FailureKind.SPENT], "client 1 has spent epsilon 1")
        return make_message(reply.metadata, error=error)

    with pytest.raises(RunFailed, match="round 1: 2 of 3 clients succeeded"):
        federate(quick("federation.min_success=3"), claim, client=1)
    folder = federate(quick(), claim, client=1, rounds=[1], out="two")
    assert [line["clients"] for line in folder.rounds()] == [2, 3]


def test_a_run_with_min_success_one_stops_if_all_clients_fail(
    quick: Quick, federate: Federate
) -> None:
    with pytest.raises(RunFailed, match="round 1: 0 of 3"):
        federate(quick(), raising)


def test_a_slow_client_fails_and_takes_part_in_the_next_round(
    quick: Quick, federate: Federate, virtual_time: Any
) -> None:
    def delay(reply: Message) -> Message:
        virtual_time.seconds += 2.2
        return reply

    folder = federate(quick("federation.timeout=2"), delay, client=2, rounds=[1])
    first, second = folder.rounds()
    assert first["failed"] == [{"client": 2, "reason": "no reply within 2 s"}]
    assert (second["clients"], second["failed"]) == (3, [])


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (raising, "error 2: ValueError"),
        (
            on_field(v=np.array([9.0, -5, 7, 2, 3]).tobytes()),
            "no counts of examples",
        ),
        (without_record, "refused: the message has no record of fields"),
        (on_field(v=np.ones(4).tobytes()), "refused: vector has 32 bytes, expected 40"),
        (on_field(v=np.full(5, np.nan).tobytes()), "5 of 5 numbers are NaN"),
        (on_field(l=float("nan")), "loss_sum is nan"),
        (
            on_field(l=1.7e308),
            r"loss_sum is 1.7e\+308, expected 0 to 1.3e\+07",  # 13 examples
        ),
        (
            on_field(v=np.array([1e15, 0, 0, 1, 1]).tobytes()),
            "count more than 10000000 examples",
        ),
    ],
)
def test_a_bad_evaluation_reply_is_left_out_of_the_metrics(
    quick: Quick,
    federate: Federate,
    caplog: pytest.LogCaptureFixture,
    spoil: Callable[[Message], Message],
    reason: str,
) -> None:
    experiment = quick("federation.evaluation=clients", "federation.rounds=1")
    folder = federate(experiment, spoil, kind="evaluate", client=1)
    line = folder.rounds()[0]
    assert line["evaluated"] == 27, "40 examples less the share of client 1"
    assert line["score"] * 27 == pytest.approx(round(line["score"] * 27))
    warnings = [
        record.getMessage() for record in caplog.records if record.name == "server.evaluation"
    ]
    assert len(warnings) == 1
    assert_matches(warnings[0], f"client 1 did not evaluate: .*{reason}")


def test_a_run_stops_if_no_client_evaluates(quick: Quick, federate: Federate) -> None:
    with pytest.raises(RunFailed, match="no client evaluated"):
        federate(quick("federation.evaluation=clients"), raising, kind="evaluate")
