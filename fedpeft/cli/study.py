"""``fedpeft study``: run the cells of a study, search for settings, show the status."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

import typer

from fedpeft.cli.options import AsJson, Overrides
from fedpeft.cli.printing import plain_console, print_json
from fedpeft.errors import Interrupted, RunFailed, UserError

if TYPE_CHECKING:
    from simulations.study.execution import Pool
    from simulations.study.folder import StudyFolder
    from simulations.study.plan import Plan

app = typer.Typer(no_args_is_help=True, help="Run many experiments from one file.")
_File = Annotated[Path, typer.Argument(help="Study file (TOML).")]
_Out = Annotated[Path | None, typer.Option(help="Study folder; default: runs/studies/NAME.")]
_Jobs = Annotated[int, typer.Option(min=1, help="Number of parallel runs, one process each.")]
_Resume = Annotated[bool, typer.Option("--resume", help="Continue the study in its folder.")]
_On = Annotated[
    Literal["local", "ray"],
    typer.Option(help="This machine, or a Ray cluster that shares the study folder."),
]


class Parallel(NamedTuple):
    """What runs at the same time.

    Attributes:
        jobs: number of processes.
        on: "local" or "ray".
    """

    jobs: int
    on: str

    def __str__(self) -> str:
        """Return the options of the command line."""
        return f"--jobs {self.jobs}" + (" --on ray" if self.on == "ray" else "")


@app.command()
def run(
    file: _File,
    overrides: Overrides = None,
    out: _Out = None,
    jobs: _Jobs = 1,
    resume: _Resume = False,
    on: _On = "local",
) -> None:
    """Run a study: its search, if any, and all its cells; then write its table.

    Prints the number of finished cells and their scores. A failed run does not stop the others.
    --resume keeps finished runs and continues the others.

    Example: fedpeft study run simulations/studies/noniid-small.toml --jobs 2
    """
    _run(file, overrides or [], out, Parallel(jobs, on), resume, search_only=False)


@app.command()
def search(
    file: _File,
    overrides: Overrides = None,
    out: _Out = None,
    jobs: _Jobs = 1,
    resume: _Resume = False,
    on: _On = "local",
) -> None:
    """Run only the search of a study: trials scored on held-out training examples, never on dev.

    Prints the best settings; `fedpeft study run --resume` uses them.

    Example: fedpeft study search simulations/studies/communication-small.toml --jobs 2
    """
    _run(file, overrides or [], out, Parallel(jobs, on), resume, search_only=True)


@app.command()
def status(
    folder: Annotated[Path, typer.Argument(help="Study folder.")], as_json: AsJson = False
) -> None:
    """Show the progress of a study: finished cells, scores, best settings and failed runs.

    Example: fedpeft study status runs/studies/noniid-small
    """
    from simulations.study.folder import StudyFolder
    from simulations.study.status import printed, status_of

    described = status_of(StudyFolder.open(folder))
    if as_json:
        print_json(described)
    else:
        print(printed(described))


def _run(
    file: Path,
    overrides: list[str],
    out: Path | None,
    parallel: Parallel,
    resume: bool,
    search_only: bool,
) -> None:
    from simulations.study.choices import Choices
    from simulations.study.display import StudyDisplay
    from simulations.study.execution import run_study, searched
    from simulations.study.file import read
    from simulations.study.folder import StudyFolder
    from simulations.study.plan import Plan
    from simulations.study.preflight import check_cells

    study, text = read(file)
    out = out or Path("runs/studies") / file.stem
    if resume and not overrides:
        overrides = StudyFolder.open(out).asked()["set"]
    if search_only and not study.search:
        raise UserError(f"{file}: no [search]; use `fedpeft study run`")
    try:
        choices = StudyFolder(out).choices() if StudyFolder.is_at(out) else Choices()
        plan = Plan(study, tuple(overrides), choices)
        trials = [trial.cell for trial in plan.trials]
        cells = trials if search_only else [*trials, *plan.first_cells]
        check_cells(StudyFolder(out), cells)
    except UserError as error:
        raise UserError(f"{file}: {error}") from None
    if parallel.on == "ray":
        from simulations.ray import require_ray

        require_ray("--on ray")
    folder = StudyFolder.create(out, text, resume, str(file), overrides, plan.choices)
    console = plain_console()
    console.print(_headline(plan), soft_wrap=True)
    pool = _pool(folder, parallel)
    try:
        with folder.locked(), StudyDisplay(folder, console) as display:
            if search_only:
                outcomes = searched(folder, plan, pool, display)[1]
            else:
                outcomes = run_study(folder, plan, pool, display)
    except KeyboardInterrupt:
        command = "search" if search_only else "run"
        again = f"fedpeft study {command} {file} --out {out} {parallel} --resume"
        raise Interrupted(f"finished runs are kept; `{again}` continues") from None
    _print_end(folder, search_only)
    if outcomes.failed:
        advice = "try --resume" if outcomes.retry else "correct the causes above first"
        raise RunFailed(f"{len(outcomes.failed)} runs of the study have no result; {advice}")


def _headline(plan: Plan) -> str:
    axes = " x ".join(f"{len(axis.choices)} {axis.name}" for axis in plan.axes)
    trials = f", after {len(plan.trials)} trials" if plan.trials else ""
    return f"{plan.study.title or 'study'}: {plan.size} cells ({axes}){trials}"


def _pool(folder: StudyFolder, parallel: Parallel) -> Pool:
    from simulations.study.folder import LOG

    if parallel.on == "ray":
        from simulations.study.ray import run_on_ray

        return partial(run_on_ray, count=parallel.jobs)
    from simulations.study.pool import run_jobs

    return partial(run_jobs, count=parallel.jobs, log=folder.path / LOG)


def _print_end(folder: StudyFolder, search_only: bool) -> None:
    from simulations.study.status import printed, status_of

    status = status_of(folder)
    print(printed(status))
    if not search_only and "finished" in status["cells"]:
        print(f"table: {folder.path / 'table.csv'}; `fedpeft report {folder.path}` draws it")
