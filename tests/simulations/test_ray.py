"""The grid of the Ray engine: cohorts, the state of nodes, and actors that die or hang."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message, RecordDict

from deployment.processes import command_line, descendants
from fedpeft.errors import RunFailed
from fedpeft.experiment.config import Experiment
from fedpeft.runs.folder import RunFolder
from simulations.engines.ray import RayGrid, running_ray

Quick = Callable[..., Experiment]
Run = Callable[..., tuple[RunFolder, dict[str, Any]]]
Start = Callable[..., Any]
Final = Callable[[Path], np.ndarray]
ACTOR = "ray::ClientActor"  # title of the process of an actor

pytestmark = [
    pytest.mark.long,
    # Ray leaves files of its own to the garbage collector, in this process too.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


@pytest.fixture(scope="module")
def ray() -> Iterator[None]:
    """Run Ray with two CPUs; its actors import what lies beside this file."""
    pytest.importorskip("ray")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
        with running_ray(2):
            yield


def grid_of(nodes: int, cohort: int = 1, workers: int = 2) -> RayGrid:
    return RayGrid([{}] * nodes, cohort, workers, module="frail")


def push(grid: RayGrid, orders: dict[int, str], mark: Path | None = None) -> list[str]:
    """Send each node, counted from 0, what to do."""
    nodes = grid.get_node_ids()
    return grid.push_messages(
        Message(
            RecordDict({"order": ConfigRecord({"do": order, "mark": str(mark)})}),
            dst_node_id=nodes[place],
            message_type="train",
        )
        for place, order in orders.items()
    )


def pull_all(grid: RayGrid, sent: list[str], seconds: float = 300.0) -> list[Message]:
    """Return the replies in the order of the messages."""
    by_id: dict[str, Message] = {}
    deadline = time.monotonic() + seconds
    while len(by_id) < len(sent):
        assert time.monotonic() < deadline, f"{len(by_id)} of {len(sent)} replies"
        for reply in grid.pull_messages(
            [message_id for message_id in sent if message_id not in by_id]
        ):
            by_id[reply.metadata.reply_to_message_id] = reply
    return [by_id[message_id] for message_id in sent]


def test_actors_work_side_by_side_and_state_stays_with_the_node(ray: None) -> None:
    grid = grid_of(4)
    pids, nodes = set(), grid.get_node_ids()
    for asked in (1, 2, 3):
        replies = pull_all(grid, push(grid, dict.fromkeys(range(4), "answer")))
        assert [reply.metadata.src_node_id for reply in replies] == nodes
        assert [reply.content["count"]["asked"] for reply in replies] == [asked] * 4
        pids |= {reply.content["count"]["pid"] for reply in replies}
    assert len(pids) == 2
    assert os.getpid() not in pids
    for pid in pids:  # or a busy machine would leave the actors no time
        assert os.getpriority(os.PRIO_PROCESS, pid) == os.getpriority(os.PRIO_PROCESS, 0)


def test_messages_are_answered_in_cohorts(ray: None) -> None:
    grid = grid_of(5, cohort=2)
    replies = pull_all(grid, push(grid, dict.fromkeys(range(5), "answer")))
    sizes = [reply.content.get("cohort", {"size": 1})["size"] for reply in replies]
    assert sizes == [2, 2, 2, 2, 1]
    counts = [reply.content["count"] for reply in replies]
    assert counts[0]["pid"] == counts[1]["pid"] and counts[2]["pid"] == counts[3]["pid"]


def test_a_cohort_whose_actor_dies_is_trained_again(ray: None, tmp_path: Path) -> None:
    grid = grid_of(4, cohort=2)
    orders = {0: "answer", 1: "answer", 2: "answer", 3: "die once"}
    replies = pull_all(grid, push(grid, orders, tmp_path / "died"))
    assert (tmp_path / "died").exists()
    assert [reply.content["count"]["asked"] for reply in replies] == [1, 1, 1, 1]
    assert [reply.content["cohort"]["size"] for reply in replies] == [2, 2, 2, 2]


def test_a_client_that_kills_every_actor_fails_alone(ray: None) -> None:
    grid = grid_of(4)
    orders = {0: "answer", 1: "die", 2: "raise", 3: "answer"}
    replies = pull_all(grid, push(grid, orders))
    assert [reply.has_error() for reply in replies] == [False, True, True, False]
    assert replies[1].error.reason == "the client's process died"
    assert "secret" not in replies[2].error.reason
    assert all(reply.error.code == 2 for reply in replies[1:3])
    again = grid.send_and_receive(
        Message(
            RecordDict({"order": ConfigRecord({"do": "answer"})}),
            dst_node_id=node,
            message_type="evaluate",
        )
        for node in grid.get_node_ids()
    )
    assert [reply.content["count"]["asked"] for reply in again] == [2, 1, 1, 2]


def test_a_cohort_that_raises_leaves_its_actor_running(ray: None) -> None:
    grid = grid_of(2, cohort=2, workers=1)
    [first, _] = pull_all(grid, push(grid, dict.fromkeys(range(2), "answer")))
    failed = pull_all(grid, push(grid, {0: "answer", 1: "raise"}))
    assert [reply.error.reason for reply in failed] == ["ValueError", "ValueError"]
    [again, _] = pull_all(grid, push(grid, dict.fromkeys(range(2), "answer")))
    assert again.content["count"]["pid"] == first.content["count"]["pid"]


def test_actors_that_cannot_start_fail_the_run(ray: None) -> None:
    with pytest.raises(RunFailed, match=r"did not start: ModuleNotFoundError: .*no_such_module"):
        RayGrid([{}], 1, 1, module="no_such_module")


def test_an_actor_that_hangs_is_ended_after_its_round(ray: None) -> None:
    """As after a round's timeout: the actor that hangs is free for the next round."""
    grid = grid_of(2, workers=1)
    assert grid.pull_messages(push(grid, {0: "hang"})) == []
    [reply] = pull_all(grid, push(grid, {1: "answer"}))
    assert reply.content["count"]["asked"] == 1


def test_a_run_whose_actor_is_killed_ends_in_the_same_vector(
    quick: Quick, run: Run, start_cli: Start, final_vector: Final, tmp_path: Path
) -> None:
    uneven = (
        "task.train_limit=120",
        "federation.clients=5",
        "partition.kind=dirichlet",
        "engine.cohort=2",
    )
    long = ("federation.rounds=6", "local.epochs=20", *uneven)
    on_ray = ("engine.kind=ray", "engine.workers=2")
    out = tmp_path / "ray"
    process = start_cli(quick(*long, *on_ray), out)
    while not (out / "rounds.jsonl").exists():
        assert process.poll() is None, out.with_suffix(".txt").read_text()
        time.sleep(0.02)
    actor = next(pid for pid in descendants(process.pid) if ACTOR in command_line(pid))
    os.kill(actor, signal.SIGSTOP)  # the run goes on to where it waits for this actor
    time.sleep(3)
    killed = len(RunFolder(out).rounds())
    os.kill(actor, signal.SIGKILL)
    assert process.wait(300) == 0, out.with_suffix(".txt").read_text()
    assert 1 <= killed < 6
    local, _ = run(quick(*long), "local")
    assert [line["failed"] for line in RunFolder(out).rounds()] == [[]] * 6
    assert final_vector(out).tobytes() == final_vector(local.path).tobytes()


GUARDED = """
import os, subprocess, sys
import fedpeft.cli.app, simulations.simulation, simulations.study.ray
from simulations.engines.ray import running_ray
with running_ray(1):
    import ray
    at = ray.get_runtime_context().gcs_address
    visit = f"import ray; ray.init({at!r}); print(ray.get(ray.remote(lambda: 5).remote()))"
    for token in ("", "0" * 64, os.environ["RAY_AUTH_TOKEN"]):
        known = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token}
        mode = known if token else {"RAY_AUTH_MODE": "disabled", "RAY_AUTH_TOKEN": ""}
        visitor = {**os.environ, **mode, "RAY_NUM_REDIS_GET_RETRIES": "2"}
        command = [sys.executable, "-c", visit]
        done = subprocess.run(command, env=visitor, capture_output=True, text=True, timeout=300)
        print(done.stdout.strip(), "InvalidAuthToken" in done.stderr)
"""


@pytest.mark.parametrize("address", [{}, {"RAY_ADDRESS": "local"}])
def test_a_ray_that_was_started_here_refuses_clients_without_its_token(
    address: dict[str, str],
) -> None:
    pytest.importorskip("ray")
    clean = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    command = [sys.executable, "-c", GUARDED]
    started = {**clean, **address}
    done = subprocess.run(command, env=started, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [" True", " True", "5 False"]
