"""``fedpeft run``: give a federation to a server with real nodes, and bring its results home."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from fedpeft.cli.options import Overrides
from fedpeft.cli.running import default_folder, print_result
from fedpeft.config import Experiment, differing_keys
from fedpeft.errors import UserError
from fedpeft.files import write_json

if TYPE_CHECKING:
    from server.remote.connection import Connection
    from server.runfolder import RunFolder

SUBMITTED = "submitted.json"  # in the folder at home: the run's name and id at the server
_INTERRUPTED = 130  # the shell's code for Ctrl-C


def run(
    on: Annotated[
        str, typer.Option("--on", help="Server: its state folder, connection file, or name.")
    ],
    experiment: Annotated[
        Path | None, typer.Argument(help="Experiment file (TOML); none = the defaults.")
    ] = None,
    overrides: Overrides = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the results; default runs/TASK-METHOD-TIME.")
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="Name of the run at the server; default: that of --out.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Come back to the run in --out, or go on with it.")
    ] = False,
    stop: Annotated[bool, typer.Option("--stop", help="End the run in --out.")] = False,
) -> None:
    """Run a federation on a server and its nodes, and bring its run folder home.

    Example: fedpeft run experiment.toml --on hospital --out runs/first
    """
    from server.remote.connection import find_connection

    if (resume or stop) and out is None and name is None:
        raise UserError("--resume and --stop need --out or --name, those of the run")
    connection = find_connection(on)
    if resume or stop:
        out = out or Path("runs") / str(name)
        name = _checked(_submitted(out).get("name") or name or out.resolve().name)
    if stop and out:
        _stop(connection, str(name), out)
        return
    if resume and experiment is None and out:
        experiment = _kept_experiment(connection, str(name), out)
    settings = Experiment.read(experiment, overrides or ())
    if settings.engine.kind != "local":
        raise UserError(
            f"engine.kind = '{settings.engine.kind}': is a simulation's; leave it out here"
        )
    out = out or (Path("runs") / name if name else default_folder(settings))
    _run(settings, connection, _checked(name or out.resolve().name), out, resume)


def _run(
    experiment: Experiment, connection: Connection, name: str, out: Path, resume: bool
) -> None:
    from rich.console import Console

    from server.remote.follow import follow
    from server.remote.mirror import Mirror
    from server.runfolder import RESULT, RunFolder
    from simulations.display import Display

    console = Console(highlight=False, markup=False)
    there = _check(connection, name, experiment, out, resume)
    folder = RunFolder.create(out, experiment, resume)
    with folder.locked():
        identity = _going(connection, name, out) if resume else None
        if identity is None:
            with console.status("giving the run to the server"):
                identity = _submit(connection, experiment, name, out, there)
        federation = experiment.federation
        console.print(
            f"{experiment.task.name} · {experiment.method.name} on {experiment.backbone} · "
            f"{federation.clients} clients, {experiment.clients_per_round} a round · run '{name}' "
            f"at {connection.control}, number {identity}",
            soft_wrap=True,
        )
        mirror = Mirror(connection, name, out)
        try:
            with Display(folder, federation.rounds, _metric(experiment), console):
                follow(mirror, identity, lambda line: console.print(line, soft_wrap=True))
        except KeyboardInterrupt:
            _leave(
                f"interrupted here only: the run goes on at the server; the same command with "
                f"'--out {out} --resume' comes back to it, with '--out {out} --stop' ends it"
            )
    result = json.loads((out / RESULT).read_text(encoding="utf-8"))
    print_result(console, result, folder, federation.rounds)
    if experiment.output.plots:
        _draw(folder, experiment)


def _submit(
    connection: Connection, experiment: Experiment, name: str, out: Path, there: bool
) -> str:
    """Give the run to the server and return its id, also kept in ``out``."""
    from server.remote.submit import submit

    write_json(out / SUBMITTED, {"name": name})  # if this is cut short, the server knows the id
    try:
        identity = submit(connection, experiment, name, resume=there)
        write_json(out / SUBMITTED, {"name": name, "run": identity})
    except KeyboardInterrupt:
        _leave(
            f"interrupted while the server was given the run, which may go on there: after a "
            f"minute, the same command with '--out {out} --resume' comes back to it or gives it "
            f"again, with '--out {out} --stop' ends it"
        )
    return identity


def _check(
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


def _going(connection: Connection, name: str, out: Path) -> str | None:
    """Return the id of the run submitted before if it goes on or has completed, else None."""
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


def _identities(connection: Connection, name: str, out: Path) -> Iterator[str]:
    """Yield Flower's ids of the run: the one known here, then the server's if it is another.

    The answer to a submission may have been lost, so that only the server knows who goes on.
    """
    from server.deployed import STARTED
    from server.remote.submit import RUN_ID

    ours = str(_submitted(out).get("run", ""))
    if RUN_ID.fullmatch(ours):
        yield ours
    theirs = str(_table(_read(connection, name, STARTED)).get("run", ""))
    if theirs != ours and RUN_ID.fullmatch(theirs):
        yield theirs


def _stop(connection: Connection, name: str, out: Path) -> None:
    from server.remote.submit import stop

    identity = _going(connection, name, out)
    if identity is None:
        raise UserError(
            f"nothing to stop: no run '{name}' goes on at the server; one that was just given to "
            f"it may take a minute to begin"
        )
    stop(connection, identity)
    print(f"stopped run {identity}; --resume instead of --stop goes on with it")


def _kept_experiment(connection: Connection, name: str, out: Path) -> Path:
    """Return the run's experiment file in ``out``, fetched from the server if need be."""
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


def _submitted(out: Path) -> dict[str, Any]:
    try:
        return _table((out / SUBMITTED).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}


def _table(text: str) -> dict[str, Any]:
    """Return a JSON object, an empty one where the text is none."""
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _checked(name: Any) -> str:
    from server.deployed import PLAIN_NAME

    if not isinstance(name, str) or not PLAIN_NAME.fullmatch(name):
        raise UserError(f"'{name}': expected a --name of letters, digits and . _ -, at most 100")
    return name


def _metric(experiment: Experiment) -> str:
    """Return the name of the task's metric; the data, which may decide it, is not here."""
    from fedpeft.tasks import described

    info = described(experiment.task)
    return info.metric if info else "score"


def _draw(folder: RunFolder, experiment: Experiment) -> None:
    from simulations import plots

    (folder.path / plots.FOLDER).mkdir(exist_ok=True)
    title = f"{experiment.task.name}: {experiment.method.name} on {experiment.backbone}"
    curves = folder.path / plots.FOLDER / "curves.png"
    plots.draw_curves(curves, folder.rounds(), _metric(experiment), title)


def _leave(line: str) -> NoReturn:
    """Say what becomes of the run, and end."""
    print(line, file=sys.stderr)
    sys.exit(_INTERRUPTED)
