"""``fedpeft run``: run a federation on a server with real nodes, and fetch its results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedpeft.cli.options import (
    ExperimentFile,
    FromRound,
    NewRun,
    OnServer,
    Overrides,
    check_from_round,
    read_experiment,
)
from fedpeft.cli.printing import headline, plain_console
from fedpeft.cli.submitted import (
    SUBMITTED,
    active_run,
    check_submission,
    end_if_dead,
    fetch_experiment,
    statuses,
    submitted,
)
from fedpeft.errors import Interrupted, UserError, telling
from fedpeft.experiment.config import Experiment
from fedpeft.experiment.robust import unset
from fedpeft.files import write_json

if TYPE_CHECKING:
    from server.remote.connection import Connection

#: How a run ended at the server, by Flower's word for it.
_ENDS = {"completed": "has finished", "failed": "has failed", "stopped": "was stopped before"}


def run(
    on: OnServer,
    experiment: ExperimentFile = None,
    overrides: Overrides = None,
    out: NewRun = None,
    name: Annotated[
        str | None, typer.Option(help="Name of the run at the server; default: the name of --out.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Reconnect to the run in --out, or continue it.")
    ] = False,
    from_round: FromRound = None,
    stop: Annotated[bool, typer.Option("--stop", help="Stop the run in --out.")] = False,
) -> None:
    """Run a federation on a server and its nodes, and copy the run folder to this machine.

    Prints a line per round, the score, the bytes sent, the privacy spent, and the run folder.
    Ctrl-C disconnects only; the run continues at the server.

    Example: fedpeft run experiment.toml --on hospital --out runs/first
    """
    from server.deployed import plain_name
    from server.remote.checks import require_deployable
    from server.remote.connection import find_connection
    from simulations.results import kept_or_new
    from simulations.tracking import require_trackers

    check_from_round(from_round, resume)
    if (resume or stop) and out is None and name is None:
        raise UserError("--resume and --stop need --out or --name of the run")
    connection = find_connection(on)
    if resume or stop:
        out = out or Path("runs") / str(name)
        name = plain_name(submitted(out).get("name") or name or out.resolve().name, "--name")
    if stop and out:
        _stop(connection, str(name), out)
        return
    if resume and experiment is None and out:
        experiment = fetch_experiment(connection, str(name), out)
    settings = read_experiment(experiment, overrides, print, out, elsewhere=True)
    require_deployable(settings)
    require_trackers(settings.output.track)
    out = out or (Path("runs") / name if name else None)
    with kept_or_new(out, settings) as folder:
        name = plain_name(name or folder.resolve().name, "--name")
        _run(settings, connection, name, folder, resume, from_round)


def _run(
    experiment: Experiment,
    connection: Connection,
    name: str,
    out: Path,
    resume: bool,
    from_round: int | None,
) -> None:
    from fedpeft.export.obstacles import unexportable
    from fedpeft.hosting.timing import Timing
    from server.remote.follow import follow
    from server.remote.mirror import Mirror
    from server.runfolder import RESULT, RunFolder
    from simulations.display import Display
    from simulations.plots import draw_curves
    from simulations.results import print_result
    from simulations.tracking import tracked

    console = plain_console()
    timing = Timing.read(connection.state) if connection.state else Timing()
    exists = check_submission(connection, name, experiment, out, resume)
    folder = RunFolder.create(out, experiment, resume)
    with folder.locked():
        run_id = active_run(connection, name, out) if resume else None
        if run_id and end_if_dead(connection, name, run_id):
            console.print(f"run {run_id} had died at the server; continuing it as a new run")
            run_id = None
        if run_id and from_round is not None:
            _require_finished(connection, run_id)
            run_id = None
        if run_id is None:
            with console.status("submitting the run"):
                run_id = _submit(connection, experiment, name, out, exists, from_round)
        federation = experiment.federation
        try:
            console.print(
                headline(
                    experiment,
                    f"{federation.clients:,} clients, {experiment.clients_per_round:,} a round",
                    f"run '{name}' at {connection.control}, number {run_id}",
                    *filter(None, [unexportable(experiment)]),
                ),
                soft_wrap=True,
            )
            if warning := unset(federation):
                console.print(warning, soft_wrap=True)
            mirror = Mirror(connection, name, out)
            watch = Display(folder, federation.rounds, _metric(experiment), console)
            with watch, tracked(folder, experiment):
                follow(mirror, run_id, lambda line: console.print(line, soft_wrap=True), timing)
        except KeyboardInterrupt:
            raise Interrupted(
                f"the run continues at the server; the same command with '--out {out} --resume' "
                f"reconnects, with '--out {out} --stop' stops the run"
            ) from None
    result = json.loads((out / RESULT).read_text(encoding="utf-8"))
    print_result(console, result, folder, federation.rounds)
    if experiment.output.plots:
        how = f"the run is complete; the same command with '--out {out} --resume' draws its plots"
        with telling(how):
            draw_curves(folder, experiment, result["metric"])


def _require_finished(connection: Connection, run_id: str) -> None:
    from server.remote.submit import status

    if not status(connection, run_id).finished:
        raise UserError(f"--from-round: run {run_id} is active at the server; --stop stops it")


def _submit(
    connection: Connection,
    experiment: Experiment,
    name: str,
    out: Path,
    exists: bool,
    from_round: int | None,
) -> str:
    """Submit the run to the server and return its id, also written to ``out``."""
    from server.remote.submit import submit

    write_json(out / SUBMITTED, {"name": name})  # after a crash here, the server knows the id
    try:
        run_id = submit(connection, experiment, name, exists, from_round)
        write_json(out / SUBMITTED, {"name": name, "run": run_id})
    except KeyboardInterrupt:
        raise Interrupted(
            f"the server may have received the run; in a minute, the same command with "
            f"'--out {out} --resume' reconnects or submits it again, with '--out {out} --stop' "
            f"stops the run"
        ) from None
    return run_id


def _stop(connection: Connection, name: str, out: Path) -> None:
    from server.remote.submit import stop

    ended = ""
    for run_id, state in statuses(connection, name, out):
        if not state.finished:
            stop(connection, run_id)
            print(f"stopped run {run_id}; --resume instead of --stop continues it")
            return
        ended = ended or f"run {run_id} {_ENDS.get(state.end, 'has ended')}"
    if ended:
        raise UserError(f"nothing to stop: {ended}")
    raise UserError(
        f"nothing to stop: no active run '{name}' at the server; a submitted run may take a "
        f"minute to start"
    )


def _metric(experiment: Experiment) -> str:
    """Return the task's metric, or "score" if it depends on the data, which is not here."""
    from fedpeft.tasks import described

    info = described(experiment.task)
    return info.metric if info else "score"
