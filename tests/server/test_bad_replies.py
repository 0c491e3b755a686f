"""Nothing a client sends stops a run: it is refused by name, and the others go on."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord

from fedpeft.config import Experiment
from fedpeft.errors import RunFailed
from server.runfolder import RunFolder

Quick = Callable[..., Experiment]
Federate = Callable[..., RunFolder]
SIZE = 16 + 2 * 32 + 2


def on_vector(change: Callable[[np.ndarray], np.ndarray]) -> Callable[[Message], Message]:
    """Return a spoiler that changes the task vector of a reply."""

    def spoil(reply: Message) -> Message:
        vector = reply.content["arrays"]["vector"].numpy().copy()
        reply.content["arrays"] = ArrayRecord({"vector": Array(change(vector))})
        return reply

    return spoil


def on_array(**fields: Any) -> Callable[[Message], Message]:
    """Return a spoiler that writes into the fields of the array that travels."""

    def spoil(reply: Message) -> Message:
        for name, value in fields.items():
            setattr(reply.content["arrays"]["vector"], name, value)
        return reply

    return spoil


def on_record(name: str, record: Any) -> Callable[[Message], Message]:
    """Return a spoiler that replaces a record of a reply, or with None takes it out."""

    def spoil(reply: Message) -> Message:
        del reply.content[name]
        if record is not None:
            reply.content[name] = record
        return reply

    return spoil


def with_nan(vector: np.ndarray) -> np.ndarray:
    vector[3] = np.nan
    return vector


def raising(reply: Message) -> Message:
    raise ValueError("the film was awful")


BAD = {
    "nan": (on_vector(with_nan), "1 of 82 numbers are NaN"),
    "infinite": (on_vector(lambda vector: vector + np.float32(np.inf)), "82 of 82 numbers"),
    "short": (on_vector(lambda vector: vector[:-1]), r"shape \(81,\), expected \(82,\)"),
    "square": (on_vector(lambda vector: vector[None]), r"shape \(1, 82\)"),
    "float64": (on_vector(lambda vector: vector.astype("float64")), "is float64, expected float32"),
    "integers": (on_vector(lambda vector: vector.astype("int32")), "is int32, expected float32"),
    "loss": (on_record("metrics", MetricRecord({"loss": float("inf")})), "loss is inf"),
    "losses": (on_record("metrics", MetricRecord({"loss": [0.1, 0.2]})), "TypeError"),
    "no loss": (on_record("metrics", MetricRecord({"accuracy": 1.0})), "KeyError: 'loss'"),
    "experiment": (
        on_record("config", ConfigRecord({"experiment": "f" * 64})),
        "belongs to another experiment",
    ),
    "no config": (on_record("config", None), "KeyError: 'config'"),
    "no arrays": (on_record("arrays", None), "KeyError: 'arrays'"),
    "no array": (on_record("arrays", MetricRecord({"vector": 1.0})), "AttributeError"),
    "empty data": (on_array(data=b""), "no .npy file"),
    "noise": (on_array(data=b"PK\x03\x04 no zip"), "no .npy file"),
    "pickle": (on_array(data=b"\x80\x04N."), "no .npy file"),
    "another library's": (on_array(stype="torch.tensor"), "no numpy array"),
    "exception": (raising, r"^error 2: ValueError at test_bad_replies.py:\d+$"),
}


@pytest.mark.parametrize("name", BAD)
def test_the_client_is_listed_with_the_reason_and_the_run_goes_on(
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


def test_a_refused_update_is_not_in_the_average(quick: Quick, federate: Federate) -> None:
    """The run is that of the two others, to the bit."""
    experiment = quick("federation.rounds=1", "federation.weighting=uniform")
    updates: dict[str, list[np.ndarray]] = {"kept": []}

    def keep(reply: Message) -> Message:
        updates["kept"].append(reply.content["arrays"]["vector"].numpy())
        return reply

    federate(experiment, keep, out="all")
    folder = federate(experiment, on_vector(with_nan), client=1, out="two")
    checkpoint = folder.checkpoint()
    assert checkpoint is not None
    first, _, third = updates["kept"]
    np.testing.assert_array_equal(checkpoint.vector, first * 0.5 + third * 0.5)


def test_too_large_an_update_is_refused_and_a_small_one_is_not(
    quick: Quick, federate: Federate
) -> None:
    experiment = quick("federation.max_update_norm=50", "federation.rounds=1")
    far = on_vector(lambda vector: vector + np.float32(100))
    failed = federate(experiment, far, client=2).rounds()[0]["failed"]
    assert failed[0]["client"] == 2
    assert_matches(failed[0]["reason"], r"update norm 90\d(\.\d)? is above .*max_update_norm = 50")
    assert len(failed) == 1


def test_without_a_limit_a_large_update_counts(quick: Quick, federate: Federate) -> None:
    far = on_vector(lambda vector: vector + np.float32(100))
    assert federate(quick("federation.rounds=1"), far, client=2).rounds()[0]["failed"] == []


@pytest.mark.parametrize("name", ["nan", "exception"])
def test_too_few_good_replies_stop_the_run_and_it_can_go_on_later(
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


def test_all_clients_failing_stops_even_a_run_that_asks_for_one(
    quick: Quick, federate: Federate
) -> None:
    with pytest.raises(RunFailed, match="round 1: 0 of 3"):
        federate(quick(), raising)


def test_a_slow_client_fails_and_is_back_in_the_next_round(
    quick: Quick, federate: Federate
) -> None:
    def sleep(reply: Message) -> Message:
        time.sleep(2.2)
        return reply

    experiment = quick("federation.timeout=2")
    federate(quick("federation.rounds=1"), out="warm")  # what is loaded once takes no time below
    folder = federate(experiment, sleep, client=2, rounds=[1])
    first, second = folder.rounds()
    assert first["failed"] == [{"client": 2, "reason": "no reply within 2 s"}]
    assert (second["clients"], second["failed"]) == (3, [])


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (raising, "error 2: ValueError"),
        (
            on_record("arrays", ArrayRecord({"statistics": Array(np.array([9.0, -5, 7, 2]))})),
            "no counts of examples",
        ),
        (on_record("arrays", None), "refused: KeyError: 'arrays'"),
        (
            on_record("arrays", ArrayRecord({"statistics": Array(np.ones(9))})),
            r"refused: vector has shape \(9,\), expected \(4,\)",
        ),
        (
            on_record("arrays", ArrayRecord({"statistics": Array(np.full(4, np.nan))})),
            "4 of 4 numbers are NaN",
        ),
        (
            on_record("metrics", MetricRecord({"loss-sum": float("nan")})),
            "evaluation loss is nan",
        ),
    ],
)
def test_a_bad_evaluation_is_left_out(
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


def test_no_evaluation_at_all_stops_the_run(quick: Quick, federate: Federate) -> None:
    with pytest.raises(RunFailed, match="no client evaluated"):
        federate(quick("federation.evaluation=clients"), raising, kind="evaluate")
