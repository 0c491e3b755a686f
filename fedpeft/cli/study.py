"""``fedpeft study``: run the cells of a study, see how far it is, search for settings."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from fedpeft.cli.options import AsJson, Overrides
from fedpeft.errors import Interrupted, RunFailed, UserError

if TYPE_CHECKING:
    from simulations.study.folder import StudyFolder
    from simulations.study.plan import Plan
    from simulations.study.running import Pool

app = typer.Typer(no_args_is_help=True, help="Many runs from one file.")
_File = Annotated[Path, typer.Argument(help="Study file (TOML).")]
_Out = Annotated[Path | None, typer.Option(help="Study folder; default runs/studies/NAME.")]
_Jobs = Annotated[int, typer.Option(min=1, help="Runs side by side, each in its process.")]
_Resume = Annotated[bool, typer.Option("--resume", help="Go on with the study in its folder.")]
_On = Annotated[
    Literal["local", "ray"],
    typer.Option(help="This machine, or a Ray cluster that shares the study's folder."),
]


@app.command()
def run(
    file: _File,
    overrides: Overrides = None,
    out: _Out = None,
    jobs: _Jobs = 1,
    resume: _Resume = False,
    on: _On = "local",
) -> None:
    """Run a study: its search, if it has one, and all its cells; then write its table.

    A run that fails does not stop the others. With --resume finished runs stay, and all others
    go on where they were.

    Example: fedpeft study run simulations/studies/noniid-small.toml --jobs 2
    """
    _run(file, overrides or [], out, jobs, resume, on, search_only=False)


@app.command()
def search(
    file: _File,
    overrides: Overrides = None,
    out: _Out = None,
    jobs: _Jobs = 1,
    resume: _Resume = False,
    on: _On = "local",
) -> None:
    """Run only a study's search: trials on examples cut from the training set, never on dev.

    `fedpeft study run --resume` takes what it found.

    Example: fedpeft study search simulations/studies/communication-small.toml --jobs 2
    """
    _run(file, overrides or [], out, jobs, resume, on, search_only=True)


@app.command()
def status(
    folder: Annotated[Path, typer.Argument(help="Study folder.")], as_json: AsJson = False
) -> None:
    """Say how far a study is, and what failed.

    Example: fedpeft study status runs/studies/noniid-small
    """
    import json

    from simulations.study.folder import StudyFolder
    from simulations.study.status import printed, status_of

    found = status_of(StudyFolder.open(folder))
    print(json.dumps(found, indent=2) if as_json else printed(found))


def _run(
    file: Path,
    overrides: list[str],
    out: Path | None,
    jobs: int,
    resume: bool,
    on: str,
    search_only: bool,
) -> None:
    from rich.console import Console

    from simulations.study.display import StudyDisplay
    from simulations.study.file import read
    from simulations.study.folder import StudyFolder
    from simulations.study.plan import Plan
    from simulations.study.running import run_study, searched

    study, text = read(file)
    out = out or Path("runs/studies") / file.stem
    if resume and not overrides:
        overrides = StudyFolder.open(out).asked()["set"]
    if search_only and not study.search:
        raise UserError(f"{file}: has no [search]; `fedpeft study run` runs its cells")
    try:
        plan = Plan(study, tuple(overrides))
    except UserError as error:
        raise UserError(f"{file}: {error}") from None
    if on == "ray":
        from simulations.ray import require_ray

        require_ray("--on ray")
    folder = StudyFolder.create(out, text, resume, str(file), overrides)
    console = Console(highlight=False, markup=False)
    console.print(_headline(plan), soft_wrap=True)
    pool = _pool(folder, jobs, on)
    try:
        with folder.locked(), StudyDisplay(folder, jobs, console) as display:
            if search_only:
                failed = searched(folder, plan, pool, display)[1]
            else:
                failed = run_study(folder, plan, pool, display).failed
    except KeyboardInterrupt:
        command = "search" if search_only else "run"
        again = f"fedpeft study {command} {file} --out {out} --jobs {jobs} --resume"
        raise Interrupted(f"what is finished stays; `{again}` goes on") from None
    _print_end(folder, search_only)
    if failed:
        raise RunFailed(f"without a result: {len(failed)} of the study's runs; try --resume")


def _headline(plan: Plan) -> str:
    axes = " x ".join(f"{len(axis.choices)} {axis.name}" for axis in plan.axes)
    trials = f", after {len(plan.trials)} trials" if plan.trials else ""
    return f"{plan.study.title or 'study'}: {plan.size} cells ({axes}){trials}"


def _pool(folder: StudyFolder, jobs: int, on: str) -> Pool:
    from simulations.study.folder import LOG

    if on == "ray":
        from simulations.study.ray import run_on_ray

        return partial(run_on_ray, count=jobs)
    from simulations.study.workers import run_jobs

    return partial(run_jobs, count=jobs, log=folder.path / LOG)


def _print_end(folder: StudyFolder, search_only: bool) -> None:
    from simulations.study.status import printed, status_of

    status = status_of(folder)
    print(printed(status))
    if not search_only and "finished" in status["cells"]:
        print(f"table: {folder.path / 'table.csv'}; `fedpeft report {folder.path}` draws it")
