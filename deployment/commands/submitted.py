"""A submitted run, as known to the server and to the local folder: name, id and settings."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedpeft.errors import UserError
from fedpeft.experiment.config import Experiment, differing_keys
from fedpeft.files import check_folder, parse_object, read_object

if TYPE_CHECKING:
    from deployment.operator.connection import Connection
    from deployment.operator.submit import Status

SUBMITTED = "submitted.json"  # in the local folder: the run's name and id at the server


def check_submission(
    connection: Connection, name: str, experiment: Experiment, out: Path, resume: bool
) -> bool:
    """Return whether the run exists at the server already.

    Raises:
        UserError: the run cannot start, here or at the server, or another run has its name.
    """
    from fedpeft.runs.folder import RunFolder
    from fedpeft.runs.vectorfile import EXPERIMENT

    exists = name in _runs_at(connection)
    if exists and not resume:
        raise UserError(
            f"the server has a run '{name}' already; choose another --name, or add --resume"
        )
    RunFolder.check(out, experiment, resume)
    text = _read(connection, name, EXPERIMENT) if exists else ""
    if text and (differing := differing_keys(Experiment.load(text), experiment)):
        raise UserError(
            f"the server's run '{name}' has other settings: {', '.join(differing)} (at the server "
            f"and here); choose another --name"
        )
    return exists


def active_run(connection: Connection, name: str, out: Path) -> str | None:
    """Return the id of the submitted run if it is active or completed, or None.

    Raises:
        UserError: the server does not answer, or refuses.
    """
    for run_id, state in statuses(connection, name, out):
        if not state.finished or state.end == "completed":
            return run_id
    return None


def statuses(connection: Connection, name: str, out: Path) -> Iterator[tuple[str, Status]]:
    """Yield id and status of the submitted run; two if the local folder and the server differ.

    Raises:
        UserError: the server does not answer, or refuses.
    """
    from deployment.operator.flwr_cli import UnknownRun
    from deployment.operator.submit import status

    for run_id in _run_ids(connection, name, out):
        with suppress(UnknownRun):  # a new server does not know earlier runs
            yield run_id, status(connection, run_id)


def end_if_dead(connection: Connection, name: str, run_id: str) -> bool:
    """Stop a run whose server app has died; return whether it was stopped.

    Flower takes a minute to detect this; until then the run appears active. A living server app
    locks its run folder before it writes its id there.

    Raises:
        UserError: the server does not answer, or refuses.
    """
    from deployment.operator.mirror import Mirror
    from deployment.operator.submit import status, stop
    from server.deployed import ENDED, STARTED

    if parse_object(_read(connection, name, STARTED)).get("run") != run_id:
        return False  # not started
    with _reached(connection):
        if Mirror(connection, name, Path()).in_use():
            return False
    ended = parse_object(_read(connection, name, ENDED))
    if ended.get("run") == run_id and ended.get("ok"):
        return False  # completed a moment ago
    if status(connection, run_id).finished:  # detected by Flower in the meantime
        return False
    stop(connection, run_id)
    return True


def _run_ids(connection: Connection, name: str, out: Path) -> Iterator[str]:
    """Yield Flower's ids of the run: the local one, and the server's if it differs.

    If the reply to a submission was lost, only the server knows the id.
    """
    from deployment.operator.submit import RUN_ID
    from server.deployed import STARTED

    local_id = str(submitted(out).get("run", ""))
    if RUN_ID.fullmatch(local_id):
        yield local_id
    server_id = str(parse_object(_read(connection, name, STARTED)).get("run", ""))
    if server_id != local_id and RUN_ID.fullmatch(server_id):
        yield server_id


def fetch_experiment(connection: Connection, name: str, out: Path) -> Path:
    """Return the path of the run's experiment file in ``out``; fetch it if it is missing.

    Raises:
        UserError: there is no such run, or ``out`` contains something else.
    """
    from deployment.operator.mirror import Mirror
    from fedpeft.runs.vectorfile import EXPERIMENT

    if not (out / EXPERIMENT).is_file():
        check_folder(out)
        if out.exists() and any(out.iterdir()):
            raise UserError(f"'{out}' is not empty and contains no run; choose another --out")
        if name not in _runs_at(connection):
            raise UserError(
                f"nothing to resume: no run in '{out}', and no run '{name}' at the server"
            )
        out.mkdir(parents=True, exist_ok=True)
        with _reached(connection):
            Mirror(connection, name, out).fetch_file(EXPERIMENT)
    return out / EXPERIMENT


def submitted(out: Path) -> dict[str, Any]:
    """Return the name and, once known, the id of the run in a local folder; {} if unknown."""
    return read_object(out / SUBMITTED)


def _runs_at(connection: Connection) -> list[str]:
    from deployment.operator.mirror import runs_at

    with _reached(connection):
        return runs_at(connection)


def _read(connection: Connection, name: str, file: str) -> str:
    """Return the text of a small file of a run at the server; "" if it is missing."""
    from deployment.operator.mirror import Mirror

    with _reached(connection):
        return Mirror(connection, name, Path()).read(file).decode(errors="replace")


@contextmanager
def _reached(connection: Connection) -> Iterator[None]:
    """Turn a lost connection into a UserError that names likely causes."""
    from deployment.operator.mirror import Lost

    try:
        yield
    except Lost as error:
        raise UserError(f"{error}; {connection.advice}") from None
