"""A Ray cluster of two machines that loses one: runs and studies go on where actors live."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from small_studies import GRID, Watched, here

from deployment.processes import command_line, descendants, kill
from fedpeft.experiment.config import Experiment
from fedpeft.runs.folder import RunFolder
from simulations.engines.ray import RayGrid, running_ray
from simulations.study.cell_process import Job
from simulations.study.execution import run_study
from simulations.study.folder import StudyFolder
from simulations.study.ray import run_on_ray

Quick = Callable[..., Experiment]
Run = Callable[..., tuple[RunFolder, dict[str, Any]]]
Start = Callable[..., Any]
Final = Callable[[Path], np.ndarray]
PATIENCE = 300.0

pytestmark = [
    pytest.mark.long,
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Two machines with one CPU each, as processes of this one; RAY_ADDRESS names them."""
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    try:
        made.second = made.add_node(num_cpus=1)
        made.wait_for_nodes()
        monkeypatch.setenv("RAY_ADDRESS", made.address)
        yield made
    finally:
        made.shutdown()


def lose(cluster: Any) -> None:
    """Kill the second machine, and its workers with it: alone, they would see it only later."""
    [raylet] = cluster.second.all_processes["raylet"]
    workers = descendants(raylet.process.pid)
    cluster.remove_node(cluster.second, allow_graceful=False)
    for worker in workers:
        kill(worker)


def push(grid: RayGrid, order: str, mark: Path) -> list[str]:
    return grid.push_messages(
        Message(
            RecordDict({"order": ConfigRecord({"do": order, "mark": str(mark)})}),
            dst_node_id=node,
            message_type="train",
        )
        for node in grid.get_node_ids()
    )


def until(true: Callable[[], object], grid: RayGrid) -> None:
    """Let the grid work until something is true."""
    limit = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < limit, "did not happen"
        grid.pull_messages([])


def pull_all(grid: RayGrid, sent: list[str]) -> list[Message]:
    by_id: dict[str, Message] = {}
    limit = time.monotonic() + PATIENCE
    while len(by_id) < len(sent):
        assert time.monotonic() < limit, f"{len(by_id)} of {len(sent)} replies"
        for reply in grid.pull_messages([each for each in sent if each not in by_id]):
            by_id[reply.metadata.reply_to_message_id] = reply
    return [by_id[each] for each in sent]


def test_a_round_goes_on_without_a_lost_machine_and_uses_one_that_comes(
    cluster: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    mark = tmp_path / "go"
    with running_ray(2):
        grid = RayGrid([{}] * 4, 1, 2, module="frail")
        sent = push(grid, "wait", mark)
        assert grid.pull_messages(sent) == []  # both actors are at work
        lose(cluster)
        mark.touch()
        replies = pull_all(grid, sent)
        assert [reply.content["count"]["asked"] for reply in replies] == [1] * 4
        assert len({reply.content["count"]["pid"] for reply in replies[2:]}) == 1
        assert "is lost): 1 of 2 work" in caplog.text
        cluster.add_node(num_cpus=1)
        until(lambda: "an actor has started: 2 of 2 work" in caplog.text, grid)
        again = pull_all(grid, push(grid, "answer", mark))
        assert [reply.content["count"]["asked"] for reply in again] == [2] * 4


def test_a_run_starts_with_the_actors_that_can(
    cluster: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("simulations.engines.actors._OTHERS", 1.0)
    lose(cluster)
    with running_ray(2):
        grid = RayGrid([{}] * 2, 1, 2, module="frail")
        assert "1 of 2 actors work" in caplog.text
        assert len(pull_all(grid, push(grid, "answer", tmp_path))) == 2


def test_a_run_that_loses_a_machine_ends_in_the_same_vector(
    cluster: Any, quick: Quick, run: Run, start_cli: Start, final_vector: Final, tmp_path: Path
) -> None:
    long = ("federation.rounds=6", "local.epochs=20", "federation.clients=4", "engine.cohort=1")
    out = tmp_path / "ray"
    process = start_cli(quick(*long, "engine.kind=ray", "engine.workers=2"), out)
    while not (out / "rounds.jsonl").exists():
        assert process.poll() is None, out.with_suffix(".txt").read_text()
        time.sleep(0.02)
    lose(cluster)
    assert process.wait(PATIENCE) == 0, out.with_suffix(".txt").read_text()
    assert "is lost): 1 of 2 work" in out.with_suffix(".txt").read_text()
    local, _ = run(quick(*long), "local")
    assert [line["failed"] for line in RunFolder(out).rounds()] == [[]] * 6
    assert final_vector(out).tobytes() == final_vector(local.path).tobytes()


def test_a_study_does_the_cells_of_a_lost_machine_elsewhere(cluster: Any, tmp_path: Path) -> None:
    text = GRID.replace("rounds = 2", "rounds = 30")
    local = StudyFolder.create(tmp_path / "local", text, False)
    run_study(local, local.plan(), here, Watched())
    folder = StudyFolder.create(tmp_path / "ray", text, False)
    begun: list[Job] = []

    def strike_once(jobs: Any, started: Any) -> Any:
        def note(job: Job) -> None:
            begun.append(job)
            if len(begun) == 3:  # one cell has ended, two actors are at work
                lose(cluster)

        return run_on_ray(jobs, note, count=2)

    outcomes = run_study(folder, folder.plan(), strike_once, Watched())
    assert not outcomes.failed
    for name in ("table.csv", "table.parquet"):
        assert (folder.path / name).read_bytes() == (local.path / name).read_bytes()


def test_sigterm_ends_a_run_on_ray_with_one_line(
    quick: Quick, start_cli: Start, tmp_path: Path
) -> None:
    pytest.importorskip("ray")
    out = tmp_path / "ray"
    long = ("federation.rounds=600", "engine.kind=ray", "engine.workers=1")
    process = start_cli(quick(*long), out)
    while not (out / "rounds.jsonl").exists():
        assert process.poll() is None, out.with_suffix(".txt").read_text()
        time.sleep(0.02)
    below = descendants(process.pid)
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE) in (130, 143)
    printed = out.with_suffix(".txt").read_text()
    assert "stack" not in printed.lower() and "Traceback" not in printed, printed
    limit = time.monotonic() + PATIENCE
    while any("ray" in command_line(pid) for pid in below):
        assert time.monotonic() < limit, "Ray goes on"
        time.sleep(0.1)
