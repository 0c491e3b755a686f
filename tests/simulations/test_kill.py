"""`fedpeft simulate` killed at any moment goes on with --resume to the same bits."""

from __future__ import annotations

import json
import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from forked import Forked, Forks

from fedpeft.experiment.config import Experiment
from fedpeft.runs.folder import RunFolder

Quick = Callable[..., Experiment]
Run = Callable[..., tuple[RunFolder, dict[str, Any]]]
Final = Callable[[Path], np.ndarray]
Start = Callable[..., Forked]

pytestmark = pytest.mark.long
ROUNDS, PATIENCE = 12, 300  # seconds, on a machine of any speed
#: Operations on files in two rounds.
TWO_ROUNDS = 24
SIGNS = ("local.perturbations=3", "local.steps=1", "wire.up=signs")
DEVICES = ("devices.step_seconds=1", "devices.spread=1", "devices.up=900")
DEADLINE = (*DEVICES, "federation.clients=6", "federation.fraction=0.5", "federation.deadline=5")
ASYNC = (*DEVICES, "federation.clients=6", "federation.mode=async", "federation.buffer=2")
VOTES = (*SIGNS, "wire.down=scalars", "local.optimizer=sgd", "local.max_grad_norm=0")


@pytest.fixture(scope="module")
def forks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forks]:
    made = Forks(tmp_path_factory.mktemp("forks"))
    yield made
    made.end()


@pytest.fixture
def start_cli(forks: Forks, tmp_path: Path) -> Iterator[Start]:
    """Give a starter of `fedpeft simulate` in a process of its own, which prints to OUT.txt."""
    started: list[Forked] = []

    def start(
        experiment: Experiment, out: Path, *options: str, death: tuple[int, int] | None = None
    ) -> Forked:
        """Start a run that dies after so many rounds and operations on files in ``out``."""
        file = tmp_path / f"{out.name}.toml"
        file.write_text(experiment.to_toml())
        arguments = ["simulate", str(file), "--out", str(out), *options]
        dies = (str(out), *death) if death else None
        started.append(forks.start(arguments, out.with_suffix(".txt"), dies))
        return started[-1]

    yield start
    for process in started:  # none is left where a test failed
        process.kill()
        process.wait(PATIENCE)


def assert_killed(process: Forked) -> None:
    assert process.wait(PATIENCE) == -signal.SIGKILL


def lines(out: Path) -> int:
    path = out / "rounds.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def assert_equal_runs(
    out: Path, whole: RunFolder, final_vector: Final, trainings: int = ROUNDS * 2
) -> None:
    """Check bits, rounds exactly once, and that nothing temporary stays."""
    assert final_vector(out).tobytes() == final_vector(whole.path).tobytes()
    found, expected = RunFolder(out).rounds(), whole.rounds()
    assert [line["round"] for line in found] == list(range(1, ROUNDS + 1))
    for key in ("loss", "score", "clients", "failed", "late", "virtual", "metrics"):
        assert [line[key] for line in found] == [line[key] for line in expected]
    ledger = [json.loads(line) for line in (out / "bytes.jsonl").read_text().splitlines()]
    trained = [(line["round"], line["client"]) for line in ledger if line["kind"] == "train"]
    assert trained == sorted(set(trained))
    assert len(trained) == trainings
    assert not list(out.glob(".*"))
    results = [json.loads((path / "result.json").read_text()) for path in (out, whole.path)]
    assert results[0]["digests"] == results[1]["digests"]


@pytest.mark.parametrize(
    ("strategy", "settings"),
    [
        ("fedavg", ()),
        ("fedadam", ("wire.up=topk0.1", "wire.down=bfloat16")),
        ("fedavgm", ("wire.up=eden1", "wire.head=eden0.2", "wire.down=delta1")),
        ("fedmedian", SIGNS),
        ("fedmedian", VOTES),
    ],
)
def test_a_run_killed_in_the_middle_of_rounds_resumes_to_the_same_bits(
    quick: Quick,
    run: Run,
    start_cli: Start,
    final_vector: Final,
    tmp_path: Path,
    strategy: str,
    settings: tuple[str, ...],
) -> None:
    experiment = quick(
        f"federation.rounds={ROUNDS}",
        f"federation.strategy={strategy}",
        "federation.fraction=0.67",
        "partition.kind=dirichlet",
        "task.train_limit=120",
        *settings,
    )
    whole, _ = run(experiment, "whole")
    chance, out = random.Random(strategy), tmp_path / "run"
    assert_killed(start_cli(experiment, out, death=(1, 0)))  # before the checkpoint of a round
    assert lines(out) == 1
    for _ in range(2):  # anywhere within the rounds after the next
        death = (1, chance.randrange(TWO_ROUNDS))
        assert_killed(start_cli(experiment, out, "--resume", death=death))
    assert 1 <= lines(out) < ROUNDS
    assert not (out / "result.json").exists()
    process = start_cli(experiment, out, "--resume")
    assert process.wait(PATIENCE) == 0, out.with_suffix(".txt").read_text()
    assert_equal_runs(out, whole, final_vector)


@pytest.mark.parametrize(
    ("settings", "trainings"),
    [
        ((*DEADLINE, "federation.partial=true", "federation.fednova=true"), 3 * ROUNDS),
        ((*DEADLINE, "federation.over_selection=1.5"), 5 * ROUNDS),
        ((*ASYNC, "federation.fraction=0.67"), 0),
    ],
    ids=["partial", "reserve", "async"],
)
def test_a_run_with_devices_killed_at_any_time_resumes_to_the_same_bits(
    quick: Quick,
    run: Run,
    start_cli: Start,
    final_vector: Final,
    tmp_path: Path,
    settings: tuple[str, ...],
    trainings: int,
) -> None:
    experiment = quick(f"federation.rounds={ROUNDS}", *settings)
    whole, _ = run(experiment, "whole")
    chance, out = random.Random(4), tmp_path / "run"
    for options in ([], ["--resume"], ["--resume"]):
        death = (1, chance.randrange(TWO_ROUNDS))
        assert_killed(start_cli(experiment, out, *options, death=death))
    process = start_cli(experiment, out, "--resume")
    assert process.wait(PATIENCE) == 0, out.with_suffix(".txt").read_text()
    if not trainings:  # a request that is repeated counts in both of its rounds
        ledger = [json.loads(line) for line in (out / "bytes.jsonl").read_text().splitlines()]
        trainings = sum(line["kind"] == "train" for line in ledger)
    assert_equal_runs(out, whole, final_vector, trainings)


def test_a_run_killed_at_any_time_resumes_to_the_same_bits(
    quick: Quick, run: Run, start_cli: Start, final_vector: Final, tmp_path: Path
) -> None:
    experiment = quick(f"federation.rounds={ROUNDS}", "federation.fraction=0.67")
    whole, _ = run(experiment, "whole")
    out = tmp_path / "run"
    for operations in (0, 1, 2, 3, 5, 8, 13, 21, 34):  # most while the folder is made
        options = ["--resume"] if (out / "experiment.toml").exists() else []
        assert_killed(start_cli(experiment, out, *options, death=(0, operations)))
    options = ["--resume"] if (out / "experiment.toml").exists() else []
    assert start_cli(experiment, out, *options).wait(PATIENCE) == 0
    assert_equal_runs(out, whole, final_vector)


def test_ctrl_c_says_how_to_continue(quick: Quick, start_cli: Start, tmp_path: Path) -> None:
    out = tmp_path / "run"
    process = start_cli(quick("federation.rounds=100000"), out)
    deadline = time.monotonic() + PATIENCE
    while not lines(out):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    assert process.wait(PATIENCE) == 130
    printed = out.with_suffix(".txt").read_text()
    assert f"interrupted; fedpeft simulate --out {out} --resume continues the run" in printed
    assert "Traceback" not in printed
