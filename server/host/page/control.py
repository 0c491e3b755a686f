"""Stop and resume a server's runs from its page, by the same requests as ``fedpeft run``.

A run is not started here: that needs an experiment, which only ``fedpeft run`` sends.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from fedpeft.errors import UserError
from fedpeft.experiment.config import Experiment
from fedpeft.files import read_object
from fedpeft.vectorfile import EXPERIMENT
from server.deployed import ENDED, PLAIN_NAME, STARTED
from server.remote.connection import Connection
from server.remote.flwr_cli import UnknownRun
from server.remote.submit import RUN_ID, Status, status, stop, submit
from server.runfolder import RESULT, RunFolder
from server.view.state import is_run

log = logging.getLogger(__name__)


class Control:
    """The buttons of the page; one request at a time is executed.

    Args:
        runs: the folder of the server's runs.
        connection: of this machine to the server.
    """

    def __init__(self, runs: Path, connection: Connection):
        self._runs, self._connection = runs, connection
        self._resumed: dict[str, str] = {}  # Flower's ids of runs that were resumed here
        self._lock = threading.Lock()

    def act(self, action: str, name: str) -> str:
        """Stop or resume a run; return a line for the reader.

        Args:
            action: "stop" or "resume".
            name: of the run.

        Raises:
            KeyError: no such action or run.
            UserError: the run is not active, or cannot be resumed, or the server refuses.
        """
        actions = {"stop": self._stop, "resume": self._resume}
        if action not in actions:
            raise KeyError(action)
        run_folder(self._runs, name)
        with self._lock:
            line = actions[action](name)
        log.info("through the page: %s", line)
        return line

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
        self._resumed[name] = run_id
        return f"resumed run '{name}' ({run_id})"

    def _statuses(self, name: str) -> Iterator[tuple[str, Status]]:
        """Yield the ids of the run at the server, the one resumed here first, and their states."""
        for run_id in dict.fromkeys((self._resumed.get(name, ""), self._started(name))):
            if RUN_ID.fullmatch(run_id):
                with suppress(UnknownRun):  # of an earlier server
                    yield run_id, status(self._connection, run_id)

    def _started(self, name: str) -> str:
        """Return Flower's id of the last process that ran in the run's folder, or ""."""
        return str(read_object(self._runs / name / STARTED).get("run", ""))


def run_folder(runs: Path, name: str) -> Path:
    """Return the folder of a run.

    Raises:
        KeyError: there is no such run.
    """
    path = runs / name
    if not PLAIN_NAME.fullmatch(name) or path.is_symlink() or not is_run(path):
        raise KeyError(name)
    return path
