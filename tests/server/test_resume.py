"""A run that was interrupted anywhere continues to the same bits.

Here the interruption is an exception that no part of the server may catch, raised at every reply
of a run; tests/simulations/test_kill.py kills real processes.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Message
from outcomes import final_vector

from fedpeft.experiment.config import Experiment
from fedpeft.experiment.federation import SERVER_LR
from fedpeft.runs.folder import RunFolder

Quick = Callable[..., Experiment]
Federate = Callable[..., RunFolder]
TIMES = {"seconds"}
#: Strategies that keep something from round to round, and two that do not.
KEEPING = [*SERVER_LR, "centered_clipping", "bulyan"]


def interrupt(reply: Message) -> Message:
    raise KeyboardInterrupt


def without_times(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return lines without what cannot be the same in two runs."""
    return [
        {key: value for key, value in line.items() if key not in (*TIMES, "bytes")}
        for line in lines
    ]


def assert_same_run(one: RunFolder, other: RunFolder) -> None:
    assert final_vector(one).tobytes() == final_vector(other).tobytes()
    assert without_times(one.rounds()) == without_times(other.rounds())
    results = [json.loads((f.path / "result.json").read_text()) for f in (one, other)]
    assert results[0]["digests"] == results[1]["digests"]
    assert results[0]["score"] == results[1]["score"]


@pytest.mark.parametrize("strategy", KEEPING)
def test_a_run_interrupted_twice_ends_with_the_same_bits(
    quick: Quick, federate: Federate, strategy: str
) -> None:
    experiment = quick(
        f"federation.strategy={strategy}",
        "federation.trim=0.4",
        "federation.rounds=4",
        "federation.clients=4",
        "federation.fraction=0.75",
    )
    whole = federate(experiment, out="whole")
    with pytest.raises(KeyboardInterrupt):
        federate(experiment, interrupt, rounds=[2])
    with pytest.raises(KeyboardInterrupt):
        federate(experiment, interrupt, rounds=[4], resume=True)
    assert_same_run(federate(experiment, resume=True), whole)


def test_a_run_with_devices_keeps_its_virtual_time(quick: Quick, federate: Federate) -> None:
    experiment = quick(
        *("devices.step_seconds=1", "devices.spread=1", "devices.up=900", "devices.dropout=0.1"),
        *("federation.clients=5", "federation.per_round=2", "federation.over_selection=1.5"),
        *("federation.deadline=6", "federation.partial=true", "federation.fednova=true"),
        *("federation.rounds=4", "devices.availability=0.8"),
    )
    whole = federate(experiment, out="whole")
    with pytest.raises(KeyboardInterrupt):
        federate(experiment, interrupt, rounds=[2])
    with pytest.raises(KeyboardInterrupt):
        federate(experiment, interrupt, rounds=[3], resume=True)
    resumed = federate(experiment, resume=True)
    assert_same_run(resumed, whole)
    for key in ("virtual", "late", "failed"):
        assert [line[key] for line in resumed.rounds()] == [line[key] for line in whole.rounds()]


@pytest.mark.parametrize("client", [0, 1, 2])
@pytest.mark.parametrize("kind", ["train", "evaluate"])
def test_a_run_interrupted_at_any_reply_ends_with_the_same_bits(
    quick: Quick, federate: Federate, kind: str, client: int
) -> None:
    experiment = quick("federation.evaluation=clients", "federation.strategy=fedadam")
    whole = federate(experiment, out="whole")
    for number in (1, 2):
        out = f"run{number}"
        with pytest.raises(KeyboardInterrupt):
            federate(experiment, interrupt, kind, client, rounds=[number], out=out)
        assert_same_run(federate(experiment, resume=True, out=out), whole)


def test_a_crash_between_the_lines_and_the_checkpoint_repeats_the_round(
    quick: Quick, federate: Federate, tmp_path: Path
) -> None:
    """The lines of round 2 are written, its checkpoint is not."""
    experiment = quick("federation.strategy=fedavgm", "federation.rounds=3")

    def keep_checkpoint(reply: Message) -> Message:
        shutil.copy(tmp_path / "whole" / "checkpoint.safetensors", tmp_path / "of-round-1")
        return reply

    whole = federate(experiment, keep_checkpoint, client=0, rounds=[2], out="whole")
    shutil.copytree(whole.path, tmp_path / "run")
    folder = RunFolder(tmp_path / "run")
    shutil.copy(tmp_path / "of-round-1", folder.path / "checkpoint.safetensors")
    (folder.path / "vector.safetensors").unlink()
    (folder.path / "result.json").unlink()
    rounds = folder.path / "rounds.jsonl"
    rounds.write_text("".join(rounds.read_text().splitlines(keepends=True)[:2]) + '{"round": 3, ')
    assert_same_run(federate(experiment, resume=True), whole)
    ledger = (folder.path / "bytes.jsonl").read_text().splitlines()
    trained = [json.loads(line) for line in ledger if json.loads(line)["kind"] == "train"]
    assert [(line["round"], line["client"]) for line in trained] == [
        (number, client) for number in (1, 2, 3) for client in range(3)
    ]


def test_resuming_a_finished_run_changes_nothing(quick: Quick, federate: Federate) -> None:
    folder = federate(quick())
    names = ("rounds.jsonl", "bytes.jsonl", "result.json", "experiment.toml", "partition.json")
    before = {name: (folder.path / name).read_bytes() for name in names}
    bits = final_vector(folder).tobytes()
    federate(quick(), interrupt, resume=True)  # no client is asked anything
    assert {name: (folder.path / name).read_bytes() for name in names} == before
    assert final_vector(folder).tobytes() == bits


def test_seconds_add_up_over_an_interruption(quick: Quick, federate: Federate) -> None:
    with pytest.raises(KeyboardInterrupt):
        federate(quick(), interrupt, rounds=[2])
    folder = federate(quick(), resume=True)
    total = json.loads((folder.path / "result.json").read_text())["seconds"]
    rounds = [line["seconds"] for line in folder.rounds()]
    assert total == pytest.approx(sum(rounds), abs=0.1)
    assert total > rounds[-1]
