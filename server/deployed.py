"""What a deployed ServerApp has that a simulated one has not: a state folder, and named nodes.

The folder is named by the environment, which `fedpeft server up` gives to its processes.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedpeft.config import Experiment
from fedpeft.errors import RunFailed, UserError
from fedpeft.files import write_json
from server.registry import Registered, registered_nodes
from server.runfolder import RunFolder

if TYPE_CHECKING:
    from flwr.app import Context

log = logging.getLogger(__name__)
STATE = "FEDPEFT_SERVER_STATE"
RUNS = "runs"
STARTED = "run.json"  # in a run's folder: {"run": Flower's id of who goes on, or did so last}
#: In a run's folder: {"run": Flower's id, "ok": bool, "reason": str}, and "stopped": true if so.
ENDED = "ended.json"
PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")  # of runs and their files; not hidden
_LETTING_GO = 60.0  # seconds that the ServerApp of a run that was stopped may still hold its folder


def state_folder() -> Path | None:
    """Return the server's state folder; None in a simulation."""
    return Path(os.environ[STATE]) if STATE in os.environ else None


def registry() -> Callable[[], list[Registered]] | None:
    """Return what tells the registered nodes in the order of registration; None in a simulation."""
    state = state_folder()
    return partial(registered_nodes, state) if state else None


def run_name(folder: RunFolder) -> str:
    """Return what names a deployment's run to its nodes, the same over restarts; else nothing.

    Nodes keep what belongs to a run under it; two runs may have the same experiment.
    """
    if state_folder() is None:
        return ""
    folder.pin({"run": folder.pinned().get("run", secrets.token_hex(8))})
    return folder.pinned()["run"]


@contextmanager
def opened(context: Context) -> Iterator[RunFolder]:
    """Open the folder of a run: the one a simulation made, or one in the server's state folder.

    In a deployment the folder says whose it is, and afterwards how the run ended.

    Raises:
        UserError: see ``RunFolder.create`` and ``locked``; or no name for a folder.
    """
    run_config, state = context.run_config, state_folder()
    out = str(run_config["out"])
    if state is None:
        yield RunFolder(Path(out))
        return
    if not PLAIN_NAME.fullmatch(out):
        raise UserError(f"out = '{out}': expected a name of letters, digits and . _ -")
    path, resume = state / RUNS / out, bool(run_config.get("resume", 0))
    folder = RunFolder.create(path, Experiment.load(str(run_config["experiment"])), resume)
    end: dict[str, Any] = {"run": str(context.run_id), "ok": True, "reason": ""}
    with folder.locked(_LETTING_GO):
        write_json(path / STARTED, {"run": str(context.run_id)})
        (path / ENDED).unlink(missing_ok=True)
        try:
            yield folder
        except (SystemExit, KeyboardInterrupt):  # SIGTERM: --stop, or the whole server ends
            write_json(path / ENDED, end | {"ok": False, "stopped": True, "reason": "stopped"})
            raise
        except BaseException as error:
            ours = isinstance(error, UserError | RunFailed)
            reason = str(error) if ours else f"{type(error).__name__} in the server app"
            write_json(path / ENDED, end | {"ok": False, "reason": reason})
            log.error("run '%s' has failed: %s", out, reason)
            raise
        write_json(path / ENDED, end)
