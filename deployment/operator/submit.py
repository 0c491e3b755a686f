"""Submit a run to a server, ask for its status, and stop it, by Flower's command line."""

from __future__ import annotations

import re
import tempfile
from dataclasses import dataclass
from pathlib import Path

from deployment.hosting.bundle import write_bundle
from deployment.operator.connection import Connection
from deployment.operator.flwr_cli import UnknownRun, run_flwr
from fedpeft.errors import UserError
from fedpeft.experiment.config import Experiment

RUN_ID = re.compile(r"[0-9]{1,20}")  # Flower's ids of runs
_DETAILS = 300  # characters of Flower's details that are shown


@dataclass(frozen=True)
class Status:
    """Flower's status of a run.

    Attributes:
        state: "pending", "starting", "running" or "finished".
        end: "completed", "failed" or "stopped" when finished, otherwise "".
        details: Flower's details of a failure in one line; may be "".
    """

    state: str
    end: str = ""
    details: str = ""

    @property
    def finished(self) -> bool:
        """Whether the run has ended, successfully or not."""
        return self.state == "finished"


def submit(
    connection: Connection,
    experiment: Experiment,
    name: str,
    resume: bool,
    from_round: int | None = None,
) -> str:
    """Submit a run to a server and return Flower's id of it.

    Args:
        connection: the connection to the server.
        experiment: the run's experiment, which is sent in a bundle without code.
        name: the name of the run's folder at the server.
        resume: continue the run in this folder.
        from_round: continue it after this round, and drop later ones; None = after the last.

    Raises:
        UserError: the server does not answer, or Flower refuses the run. The run may have started
            only if the answer did not arrive in time.
    """
    settings: dict[str, str | int] = {
        "experiment": experiment.to_toml(),
        "out": name,
        "resume": int(resume),
    }
    if from_round is not None:
        settings["from-round"] = from_round
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
    """Return the status of a run.

    Raises:
        NoSuperLink: the server does not answer at the moment.
        UnknownRun: the server has no such run.
        UserError: Flower refused to answer; the next question may succeed.
    """
    answer = run_flwr(["ls", "--run-id", run], connection)
    runs = [entry for entry in answer.get("runs", []) if entry.get("run-id") == run]
    if not runs:
        raise UnknownRun(f"the SuperLink at {connection.control} knows no run {run}")
    state, _, end = str(runs[0]["status"]).partition(":")
    details = " ".join(str(runs[0].get("status-details")).split())
    return Status(state, end, "" if details in ("N/A", "None") else details[:_DETAILS])


def stop(connection: Connection, run: str) -> None:
    """Stop a run; its folder stays at the server, and the run can be resumed.

    Raises:
        UserError: the server does not answer, or the run has ended already.
    """
    run_flwr(["stop", run], connection)
