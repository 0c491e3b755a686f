"""``fedpeft run``: give a federation to a server with real nodes, and bring its results home."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

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
        _stop(connection, out)
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
    from server.remote.submit import submit
    from server.runfolder import RESULT, RunFolder
    from simulations.display import Display

    console = Console(highlight=False, markup=False)
    there = _check(connection, name, experiment, out, resume)
    folder = RunFolder.create(out, experiment, resume)
    with folder.locked():
        identity = _going(connection, out) if resume else None
        if identity is None:
            with console.status("giving the run to the server"):
                identity = submit(connection, experiment, name, resume=there)
                write_json(out / SUBMITTED, {"name": name, "run": identity})
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
            _leave(out)
    if experiment.output.plots:
        _draw(folder, experiment)
    result = json.loads((out / RESULT).read_text(encoding="utf-8"))
    print_result(console, result, folder, federation.rounds)


def _check(
    connection: Connection, name: str, experiment: Experiment, out: Path, resume: bool
) -> bool:
    """Return whether the server has the run already.

    Raises:
        UserError: the run cannot begin, here or there, or another run has its name.
    """
    from fedpeft.vectorfile import EXPERIMENT
    from server.remote.mirror import Mirror
    from server.runfolder import RunFolder

    there = name in _runs_at(connection)
    if there and not resume:
        raise UserError(
            f"the server has a run '{name}' already; choose another --name, or add --resume"
        )
    RunFolder.check(out, experiment, resume)
    theirs = Mirror(connection, name, out).read(EXPERIMENT) if there else b""
    if theirs and (differing := differing_keys(Experiment.load(theirs.decode()), experiment)):
        raise UserError(
            f"the server's run '{name}' has other settings: {', '.join(differing)} (its own and "
            f"yours); choose another --name"
        )
    return there


def _going(connection: Connection, out: Path) -> str | None:
    """Return the id of the run submitted before if it goes on or has completed, else None."""
    from server.remote.flwr_cli import NoSuperLink
    from server.remote.submit import status

    identity = _submitted(out).get("run")
    if not identity:
        return None
    try:
        found = status(connection, identity)
    except NoSuperLink:
        raise
    except UserError:  # a server that was set up anew knows no earlier runs
        return None
    return identity if not found.finished or found.end == "completed" else None


def _stop(connection: Connection, out: Path) -> None:
    from server.remote.submit import stop

    identity = _submitted(out).get("run")
    if not identity:
        raise UserError(f"'{out}' holds no {SUBMITTED}, which names the run to stop")
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
        Mirror(connection, name, out).fetch_file(EXPERIMENT)
    return out / EXPERIMENT


def _runs_at(connection: Connection) -> list[str]:
    from server.remote.mirror import Lost, runs_at

    try:
        return runs_at(connection)
    except Lost as error:
        raise UserError(
            f"{error}; is the server up, and the tunnel open? "
            f"ssh -L {connection.operations}:{connection.operations} "
            f"-L {connection.control}:{connection.control} THE-SERVER"
        ) from None


def _submitted(out: Path) -> dict[str, Any]:
    try:
        found = json.loads((out / SUBMITTED).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _checked(name: str) -> str:
    from server.deployed import PLAIN_NAME

    if not PLAIN_NAME.fullmatch(name):
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


def _leave(out: Path) -> None:
    """Say that the run goes on, and end."""
    print(
        f"interrupted here only: the run goes on at the server; the same command with "
        f"'--out {out} --resume' comes back to it, with '--out {out} --stop' ends it",
        file=sys.stderr,
    )
    sys.exit(_INTERRUPTED)
