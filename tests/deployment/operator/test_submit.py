"""Submitting a run to a real SuperLink, asking for its status, and stopping it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from servers import server_app_shim, server_folder, superlink

from deployment.operator.connection import Connection
from deployment.operator.flwr_cli import NoSuperLink, UnknownRun
from deployment.operator.submit import Status, status, stop, submit
from deployment.server.folder import ServerFolder
from fedpeft.errors import UserError
from fedpeft.experiment.config import Experiment
from fedpeft.runs.folder import RunFolder

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerFolder]:
    """A server whose SuperLink starts server apps."""
    folder = tmp_path_factory.mktemp("server")
    made = server_folder(folder)
    with superlink(made, server_app_shim(folder)):
        yield made


def wait(connection: Connection, run: str, until: Callable[[Status], bool]) -> Status:
    end = time.monotonic() + 240
    while not until(found := status(connection, run)):
        assert time.monotonic() < end, found
    return found


def test_a_run_arrives_with_its_settings_and_can_be_stopped(
    state: ServerFolder, quick: Callable[..., Experiment]
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


def test_status_holds_the_reason_of_a_failed_run(
    state: ServerFolder, quick: Callable[..., Experiment], tmp_path: Path
) -> None:
    RunFolder.create(state.path / "runs" / "taken", quick())
    run = submit(state.connection(), quick(), "taken", resume=False)
    found = wait(state.connection(), run, lambda found: found.finished)
    assert found.end == "failed"
    assert "taken' holds this run, unfinished; add --resume" in found.details


def test_missing_server_and_unknown_run_are_one_line(
    state: ServerFolder, quick: Callable[..., Experiment]
) -> None:
    nobody = replace(state.connection(), control="127.0.0.1:1")
    with pytest.raises(NoSuperLink, match=r"answers at 127.0.0.1:1; 'fedpeft server"):
        submit(nobody, quick(), "run", resume=False)
    with pytest.raises(UnknownRun, match="Flower refused 'flwr ls': "):
        status(state.connection(), "12345")


def test_a_server_with_another_authority_gets_no_run(
    state: ServerFolder, quick: Callable[..., Experiment], tmp_path: Path
) -> None:
    other = replace(state.connection(), ca=server_folder(tmp_path).ca)
    with pytest.raises(NoSuperLink):
        submit(other, quick(), "run", resume=False)
