"""Ray actors that train cohorts: the local engine's bits, and no end when an actor dies."""

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

from fedpeft.config import Experiment
from fedpeft.errors import RunFailed
from server.runfolder import RunFolder
from simulations.actors import ActorGrid, running_ray

Quick = Callable[..., Experiment]
Run = Callable[..., tuple[RunFolder, dict[str, Any]]]
Final = Callable[[Path], np.ndarray]
ACTORS = ("engine.kind=actors", "engine.workers=2")
PRIVATE = ("privacy.unit=both", "privacy.noise_multiplier=1", "privacy.reproducible=true")
UNEVEN = ("federation.clients=5", "partition.kind=dirichlet", "engine.cohort=2")

pytestmark = [
    pytest.mark.slow,
    # Ray leaves files of its own to the garbage collector, in this process too.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


@pytest.fixture(scope="module")
def ray() -> Iterator[None]:
    """Run Ray with two CPUs; its actors import what lies beside this file."""
    pytest.importorskip("ray")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parent))
        with running_ray(2):
            yield


def grid_of(nodes: int, cohort: int = 1, workers: int = 2) -> ActorGrid:
    return ActorGrid([{}] * nodes, cohort, workers, module="frail")


def push(grid: ActorGrid, orders: dict[int, str], mark: Path | None = None) -> list[str]:
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


def pull_all(grid: ActorGrid, sent: list[str], seconds: float = 120.0) -> list[Message]:
    """Return the replies in the order of the messages."""
    found: dict[str, Message] = {}
    deadline = time.monotonic() + seconds
    while len(found) < len(sent):
        assert time.monotonic() < deadline, f"{len(found)} of {len(sent)} replies"
        for reply in grid.pull_messages([each for each in sent if each not in found]):
            found[reply.metadata.reply_to_message_id] = reply
    return [found[each] for each in sent]


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


def test_messages_are_answered_in_cohorts(ray: None) -> None:
    grid = grid_of(5, cohort=2)
    replies = pull_all(grid, push(grid, dict.fromkeys(range(5), "answer")))
    sizes = [reply.content.get("cohort", {"size": 1})["size"] for reply in replies]
    assert sizes == [2, 2, 2, 2, 1]
    counts = [reply.content["count"] for reply in replies]
    assert counts[0]["pid"] == counts[1]["pid"] and counts[2]["pid"] == counts[3]["pid"]


def test_a_cohort_whose_actor_dies_is_done_again(ray: None, tmp_path: Path) -> None:
    grid = grid_of(4, cohort=2)
    orders = {0: "answer", 1: "answer", 2: "answer", 3: "die once"}
    replies = pull_all(grid, push(grid, orders, tmp_path / "died"))
    assert (tmp_path / "died").exists()
    assert [reply.content["count"]["asked"] for reply in replies] == [1, 1, 1, 1]
    assert [reply.content["cohort"]["size"] for reply in replies] == [2, 2, 2, 2]


def test_who_kills_every_actor_fails_and_the_others_do_not(ray: None) -> None:
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


def test_a_cohort_that_fails_as_a_whole_costs_no_actor(ray: None) -> None:
    grid = grid_of(2, cohort=2, workers=1)
    [first, _] = pull_all(grid, push(grid, dict.fromkeys(range(2), "answer")))
    failed = pull_all(grid, push(grid, {0: "answer", 1: "raise"}))
    assert [reply.error.reason for reply in failed] == ["ValueError", "ValueError"]
    [again, _] = pull_all(grid, push(grid, dict.fromkeys(range(2), "answer")))
    assert again.content["count"]["pid"] == first.content["count"]["pid"]


def test_actors_that_cannot_start_fail_the_run(ray: None) -> None:
    with pytest.raises(RunFailed, match=r"does not start: ModuleNotFoundError: .*no_such_module"):
        ActorGrid([{}], 1, 1, module="no_such_module")


def test_what_nobody_waits_for_any_more_is_ended(ray: None) -> None:
    """As after a round's timeout: the actor that hangs is free for the next round."""
    grid = grid_of(2, workers=1)
    assert grid.pull_messages(push(grid, {0: "hang"})) == []
    [reply] = pull_all(grid, push(grid, {1: "answer"}), seconds=60)
    assert reply.content["count"]["asked"] == 1


@pytest.mark.parametrize("settings", [UNEVEN, (*UNEVEN, "federation.evaluation=clients", *PRIVATE)])
def test_actors_equal_local_to_the_bit(
    quick: Quick,
    run: Run,
    start_cli: Callable[..., Any],
    final_vector: Final,
    tmp_path: Path,
    settings: tuple[str, ...],
) -> None:
    pytest.importorskip("ray")
    local, _ = run(quick("federation.rounds=3", *settings), "local")
    out = tmp_path / "actors"
    process = start_cli(quick("federation.rounds=3", *settings, *ACTORS), out)
    assert process.wait(300) == 0, out.with_suffix(".txt").read_text()
    assert final_vector(out).tobytes() == final_vector(local.path).tobytes()
    for line, twin in zip(RunFolder(out).rounds(), local.rounds(), strict=True):
        for key in ("round", "clients", "failed", "loss", "score", "metrics", "privacy"):
            assert line[key] == twin[key], key
        for way in ("up", "down"):  # the handshake's carries the settings, which differ
            assert line["bytes"][way] == twin["bytes"][way]


def test_an_actor_killed_in_a_round_changes_nothing(
    quick: Quick, run: Run, start_cli: Callable[..., Any], final_vector: Final, tmp_path: Path
) -> None:
    pytest.importorskip("ray")
    long = ("federation.rounds=6", "local.epochs=20", *UNEVEN)
    out = tmp_path / "actors"
    process = start_cli(quick(*long, *ACTORS), out)
    killed = None
    while process.poll() is None and not killed:
        begun = (out / "rounds.jsonl").exists()
        busy = [pid for pid in below(process.pid) if title(pid).startswith("ray::Worker.answer")]
        if begun and busy:
            os.kill(busy[0], signal.SIGKILL)
            killed = len(RunFolder(out).rounds())
        time.sleep(0.02)
    assert process.wait(300) == 0, out.with_suffix(".txt").read_text()
    assert killed is not None and 1 <= killed < 6
    local, _ = run(quick(*long), "local")
    assert [line["failed"] for line in RunFolder(out).rounds()] == [[]] * 6
    assert final_vector(out).tobytes() == final_vector(local.path).tobytes()


def below(pid: int) -> list[int]:
    """Return a process's children and theirs."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue
    found, new = [], [pid]
    while new:
        new = [child for child, parent in parents.items() if parent in new]
        found += new
    return found


def title(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""
