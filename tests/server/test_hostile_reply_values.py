"""Every value a site sends, at its extremes: the run ends, and its files can be read again.

The walk covers each field of each reply, so a new field is attacked without a new test.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import pytest
from flwr.app import ConfigRecord, Message
from messaging import changed

from fedpeft.errors import RunFailed
from fedpeft.experiment.config import Experiment
from fedpeft.runs.folder import RunFolder
from fedpeft.wire.messages import (
    RECORD,
    EvaluateReply,
    HandshakeReply,
    PrepareReply,
    TrainReply,
    UnmaskReply,
)

Quick = Callable[..., Experiment]
Federate = Callable[..., RunFolder]

REPLIES = {"query.handshake": HandshakeReply, "train": TrainReply, "evaluate": EvaluateReply}
INTEGERS = [0, -1, 2**62, -(2**62)]
FLOATS = [float("nan"), float("inf"), -1.0, 1.7e308]
EXTREMES: dict[type, list[Any]] = {
    int: INTEGERS,
    float: FLOATS,
    str: ["", "\x1b[2J\n{}", "9" * 10_000, '{"epsilon": 0}'],
    bytes: [b"", b"\xff" * 31, b"\xff" * 328, bytes(100_000)],
    list: [[], [float("nan")], [1e308] * 3, [-1.0] * 300],
}
SECURE_REPLIES = {"query.prepare": PrepareReply, "train": TrainReply, "query.unmask": UnmaskReply}


def values_of(replies: dict[str, Any]) -> list[Any]:
    """Return each field of the replies with each extreme of its type; two of three are long."""
    places = [(kind, reply, entry) for kind, reply in replies.items() for entry in fields(reply)]
    return [
        pytest.param(
            *(kind, entry.metadata["key"], extreme),
            id=f"{reply.__name__}.{entry.name}-{number}",
            marks=pytest.mark.long if (place + number) % 3 else (),
        )
        for place, (kind, reply, entry) in enumerate(places)
        for number, extreme in enumerate(EXTREMES[entry.metadata["kind"]])
    ]


PRIVACY = ["privacy.unit=both", "privacy.client_noise=clients", "privacy.noise_multiplier=1"]


@pytest.mark.parametrize(("kind", "key", "value"), values_of(REPLIES))
def test_a_run_survives_any_value_of_a_site(
    quick: Quick, federate: Federate, kind: str, key: str, value: Any
) -> None:
    private = PRIVACY if key in ("e", "c") and kind == "train" else []
    experiment = quick("federation.evaluation=clients", "wire.down=delta1", *private)
    folder = federate(experiment, lambda reply: changed(reply, **{key: value}), kind, client=1)
    assert [line["round"] for line in folder.rounds()] == [1, 2]
    assert all(line["clients"] >= 2 for line in folder.rounds())
    result = json.loads((folder.path / "result.json").read_text())  # Python's json reads NaN, too
    json.dumps(result, allow_nan=False)
    for line in folder.noted():
        assert line.isprintable() and len(line) < 1000
    assert folder.checkpoint() is not None


@pytest.mark.parametrize(("kind", "key", "value"), values_of(SECURE_REPLIES))
def test_a_secure_run_survives_any_value_of_a_site(
    quick: Quick, federate: Federate, kind: str, key: str, value: Any
) -> None:
    """Four of five clients have to stay to the end of a round."""
    experiment = quick("federation.secure=true", "federation.clients=5", "federation.rounds=1")
    folder = federate(experiment, lambda reply: changed(reply, **{key: value}), kind, client=1)
    [line] = folder.rounds()
    assert line["clients"] >= 4 and line["score"] is not None


@pytest.mark.parametrize("kind", REPLIES)
@pytest.mark.parametrize("field", [["deep"], {"x": 1}, None], ids=["list", "record", "nothing"])
def test_a_run_survives_any_record_of_a_site(
    quick: Quick, federate: Federate, kind: str, field: Any
) -> None:
    def spoil(reply: Message) -> Message:
        del reply.content[RECORD]
        if isinstance(field, list):
            reply.content[RECORD] = ConfigRecord({"v": field, "l": field, "c": field})
        if isinstance(field, dict):
            reply.content["other"] = ConfigRecord(field)
        return reply

    experiment = quick("federation.evaluation=clients")
    assert len(federate(experiment, spoil, kind, client=2).rounds()) == 2


def test_a_run_without_honest_sites_ends_with_one_line(quick: Quick, federate: Federate) -> None:
    with pytest.raises(RunFailed) as failed:
        federate(quick(), lambda reply: changed(reply, v=b""), "train")
    assert str(failed.value).isprintable()
