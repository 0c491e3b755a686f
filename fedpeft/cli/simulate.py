"""``fedpeft simulate``: run a federation on this machine."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedpeft.cli.options import Overrides
from fedpeft.cli.running import default_folder, print_result
from fedpeft.config import Experiment
from fedpeft.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console


def simulate(
    experiment: Annotated[
        Path | None, typer.Argument(help="Experiment file (TOML); none = the defaults.")
    ] = None,
    overrides: Overrides = None,
    out: Annotated[
        Path | None, typer.Option(help="Run folder; default runs/TASK-METHOD-TIME.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out.")] = False,
    profile: Annotated[
        bool,
        typer.Option("--profile", help="Write where the time went, and a trace; local engine."),
    ] = False,
) -> None:
    """Run a simulated federation and write its run folder.

    Example: fedpeft simulate -s backbone=minilm -s method.d=512 --out runs/first
    """
    if resume and out is None:
        raise UserError("--resume needs --out, the folder of the run to go on with")
    if resume and experiment is None:
        kept = out / "experiment.toml" if out else None
        experiment = kept if kept and kept.is_file() else None
    settings = Experiment.read(experiment, overrides or ())
    _run(settings, out or default_folder(settings), resume, profile)


def _run(experiment: Experiment, out: Path, resume: bool, profile: bool) -> None:
    from rich.console import Console

    console = Console(highlight=False, markup=False)
    with console.status("loading backbone and data"):
        from simulations import plots, run
        from simulations.display import Display
        from simulations.profile import profiled, require_local

        if profile:
            require_local(experiment)
        folder, runtime = run.prepare(experiment, out, resume)
    layout, federation = runtime.trainable.shared, experiment.federation
    console.print(
        f"{experiment.task.name} · {experiment.method.name} on {experiment.backbone} · "
        f"{federation.clients} clients, {experiment.clients_per_round} a round · "
        f"{layout.size:,} numbers each way ({layout.head_size:,} of them the head)",
        soft_wrap=True,
    )
    with folder.locked(), run.quiet():
        folder.checkpoint()  # drops what was written after it, before the display looks
        with (
            Display(folder, federation.rounds, runtime.task.info.metric, console),
            profiled(folder.path) if profile else nullcontext() as seconds,
        ):
            result = run.simulate(folder, experiment)
    if experiment.output.plots:
        plots.draw_run(folder, runtime)
    print_result(console, result, folder, federation.rounds)
    if seconds:
        _print_profile(console, seconds)


def _print_profile(console: Console, seconds: dict[str, float]) -> None:
    """Print the seconds and shares of a run's phases."""
    whole = sum(seconds.values())
    for name, each in seconds.items():
        console.print(f"{name:<14}{each:10.2f} s{each / whole:8.1%}", highlight=False)
