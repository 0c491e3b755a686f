"""Simulations with devices: virtual time, deadlines, clients in reserve, partial work."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedpeft.errors import UserError
from fedpeft.experiment.config import Experiment
from fedpeft.runs.folder import RunFolder
from fedpeft.simulated.devices import SLOT, device_of, reachable, vanishes
from fedpeft.wire.framing import train_reply_bytes
from simulations.engines.device_grid import NOTICED
from simulations.simulation import prepare

Quick = Callable[..., Experiment]
Run = Callable[..., tuple[RunFolder, dict[str, Any]]]
Final = Callable[[Path], np.ndarray]
STEPS = 3  # of 20 examples in batches of 8
SLOW = ("devices.step_seconds=1", "devices.spread=1")


def seconds(experiment: Experiment, clients: int = 3) -> list[float]:
    """The seconds of each client's steps."""
    return [STEPS * device_of(experiment, client).step_seconds for client in range(clients)]


def test_a_round_takes_as_long_as_its_slowest_client(
    quick: Quick, run: Run, final_vector: Final
) -> None:
    experiment = quick(*SLOW, "devices.up=500", "devices.down=2000")
    folder, _ = run(experiment)
    payload = json.loads((folder.path / "bytes.jsonl").read_text().splitlines()[-1])["up"]
    size = train_reply_bytes(payload["payload"])
    slowest = max(device_of(experiment, client).seconds(STEPS, size, size) for client in range(3))
    virtual = [line["virtual"] for line in folder.rounds()]
    np.testing.assert_allclose(virtual, [slowest, 2 * slowest], rtol=1e-12)
    plain, _ = run(quick(), "plain")
    assert plain.rounds()[-1]["virtual"] is None
    np.testing.assert_array_equal(final_vector(folder.path), final_vector(plain.path))


def test_clients_that_miss_the_deadline_are_late(quick: Quick, run: Run) -> None:
    fast, middle, slow = sorted(range(3), key=seconds(quick(*SLOW)).__getitem__)
    deadline = (seconds(quick(*SLOW))[middle] + seconds(quick(*SLOW))[slow]) / 2
    folder, _ = run(quick(*SLOW, f"federation.deadline={deadline}"))
    for number, line in enumerate(folder.rounds(), start=1):
        assert (line["late"], line["clients"], line["failed"]) == ([slow], 2, [])
        assert line["virtual"] == pytest.approx(number * deadline)
    up = [json.loads(line) for line in (folder.path / "bytes.jsonl").read_text().splitlines()]
    trained = {line["client"] for line in up if line["kind"] == "train" and "up" in line}
    assert trained == {fast, middle}


def test_a_round_goes_on_with_the_first_replies(quick: Quick, run: Run) -> None:
    settings = (*SLOW, "federation.per_round=2", "federation.over_selection=1.5")
    folder, _ = run(quick(*settings))
    fast, middle, slow = sorted(range(3), key=seconds(quick(*SLOW)).__getitem__)
    for number, line in enumerate(folder.rounds(), start=1):
        assert (line["late"], line["clients"]) == ([slow], 2)
        assert line["virtual"] == pytest.approx(number * seconds(quick(*SLOW))[middle])
    assert fast not in folder.rounds()[0]["late"]


def test_a_client_that_vanishes_fails_once_it_is_noticed(quick: Quick, run: Run) -> None:
    experiment = quick(*SLOW, "devices.dropout=0.3", "seed=6")
    folder, _ = run(experiment)
    gone = [[c for c in range(3) if vanishes(experiment, number, c)] for number in (1, 2)]
    assert any(gone) and all(len(clients) < 3 for clients in gone)
    before = 0.0
    for clients, line in zip(gone, folder.rounds(), strict=True):
        assert [failure["client"] for failure in line["failed"]] == clients
        slowest = max([NOTICED] * bool(clients) + seconds(experiment))
        assert line["virtual"] - before <= slowest + 1e-9
        assert line["virtual"] - before >= NOTICED * bool(clients)
        before = line["virtual"]


def test_only_clients_within_reach_are_asked(quick: Quick, run: Run) -> None:
    experiment = quick(
        *SLOW, "devices.availability=0.4", "federation.clients=6", "federation.rounds=4"
    )
    folder, _ = run(experiment)
    asked: dict[int, set[int]] = {}
    for line in map(json.loads, (folder.path / "bytes.jsonl").read_text().splitlines()):
        if line["kind"] == "train":
            asked.setdefault(line["round"], set()).add(line["client"])
    began = 0.0
    for line in folder.rounds():
        here = reachable(experiment, began)
        while not here.any():
            began = (began // SLOT + 1) * SLOT
            here = reachable(experiment, began)
        assert asked[line["round"]] == set(np.flatnonzero(here))
        began = line["virtual"]


def test_slow_clients_send_partial_work_in_time(
    quick: Quick, run: Run, final_vector: Final
) -> None:
    alike = ("devices.step_seconds=1", "devices.spread=0.3")
    deadline = min(seconds(quick(*alike))) + 1e-6  # only the fastest does all its steps
    late = (*alike, f"federation.deadline={deadline}")
    partial, _ = run(quick(*late, "federation.partial=true"), "partial")
    for number, line in enumerate(partial.rounds(), start=1):
        assert (line["late"], line["clients"]) == ([], 3)
        assert line["virtual"] is not None
        assert line["virtual"] <= number * deadline
    without, _ = run(quick(*late), "without")
    assert [line["clients"] for line in without.rounds()] == [1, 1]
    nova, _ = run(quick(*late, "federation.partial=true", "federation.fednova=true"), "nova")
    vectors = [final_vector(each.path) for each in (partial, without, nova)]
    assert len({vector.tobytes() for vector in vectors}) == 3


def test_partial_work_that_would_end_at_the_deadline_stops_a_step_before(
    quick: Quick, run: Run
) -> None:
    equal = ("devices.step_seconds=1", "devices.spread=0", "federation.deadline=3")
    folder, _ = run(quick(*equal, "federation.partial=true"))
    assert [(line["late"], line["virtual"]) for line in folder.rounds()] == [([], 2), ([], 4)]


def test_clients_without_a_speed_cannot_be_in_time(quick: Quick, tmp_path: Path) -> None:
    for setting in ("federation.deadline=5", "federation.over_selection=1.5"):
        experiment = quick("federation.per_round=2", setting)
        with pytest.raises(UserError, match=r"set devices\.step_seconds"):
            prepare(experiment, tmp_path / "run")
    assert not (tmp_path / "run").exists()
