"""``fedpeft run``: give a federation to a server with real nodes, and bring its results home."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from fedpeft.cli.options import Overrides
from fedpeft.cli.run_there import (
    SUBMITTED,
    check_there,
    checked_name,
    end_if_dead,
    going_on,
    kept_experiment,
    submitted,
)
from fedpeft.cli.running import default_folder, print_result
from fedpeft.config import Experiment
from fedpeft.errors import UserError
from fedpeft.files import write_json

if TYPE_CHECKING:
    from server.remote.connection import Connection
    from server.runfolder import RunFolder

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
        name = checked_name(submitted(out).get("name") or name or out.resolve().name)
    if stop and out:
        _stop(connection, str(name), out)
        return
    if resume and experiment is None and out:
        experiment = kept_experiment(connection, str(name), out)
    settings = Experiment.read(experiment, overrides or ())
    if settings.engine.kind != "local":
        raise UserError(
            f"engine.kind = '{settings.engine.kind}': is a simulation's; leave it out here"
        )
    _require_trackers(settings)
    out = out or (Path("runs") / name if name else default_folder(settings))
    _run(settings, connection, checked_name(name or out.resolve().name), out, resume)


def _run(
    experiment: Experiment, connection: Connection, name: str, out: Path, resume: bool
) -> None:
    from rich.console import Console

    from server.remote.follow import follow
    from server.remote.mirror import Mirror
    from server.runfolder import RESULT, RunFolder
    from simulations.display import Display
    from simulations.tracking import tracked

    console = Console(highlight=False, markup=False)
    there = check_there(connection, name, experiment, out, resume)
    folder = RunFolder.create(out, experiment, resume)
    with folder.locked():
        identity = going_on(connection, name, out) if resume else None
        if identity and end_if_dead(connection, name, identity):
            console.print(f"run {identity} had died at the server; it goes on as a new one")
            identity = None
        if identity is None:
            with console.status("giving the run to the server"):
                identity = _submit(connection, experiment, name, out, there)
        federation = experiment.federation
        try:
            console.print(
                f"{experiment.task.name} · {experiment.method.name} on {experiment.backbone} · "
                f"{federation.clients} clients, {experiment.clients_per_round} a round · "
                f"run '{name}' at {connection.control}, number {identity}",
                soft_wrap=True,
            )
            mirror = Mirror(connection, name, out)
            watch = Display(folder, federation.rounds, _metric(experiment), console)
            with watch, tracked(folder, experiment):
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


def _stop(connection: Connection, name: str, out: Path) -> None:
    from server.remote.submit import stop

    identity = going_on(connection, name, out)
    if identity is None:
        raise UserError(
            f"nothing to stop: no run '{name}' goes on at the server; one that was just given to "
            f"it may take a minute to begin"
        )
    stop(connection, identity)
    print(f"stopped run {identity}; --resume instead of --stop goes on with it")


def _metric(experiment: Experiment) -> str:
    """Return the name of the task's metric; the data, which may decide it, is not here."""
    from fedpeft.tasks import described

    info = described(experiment.task)
    return info.metric if info else "score"


def _require_trackers(experiment: Experiment) -> None:
    from simulations.tracking import require_trackers

    require_trackers(experiment.output.track)


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
