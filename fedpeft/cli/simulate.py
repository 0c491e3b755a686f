"""``fedpeft simulate``: run a simulated federation on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedpeft.cli.options import (
    ExperimentFile,
    FromRound,
    NewRun,
    Overrides,
    check_from_round,
    read_experiment,
)
from fedpeft.cli.printing import headline, plain_console
from fedpeft.errors import UserError, telling
from fedpeft.experiment.adversary import too_many
from fedpeft.experiment.config import Experiment
from fedpeft.experiment.robust import unset

if TYPE_CHECKING:
    from rich.console import Console

    from fedpeft.backbones.loading import Backbone
    from fedpeft.runtime import Runtime
    from fedpeft.vector import Layout


def simulate(
    experiment: ExperimentFile = None,
    overrides: Overrides = None,
    out: NewRun = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in --out.")] = False,
    from_round: FromRound = None,
    profile: Annotated[
        bool,
        typer.Option("--profile", help="Write the time of each phase, and a trace; local engine."),
    ] = False,
    watch: Annotated[
        bool, typer.Option("--watch", help="Show the run on a live page, as `fedpeft watch` does.")
    ] = False,
) -> None:
    """Run a simulated federation and write its run folder.

    Prints a line per round, the score, the bytes sent, the privacy spent, and the run folder.

    Example: fedpeft simulate -s backbone=minilm -s method.d=512 --out runs/first
    """
    from fedpeft.vectorfile import EXPERIMENT

    check_from_round(from_round, resume)
    if resume and out is None:
        raise UserError("--resume needs --out, the folder of the run to continue")
    # A budget is repeated with all settings that it chose for, and chooses the same again.
    budget = any(override.startswith("wire.budget") for override in overrides or ())
    if resume and experiment is None and out and (out / EXPERIMENT).is_file() and not budget:
        experiment = out / EXPERIMENT
    settings = read_experiment(experiment, overrides, print, out)
    _run(settings, out, resume, from_round, profile, watch)


def _run(
    experiment: Experiment,
    out: Path | None,
    resume: bool,
    from_round: int | None,
    profile: bool,
    watch: bool,
) -> None:
    console = plain_console()
    with console.status("loading backbone and data"):
        from simulations import plots, simulation
        from simulations.display import Display
        from simulations.profile import profiled, require_local
        from simulations.results import print_result

        if profile:
            require_local(experiment)
        folder, runtime = simulation.prepare(experiment, out, resume)
    _introduce(console, experiment, runtime)
    again = f"fedpeft simulate --out {folder.path} --resume"
    with folder.locked(), simulation.quiet(), telling(f"{again} continues the run"):
        if from_round is not None:
            folder.rewind(from_round)
        folder.checkpoint()  # drops later lines before the display starts
        with (
            _page(folder.path, console) if watch else nullcontext(),
            Display(folder, experiment.federation.rounds, runtime.task.info.metric, console),
            profiled(folder.path) if profile else nullcontext() as seconds,
        ):
            result = simulation.simulate(folder, experiment)
    print_result(console, result, folder, experiment.federation.rounds)
    if seconds:
        _print_profile(console, seconds)
    if experiment.output.plots:
        with telling(f"the run is complete; {again} draws its plots"):
            plots.draw_run(folder, runtime)


def _introduce(console: Console, experiment: Experiment, runtime: Runtime) -> None:
    """Print the line on the run, and warnings."""
    from fedpeft.backbones.hardware import emulated
    from fedpeft.export.obstacles import unexportable
    from fedpeft.tasks.caveats import tags_read
    from fedpeft.tasks.metrics import undefined

    layout, federation = runtime.parameters.shared, experiment.federation
    precision = _precision(experiment, runtime.backbone)
    console.print(
        headline(
            experiment,
            f"{federation.clients:,} clients, {_a_round(experiment)}",
            _traffic(layout, experiment),
            *([f"{precision} (auto)"] if experiment.engine.autocast == "auto" else []),
            *([tags_read(runtime.info)] if runtime.info.kind == "tags" else []),
            *filter(None, [unexportable(experiment)]),
        ),
        soft_wrap=True,
    )
    for warning in (
        unset(federation),
        too_many(experiment.adversary, federation, experiment.clients_per_round),
        emulated(precision, runtime.backbone.device),
        undefined(runtime.info, runtime.task.dev.labels),
    ):
        if warning:
            console.print(warning, soft_wrap=True)


def _a_round(experiment: Experiment) -> str:
    """Return the clients of a round as text, with those asked in reserve."""
    used, asked = experiment.clients_per_round, experiment.clients_asked
    if experiment.federation.mode == "async":
        return f"{used:,} at a time, {experiment.federation.buffer:,} replies a round"
    return f"{used:,} a round" if used == asked else f"the first {used:,} of {asked:,} a round"


def _traffic(layout: Layout, experiment: Experiment) -> str:
    """Return the numbers of the shared vector as text, and the codecs they travel in."""
    numbers, head = f"{layout.size:,} numbers", f"({layout.head_size:,} of them the head)"
    up, down = experiment.wire.up, experiment.wire.down
    if up == down == "float32":
        return f"{numbers} each way {head}"
    return f"{numbers} {head}, {up} up and {down} down"


def _precision(experiment: Experiment, backbone: Backbone) -> str:
    """Return the number format inside the backbone."""
    from fedpeft.backbones.hardware import choose_autocast

    chosen = choose_autocast(
        experiment.engine.autocast, backbone.device, backbone.model.dtype, backbone.weights
    )
    return experiment.engine.dtype if chosen == "off" else chosen


@contextmanager
def _page(out: Path, console: Console) -> Iterator[None]:
    """Serve the live page of the run in ``out``, and open it where there is a screen."""
    from simulations.watch.browser import open_page
    from simulations.watch.child import watched

    with watched(out) as address:
        if address:
            console.print(f"page: {address}", soft_wrap=True)
            open_page(address)
        yield


def _print_profile(console: Console, seconds: dict[str, float]) -> None:
    """Print the seconds and shares of a run's phases."""
    total = sum(seconds.values())
    for phase, duration in seconds.items():
        console.print(f"{phase:<14}{duration:10.2f} s{duration / total:8.1%}")
