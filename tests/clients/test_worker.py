"""The resident worker as a process: what it holds, what it survives, how it ends."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from workers import (
    connected_to,
    eventually,
    handshake,
    logged,
    node_context,
    running_worker,
    same_time,
    start_worker,
    state_folder,
)

from clients import relay
from clients.channel import ask, is_listening
from clients.flower import context_to_wire, to_wire
from clients.state import log_path, socket_path
from fedpeft.config import Experiment

pytestmark = pytest.mark.slow  # each starts a process that imports torch
Quick = Callable[..., Experiment]


def waits(state: Path) -> bool:
    return any("waiting for messages" in line for line in logged(state))


def test_it_loads_the_backbones_of_the_node_and_says_so(tmp_path: Path) -> None:
    state = state_folder(tmp_path / "state", allow=("tiny", "/no/such/folder"))
    with running_worker(state):
        eventually(lambda: waits(state))
    lines = logged(state)
    assert any(
        line.startswith("backbone '/no/such/folder' is not loaded: UserError") for line in lines
    )
    assert lines[-1].endswith("with tiny")


def test_who_asks_while_it_loads_waits_and_is_answered(tmp_path: Path, quick: Quick) -> None:
    state = state_folder(tmp_path / "state")
    with running_worker(state):
        context = node_context(state)
        assert relay.app(handshake(quick()), context).has_content()
    lines = logged(state)
    assert any(line.startswith("waiting for messages") for line in lines[:-1])
    assert lines[-1].startswith("query.handshake: done in")
    run = json.loads(log_path(state).read_text().splitlines()[-1])["run"]
    assert run is not None and run.isdecimal()


def test_a_broken_request_is_dropped_and_the_next_is_answered(tmp_path: Path, quick: Quick) -> None:
    state = state_folder(tmp_path / "state")
    with running_worker(state) as worker:
        with pytest.raises(OSError):
            ask(socket_path(state), (b"\xff secret", b"\xff"), 30)
        with connected_to(state) as connection:
            connection.sendall(b"GET / HTTP/1.1\r\n\r\n")
        context = node_context(state)
        with connected_to(state) as connection:  # one that is killed before its answer comes
            for part in (to_wire(handshake(quick())), context_to_wire(context)):
                connection.sendall(len(part).to_bytes(8, "big") + part)
        assert relay.app(handshake(quick()), context).has_content()
        assert worker.poll() is None
    lines = logged(state)
    assert sum("a request is dropped" in line for line in lines) == 3
    assert not any("secret" in line for line in lines)


def test_sigterm_ends_it_at_once_and_the_next_takes_its_place(tmp_path: Path, quick: Quick) -> None:
    state, experiment = state_folder(tmp_path / "state"), quick()
    asked = handshake(experiment)
    with running_worker(state) as worker:
        first = same_time(relay.app(asked, node_context(state)))
        worker.send_signal(signal.SIGTERM)
        begun = time.monotonic()
        worker.wait(timeout=10)
        assert time.monotonic() - begun < 5
    assert not is_listening(socket_path(state))
    with running_worker(state):
        context = node_context(state)
        context.run_id = asked.metadata.run_id
        assert same_time(relay.app(asked, context)) == first
    assert sum("query.handshake: done" in line for line in logged(state)) == 2


def test_a_second_worker_is_refused(tmp_path: Path) -> None:
    state = state_folder(tmp_path / "state")
    with running_worker(state):
        assert start_worker(state).wait(timeout=180) == 1
        assert is_listening(socket_path(state))
    assert any("another process answers there already" in line for line in logged(state))
