"""A run given to a server, asked after, and ended there, by Flower's public command line."""

from __future__ import annotations

import re
import tempfile
from dataclasses import dataclass
from pathlib import Path

from fedpeft.bundle import write_bundle
from fedpeft.config import Experiment
from fedpeft.errors import UserError
from server.remote.connection import Connection
from server.remote.flwr_cli import UnknownRun, run_flwr

RUN_ID = re.compile(r"[0-9]{1,20}")  # Flower's ids of runs
_DETAILS = 300  # characters of Flower's own words that are shown


@dataclass(frozen=True)
class Status:
    """What Flower says of a run.

    Attributes:
        state: "pending", "starting", "running" or "finished".
        end: "completed", "failed" or "stopped" when finished, else "".
        details: its words on a failure, one line; "" where it has none.
    """

    state: str
    end: str = ""
    details: str = ""

    @property
    def finished(self) -> bool:
        """Whether the run is over, well or not."""
        return self.state == "finished"


def submit(connection: Connection, experiment: Experiment, name: str, resume: bool) -> str:
    """Give a run to a server and return Flower's id of it.

    Args:
        connection: to the server.
        experiment: of the run; all that is sent is this, in a bundle without code.
        name: of the run's folder there.
        resume: go on with what is in that folder.

    Raises:
        UserError: nothing answers there, or Flower refuses the run; only where it gave no answer
            in time can the run have been started.
    """
    settings: dict[str, str | int] = {
        "experiment": experiment.to_toml(),
        "out": name,
        "resume": int(resume),
    }
    with tempfile.TemporaryDirectory(prefix="fedpeft-run-") as parent:
        bundle = Path(parent) / "fedpeft"  # Flower allows few characters in its name
        bundle.mkdir()
        write_bundle(bundle, settings)
        answer = run_flwr(["run", str(bundle)], connection)
    run = str(answer.get("run-id") or "")
    if not RUN_ID.fullmatch(run):
        raise UserError(f"the SuperLink at {connection.control} started no run and gave no reason")
    return run


def status(connection: Connection, run: str) -> Status:
    """Return how a run is doing.

    Raises:
        NoSuperLink: nothing answers at the moment.
        UnknownRun: the server knows no such run.
        UserError: Flower refused to say; it may at the next question.
    """
    answer = run_flwr(["ls", "--run-id", run], connection)
    runs = [each for each in answer.get("runs", []) if each.get("run-id") == run]
    if not runs:
        raise UnknownRun(f"the SuperLink at {connection.control} knows no run {run}")
    state, _, end = str(runs[0]["status"]).partition(":")
    details = " ".join(str(runs[0].get("status-details")).split())
    return Status(state, end, "" if details in ("N/A", "None") else details[:_DETAILS])


def stop(connection: Connection, run: str) -> None:
    """End a run; its folder at the server stays and can be resumed.

    Raises:
        UserError: nothing answers there, or the run is over already.
    """
    run_flwr(["stop", run], connection)
