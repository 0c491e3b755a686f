"""Metrics come from the files of the runs and stay few, whatever the folder holds."""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from finished import finished_run
from prometheus_client.parser import text_string_to_metric_families
from servers import server_folder

from deployment.hosting.child import Child
from deployment.hosting.processes import Supervisor
from deployment.hosting.timing import Timing
from deployment.server.folder import ServerFolder
from deployment.server.metrics import Metrics, watched_runs

ROUNDS = 2


@pytest.fixture
def state(tmp_path: Path) -> ServerFolder:
    return server_folder(tmp_path)


def supervisor(seconds: int = 1) -> Supervisor:
    child = Child("superlink", ["sleep", str(seconds)])
    return Supervisor([child], logging.getLogger("test"), Timing().scaled(0.1))


def scrape(state: ServerFolder) -> dict[str, dict[str, float]]:
    """Return all samples: name -> labels, as one text -> value."""
    text = Metrics(state.path, state.connection(), supervisor()).text().decode()
    found: dict[str, dict[str, float]] = {}
    for family in text_string_to_metric_families(text):
        assert family.documentation.endswith("."), family.name
        for sample in family.samples:
            labels = " ".join(f"{key}={value}" for key, value in sorted(sample.labels.items()))
            found.setdefault(sample.name, {})[labels] = sample.value
    return found


def add_run(state: ServerFolder, name: str, age: float = 0, finished: bool = True) -> Path:
    """Copy a finished run of two rounds into the state folder, changed ``age`` seconds ago."""
    folder = state.path / "runs" / name
    shutil.copytree(finished_run("method.d=16", f"federation.rounds={ROUNDS}"), folder)
    if not finished:
        (folder / "result.json").unlink()
    then = datetime.now().timestamp() - age
    os.utime(folder, (then, then))
    return folder


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]


def node(number: int, last_seen: str) -> dict[str, Any]:
    return {"client": 0, "node_id": number, "name": "", "examples": 9, "last_seen": last_seen}


def test_server_that_is_down_has_no_metrics_of_runs_and_nodes(state: ServerFolder) -> None:
    found = scrape(state)
    assert found["fedpeft_up"] == {"": 0}
    assert found["fedpeft_child_up"] == {"child=superlink": 0}
    assert found["fedpeft_child_restarts_total"] == {"child=superlink": 0}
    assert found["fedpeft_registered_nodes"] == {"": 0}
    assert not any(name.startswith("fedpeft_run") for name in found)


def test_restarts_come_from_the_supervisor(state: ServerFolder) -> None:
    running = supervisor(seconds=60)
    metrics, ready = Metrics(state.path, state.connection(), running), threading.Event()
    thread = threading.Thread(target=running.run, args=(ready.set,))
    thread.start()
    try:
        assert ready.wait(60)
        os.kill(running.pids["superlink"], signal.SIGKILL)
        while not (running.restarts["superlink"] and running.children()["superlink"]["answers"]):
            time.sleep(0.05)
        text = metrics.text().decode()
    finally:
        running.stop()
        thread.join()
    assert 'fedpeft_child_restarts_total{child="superlink"} 1.0' in text
    assert 'fedpeft_child_up{child="superlink"} 1.0' in text


def test_metrics_of_a_run_come_from_its_files(state: ServerFolder) -> None:
    folder = add_run(state, "first")
    last, result = lines(folder)[-1], json.loads((folder / "result.json").read_text())
    found = scrape(state)
    expected = {
        "round": ROUNDS,
        "rounds_wanted": ROUNDS,
        "clients": 2,
        "failed_clients": 0,
        "score": result["score"],
        "round_seconds": last["seconds"],
    }
    for name, value in expected.items():
        assert found[f"fedpeft_run_{name}"] == {"run=first": pytest.approx(value)}, name
    assert "fedpeft_run_epsilon" not in found  # no privacy unit
    for kind in ("train", "evaluate", "handshake"):
        for way in ("up", "down"):
            sizes = result["bytes"] if kind == "train" else result["bytes"][kind]
            labels = f"direction={way} kind={kind} run=first"
            assert found["fedpeft_run_bytes_total"][labels] == sizes[way]["message"]
    assert found["fedpeft_run_bytes_total"]["direction=up kind=train run=first"] > 0


def test_failures_epsilon_and_a_torn_line(state: ServerFolder) -> None:
    folder = add_run(state, "first", finished=False)
    first, second = lines(folder)
    second |= {"epsilon": 1.5, "score": None, "failed": [{"client": 1, "reason": "secret words"}]}
    torn = '{"round": 3, "clie'
    (folder / "rounds.jsonl").write_text("\n".join([json.dumps(first), json.dumps(second), torn]))
    found = scrape(state)
    assert found["fedpeft_run_epsilon"] == {"run=first": 1.5}
    assert found["fedpeft_run_failed_clients"] == {"run=first": 1}
    assert found["fedpeft_run_score"] == {"run=first": pytest.approx(first["score"])}
    assert found["fedpeft_run_round"] == {"run=first": 2}
    assert "secret words" not in str(found)


def test_run_before_its_first_round_has_round_0(state: ServerFolder) -> None:
    folder = add_run(state, "new", finished=False)
    (folder / "rounds.jsonl").unlink()
    found = scrape(state)
    assert found["fedpeft_run_rounds_wanted"] == {"run=new": ROUNDS}
    assert found["fedpeft_run_round"] == {"run=new": 0}
    assert "fedpeft_run_clients" not in found


def test_changed_run_is_read_again(state: ServerFolder) -> None:
    folder = add_run(state, "first", finished=False)
    metrics = Metrics(state.path, state.connection(), supervisor())
    assert b'fedpeft_run_round{run="first"} 2.0' in metrics.text()
    kept = metrics.text()
    with open(folder / "rounds.jsonl", "a") as file:
        file.write(json.dumps(lines(folder)[-1] | {"round": 3}) + "\n")
    again = metrics.text()
    assert b'fedpeft_run_round{run="first"} 3.0' in again
    sent = 'fedpeft_run_bytes_total{direction="up",kind="train",run="first"}'
    first, more = (
        [x for x in text.decode().splitlines() if x.startswith(sent)] for text in (kept, again)
    )
    assert len(first) == len(more) == 1 and first != more


def test_a_damaged_run_does_not_hide_the_others(state: ServerFolder) -> None:
    add_run(state, "good", age=5, finished=False)
    bad = add_run(state, "bad")
    (bad / "rounds.jsonl").write_text("no JSON\n")
    assert scrape(state)["fedpeft_run_round"] == {"run=good": ROUNDS}


def test_latest_and_unfinished_runs_are_watched_at_most_ten(state: ServerFolder) -> None:
    add_run(state, "old", age=100)
    add_run(state, "going", age=90, finished=False)
    failed = add_run(state, "failed", age=80, finished=False)
    (failed / "ended.json").write_text('{"ok": false, "reason": "why"}')
    os.utime(failed, (0, 0))
    add_run(state, "latest", age=10)
    (state.path / "runs" / "none").mkdir()
    assert [folder.name for folder in watched_runs(state.path)] == ["going", "latest"]
    for number in range(12):
        add_run(state, f"more{number}", finished=False)
    assert len(watched_runs(state.path)) == 10
    assert len(scrape(state)["fedpeft_run_round"]) == 10


def test_metrics_of_nodes_are_of_registered_nodes(state: ServerFolder) -> None:
    seen = (datetime.now(UTC) - timedelta(seconds=100)).isoformat(timespec="seconds")
    registry = [
        {"name": name, "node_id": number, "public_key_sha256": "0", "added": seen}
        for number, name in enumerate(("a", "b", "c"))
    ]
    (state.path / "nodes.json").write_text(json.dumps(registry))
    folder = add_run(state, "first")
    entries = [node(0, seen), node(1, ""), node(5, seen)]
    (folder / "roster.json").write_text(json.dumps({"nodes": entries}))
    found = scrape(state)
    assert found["fedpeft_registered_nodes"] == {"": 3}
    assert found["fedpeft_node_last_seen_seconds"] == {"node=a": pytest.approx(100, abs=5)}
    assert "fedpeft_node_online" not in found  # unknown while the SuperLink is down


def test_two_servers_in_one_process_share_nothing(state: ServerFolder, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other = server_folder(tmp_path / "other")
    add_run(other, "theirs")
    assert "fedpeft_run_round" not in scrape(state)
    assert scrape(other)["fedpeft_run_round"] == {"run=theirs": ROUNDS}
