"""What a server and a folder at home know of a run that was submitted: name, id, settings."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedpeft.config import Experiment, differing_keys
from fedpeft.errors import UserError

if TYPE_CHECKING:
    from server.remote.connection import Connection

SUBMITTED = "submitted.json"  # in the folder at home: the run's name and id at the server


def check_there(
    connection: Connection, name: str, experiment: Experiment, out: Path, resume: bool
) -> bool:
    """Return whether the server has the run already.

    Raises:
        UserError: the run cannot begin, here or there, or another run has its name.
    """
    from fedpeft.vectorfile import EXPERIMENT
    from server.runfolder import RunFolder

    there = name in _runs_at(connection)
    if there and not resume:
        raise UserError(
            f"the server has a run '{name}' already; choose another --name, or add --resume"
        )
    RunFolder.check(out, experiment, resume)
    theirs = _read(connection, name, EXPERIMENT) if there else ""
    if theirs and (differing := differing_keys(Experiment.load(theirs), experiment)):
        raise UserError(
            f"the server's run '{name}' has other settings: {', '.join(differing)} (its own and "
            f"yours); choose another --name"
        )
    return there


def going_on(connection: Connection, name: str, out: Path) -> str | None:
    """Return the id of the run submitted before if it goes on or has completed, else None.

    Raises:
        UserError: the server does not answer, or refuses.
    """
    from server.remote.flwr_cli import UnknownRun
    from server.remote.submit import status

    for identity in _identities(connection, name, out):
        try:
            found = status(connection, identity)
        except UnknownRun:  # a server that was set up anew knows no earlier runs
            continue
        if not found.finished or found.end == "completed":
            return identity
    return None


def end_if_dead(connection: Connection, name: str, identity: str) -> bool:
    """End a run whose server app has died; return whether it had.

    Flower takes a minute to notice, in which the run would seem to go on. A server app holds its
    run's folder as long as it lives, from before it writes down whose the folder is.

    Raises:
        UserError: the server does not answer, or refuses.
    """
    from server.deployed import ENDED, STARTED
    from server.remote.mirror import Mirror
    from server.remote.submit import status, stop

    if _table(_read(connection, name, STARTED)).get("run") != identity:
        return False  # it has not begun
    with _reached(connection):
        if Mirror(connection, name, Path()).in_use():
            return False
    ended = _table(_read(connection, name, ENDED))
    if ended.get("run") == identity and ended.get("ok"):
        return False  # it has only just completed
    if status(connection, identity).finished:  # Flower has noticed meanwhile
        return False
    stop(connection, identity)
    return True


def _identities(connection: Connection, name: str, out: Path) -> Iterator[str]:
    """Yield Flower's ids of the run: the one known here, then the server's if it is another.

    The answer to a submission may have been lost, so that only the server knows who goes on.
    """
    from server.deployed import STARTED
    from server.remote.submit import RUN_ID

    ours = str(submitted(out).get("run", ""))
    if RUN_ID.fullmatch(ours):
        yield ours
    theirs = str(_table(_read(connection, name, STARTED)).get("run", ""))
    if theirs != ours and RUN_ID.fullmatch(theirs):
        yield theirs


def kept_experiment(connection: Connection, name: str, out: Path) -> Path:
    """Return the run's experiment file in ``out``, fetched from the server if need be.

    Raises:
        UserError: neither has the run, or ``out`` holds something else.
    """
    from fedpeft.vectorfile import EXPERIMENT
    from server.remote.mirror import Mirror

    if not (out / EXPERIMENT).is_file():
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise UserError(f"'{out}' is not empty and holds no run; choose another --out")
        if name not in _runs_at(connection):
            raise UserError(
                f"nothing to resume: no run in '{out}', and none '{name}' at the server"
            )
        out.mkdir(parents=True, exist_ok=True)
        with _reached(connection):
            Mirror(connection, name, out).fetch_file(EXPERIMENT)
    return out / EXPERIMENT


def checked_name(name: Any) -> str:
    """Return a run's name; raise UserError if it cannot be one."""
    from server.deployed import PLAIN_NAME

    if not isinstance(name, str) or not PLAIN_NAME.fullmatch(name):
        raise UserError(f"'{name}': expected a --name of letters, digits and . _ -, at most 100")
    return name


def submitted(out: Path) -> dict[str, Any]:
    """Return the name and, once known, the id of the run in a folder at home; {} if none is."""
    try:
        return _table((out / SUBMITTED).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}


def _runs_at(connection: Connection) -> list[str]:
    from server.remote.mirror import runs_at

    with _reached(connection):
        return runs_at(connection)


def _read(connection: Connection, name: str, file: str) -> str:
    """Return the text of a small file of a run at the server; "" if it has none."""
    from server.remote.mirror import Mirror

    with _reached(connection):
        return Mirror(connection, name, Path()).read(file).decode(errors="replace")


@contextmanager
def _reached(connection: Connection) -> Iterator[None]:
    """Say of a server that cannot be reached what may be the cause."""
    from server.remote.mirror import Lost

    try:
        yield
    except Lost as error:
        raise UserError(
            f"{error}; is the server up, and the tunnel open? "
            f"ssh -L {connection.operations}:{connection.operations} "
            f"-L {connection.control}:{connection.control} THE-SERVER"
        ) from None


def _table(text: str) -> dict[str, Any]:
    """Return a JSON object, an empty one where the text is none."""
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
