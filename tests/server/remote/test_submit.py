"""A run is given to a real SuperLink, asked after, and ended."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from servers import server_app_shim, server_state, superlink

from fedpeft.config import Experiment
from fedpeft.errors import UserError
from server.host.state import ServerState
from server.remote.connection import Connection
from server.remote.flwr_cli import NoSuperLink, UnknownRun
from server.remote.submit import Status, status, stop, submit
from server.runfolder import RunFolder

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerState]:
    """A server whose SuperLink starts server apps."""
    folder = tmp_path_factory.mktemp("server")
    made = server_state(folder)
    with superlink(made, server_app_shim(folder)):
        yield made


def wait(connection: Connection, run: str, until: Callable[[Status], bool]) -> Status:
    end = time.monotonic() + 60
    while not until(found := status(connection, run)):
        assert time.monotonic() < end, found
    return found


def test_a_run_arrives_with_its_settings_and_can_be_stopped(
    state: ServerState, quick: Callable[..., Experiment]
) -> None:
    experiment = quick("federation.node_wait=300")
    connection = state.connection()
    run = submit(connection, experiment, "stopped-1.0_x", resume=False)
    assert run.isdecimal()
    assert status(connection, run).state in ("pending", "starting", "running")
    folder = state.path / "runs" / "stopped-1.0_x"
    wait(connection, run, lambda _: (folder / "experiment.toml").exists())
    assert Experiment.read(folder / "experiment.toml") == experiment
    stop(connection, run)
    assert wait(connection, run, lambda found: found.finished) == Status("finished", "stopped")
    with pytest.raises(UserError, match="Flower refused 'flwr stop': "):
        stop(connection, run)


def test_why_a_run_failed_is_known(
    state: ServerState, quick: Callable[..., Experiment], tmp_path: Path
) -> None:
    RunFolder.create(state.path / "runs" / "taken", quick())
    run = submit(state.connection(), quick(), "taken", resume=False)
    found = wait(state.connection(), run, lambda found: found.finished)
    assert found.end == "failed"
    assert "taken' holds this run, unfinished; add --resume" in found.details


def test_a_server_that_is_not_there_is_one_line(
    state: ServerState, quick: Callable[..., Experiment]
) -> None:
    nobody = replace(state.connection(), control="127.0.0.1:1")
    with pytest.raises(NoSuperLink, match=r"answers at 127.0.0.1:1; .* tunnel"):
        submit(nobody, quick(), "run", resume=False)
    with pytest.raises(UnknownRun, match="Flower refused 'flwr ls': "):
        status(state.connection(), "12345")


def test_a_server_with_another_authority_gets_nothing(
    state: ServerState, quick: Callable[..., Experiment], tmp_path: Path
) -> None:
    other = replace(state.connection(), ca=server_state(tmp_path).ca)
    with pytest.raises(NoSuperLink):
        submit(other, quick(), "run", resume=False)
