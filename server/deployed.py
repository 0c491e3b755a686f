"""Parts of a deployed ServerApp: a state folder, registered nodes and a run name.

`fedpeft server up` passes the state folder to its processes in an environment variable.
"""

from __future__ import annotations

import logging
import os
import secrets
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from fedpeft.errors import RunFailed, UserError
from fedpeft.experiment.config import parsed
from fedpeft.files import PRIVATE, read_object, write_atomic, write_json
from fedpeft.hosting.bundle import PLAIN_NAME
from fedpeft.hosting.locks import is_held, shared
from server.registry import Registered, registered_nodes, state_folder
from server.runfolder import ENDED, RunFolder

if TYPE_CHECKING:
    from flwr.app import Context

log = logging.getLogger(__name__)
RUNS = "runs"
STARTING = "starting"  # in the state folder: a file for each run whose process has begun
STARTED = "run.json"  # in a run's folder: {"run": Flower's id of the latest process to run it}
_LOCK_TIMEOUT = 60.0  # seconds a stopped ServerApp may take to release its folder


def registry() -> Callable[[], list[Registered]] | None:
    """Return a reader of the nodes in order of registration; None in a simulation."""
    state = state_folder()
    return partial(registered_nodes, state) if state else None


def run_name(folder: RunFolder) -> str:
    """Return the random name of a deployment's run, stored in its folder; "" in a simulation.

    Nodes store a run's files under this name, because two runs may have the same experiment.
    """
    if state_folder() is None:
        return ""
    folder.pin({"run": folder.pinned().get("run", secrets.token_hex(8))})
    return folder.pinned()["run"]


def plain_name(name: Any, called: str) -> str:
    """Return the name of a run.

    Args:
        name: the given value.
        called: noun for the message, such as "--name".

    Raises:
        UserError: it is not a plain name.
    """
    if not isinstance(name, str) or not PLAIN_NAME.fullmatch(name):
        raise UserError(f"'{name}': expected a {called} of letters, digits and . _ -, at most 100")
    return name


@contextmanager
def starting(state: Path, name: str, run_id: str) -> Iterator[None]:
    """Let others know that the process of a run has begun, see ``starting_runs``.

    Args:
        state: the server's state folder.
        name: of the run; nothing happens without one.
        run_id: Flower's id of the run.
    """
    if not name:
        yield
        return
    file = state / STARTING / run_id
    file.parent.mkdir(mode=0o700, exist_ok=True)
    write_atomic(file, name, PRIVATE)
    try:
        with shared(file):
            yield
    finally:
        file.unlink(missing_ok=True)


def starting_runs(state: Path) -> dict[str, float]:
    """Return the runs whose processes load, name -> start in seconds since 1970, in that order.

    A process has loaded when it has opened the run's folder.
    """
    begun = {}
    for file in (state / STARTING).glob("[0-9]*"):
        with suppress(FileNotFoundError):  # it has just ended
            name = file.read_text("ascii")
            opened_by = read_object(state / RUNS / name / STARTED).get("run")
            if opened_by != file.name and is_held(file, by_some=True):
                begun[name] = file.stat().st_mtime
    return dict(sorted(begun.items(), key=lambda run: run[1]))


@contextmanager
def _on_sigterm(act: Callable[[], None]) -> Iterator[None]:
    """Call ``act`` at SIGTERM, before the handler that is set already.

    Flower's handler talks to the SuperLink, and ends the process after 5 s in any case. Then no
    exception passes through the code that the signal interrupted.
    """
    if threading.current_thread() is not threading.main_thread():  # it cannot set handlers
        yield
        return
    before = signal.getsignal(signal.SIGTERM)

    def handle(number: int, frame: FrameType | None) -> None:
        act()
        if callable(before):
            before(number, frame)
        else:
            signal.signal(number, before if before is not None else signal.SIG_DFL)
            os.kill(os.getpid(), number)

    signal.signal(signal.SIGTERM, handle)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGTERM) is handle:
            signal.signal(signal.SIGTERM, before if before is not None else signal.SIG_DFL)


@contextmanager
def opened(context: Context) -> Iterator[RunFolder]:
    """Open the folder of a run: in a simulation an existing one, otherwise in the state folder.

    In a deployment, record in the folder the process that runs in it, and how the run ended.

    Raises:
        UserError: see ``RunFolder.create``, ``locked`` and ``rewind``, or the run's name is not a
            plain name.
    """
    run_config, state = context.run_config, state_folder()
    out = str(run_config["out"])
    if state is None:
        yield RunFolder(Path(out))
        return
    if not PLAIN_NAME.fullmatch(out):
        raise UserError(f"out = '{out}': expected a name of letters, digits and . _ -")
    path, resume = state / RUNS / out, bool(run_config.get("resume", 0))
    folder = RunFolder.create(path, parsed(str(run_config["experiment"])), resume)
    from_round = int(run_config.get("from-round", -1))
    end: dict[str, Any] = {"run": str(context.run_id), "ok": True, "reason": ""}
    stopped = end | {"ok": False, "stopped": True, "reason": "stopped"}
    with folder.locked(_LOCK_TIMEOUT):
        write_json(path / STARTED, {"run": str(context.run_id)})
        (path / ENDED).unlink(missing_ok=True)
        try:
            with _on_sigterm(lambda: write_json(path / ENDED, stopped)):
                if from_round >= 0:
                    folder.rewind(from_round)
                yield folder
        except (SystemExit, KeyboardInterrupt):  # SIGTERM: --stop, or the server ends
            write_json(path / ENDED, stopped)
            raise
        except BaseException as error:
            expected = isinstance(error, UserError | RunFailed)
            reason = str(error) if expected else f"{type(error).__name__} in the server app"
            mistake = {"mistake": True} if isinstance(error, UserError) else {}
            write_json(path / ENDED, end | {"ok": False, "reason": reason, **mistake})
            log.error("run '%s' has failed: %s", out, reason)
            raise
        write_json(path / ENDED, end)
