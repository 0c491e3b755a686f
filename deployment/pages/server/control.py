"""Start, stop and resume a server's runs from its page, by the same requests as ``fedpeft run``.

The settings of a new run are checked as ``fedpeft run`` checks them. No path in them is opened
here: only the run's own process reads its data.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from deployment.operator.checks import require_deployable
from deployment.operator.connection import Connection
from deployment.operator.flwr_cli import UnknownRun
from deployment.operator.submit import RUN_ID, Status, status, stop, submit
from fedpeft.errors import UserError
from fedpeft.experiment.config import Experiment
from fedpeft.experiment.robust import unset
from fedpeft.files import PLAIN_NAME, read_object
from fedpeft.page.run.state import is_run
from fedpeft.runs.folder import RESULT, RunFolder
from fedpeft.runs.vectorfile import EXPERIMENT
from server.deployed import ENDED, STARTED, plain_name

log = logging.getLogger(__name__)


class Control:
    """The buttons of the page; one request at a time is executed.

    Args:
        runs: the folder of the server's runs.
        connection: of this machine to the server.
    """

    def __init__(self, runs: Path, connection: Connection):
        self._runs, self._connection = runs, connection
        self._submitted: dict[str, str] = {}  # Flower's ids of runs that were given here
        self._lock = threading.Lock()

    def act(self, action: str, name: str, text: str = "") -> str:
        """Start, stop or resume a run; return a line for the reader.

        Args:
            action: "start", "stop" or "resume".
            name: of the run.
            text: to start a run, its experiment as TOML.

        Raises:
            KeyError: no such action or run.
            UserError: the run cannot be started or resumed, is not active, or the server refuses.
        """
        actions = {
            "start": lambda: self._start(name, text),
            "stop": lambda: self._stop(name),
            "resume": lambda: self._resume(name),
        }
        if action not in actions:
            raise KeyError(action)
        if action != "start":
            run_folder(self._runs, name)
        with self._lock:
            line = actions[action]()
        log.info("through the page: %s", line)
        return line

    def _start(self, name: str, text: str) -> str:
        plain_name(name, "name")
        experiment = Experiment.load(text)
        require_deployable(experiment)
        _require_no_command(experiment)
        if os.path.lexists(self._runs / name):
            raise UserError(f"the server has a run '{name}' already; choose another name")
        if not all(state.finished for _, state in self._statuses(name)):
            raise UserError(f"run '{name}' was started a moment ago and appears soon")
        run_id = submit(self._connection, experiment, name, resume=False)
        self._submitted[name] = run_id
        warning = unset(experiment.federation)
        return f"started run '{name}' ({run_id})" + (f"; {warning}" if warning else "")

    def _stop(self, name: str) -> str:
        for run_id, state in self._statuses(name):
            if not state.finished:
                stop(self._connection, run_id)
                return f"stopped run '{name}' ({run_id})"
        raise UserError(
            f"nothing to stop: run '{name}' is not active; a submitted run may take a minute to "
            f"start"
        )

    def _resume(self, name: str) -> str:
        folder = RunFolder(self._runs / name)
        if folder.in_use():
            raise UserError(f"run '{name}' is running already")
        if (folder.path / RESULT).exists() or read_object(folder.path / ENDED).get("ok"):
            raise UserError(f"run '{name}' has finished; there is nothing to resume")
        for run_id, state in self._statuses(name):
            if state.finished:
                continue
            if run_id != self._started(name):
                raise UserError(f"run '{name}' was resumed a moment ago and starts soon")
            stop(self._connection, run_id)  # its process died, which Flower notices in a minute
        experiment = Experiment.read(folder.path / EXPERIMENT)
        run_id = submit(self._connection, experiment, name, resume=True)
        self._submitted[name] = run_id
        return f"resumed run '{name}' ({run_id})"

    def _statuses(self, name: str) -> Iterator[tuple[str, Status]]:
        """Yield the ids of the run at the server, the one given here first, and their states."""
        for run_id in dict.fromkeys((self._submitted.get(name, ""), self._started(name))):
            if RUN_ID.fullmatch(run_id):
                with suppress(UnknownRun):  # of an earlier server
                    yield run_id, status(self._connection, run_id)

    def _started(self, name: str) -> str:
        """Return Flower's id of the last process that ran in the run's folder, or ""."""
        return str(read_object(self._runs / name / STARTED).get("run", ""))


def _require_no_command(experiment: Experiment) -> None:
    """Refuse settings that the command ``fedpeft run`` carries out, and not the server.

    Raises:
        UserError: there is one.
    """
    if budget := experiment.wire.budget:
        raise UserError(
            f"wire.budget = '{budget}': `fedpeft config FILE` chooses codec and sizes for it; "
            f"start the run with the experiment that it prints"
        )
    if names := experiment.output.track:
        raise UserError(
            f"output.track = {names}: only `fedpeft run` reports to other tools; leave it out"
        )


def run_folder(runs: Path, name: str) -> Path:
    """Return the folder of a run.

    Raises:
        KeyError: there is no such run.
    """
    path = runs / name
    if not PLAIN_NAME.fullmatch(name) or path.is_symlink() or not is_run(path):
        raise KeyError(name)
    return path
