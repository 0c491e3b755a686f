"""``fedpeft simulate``: run a federation on this machine."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from fedpeft.cli.options import Overrides
from fedpeft.config import Experiment
from fedpeft.errors import UserError

_SHOWN = 3  # clients that failed, at the end
_LARGE_DELTA = 0.01  # with it, one of a hundred may be betrayed outright


def simulate(
    experiment: Annotated[
        Path | None, typer.Argument(help="Experiment file (TOML); none = the defaults.")
    ] = None,
    overrides: Overrides = None,
    out: Annotated[
        Path | None, typer.Option(help="Run folder; default runs/TASK-METHOD-TIME.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out.")] = False,
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
    _run(settings, out or _default_folder(settings), resume)


def _default_folder(experiment: Experiment) -> Path:
    name = f"{experiment.task.name.replace('/', '-')}-{experiment.method.name}"
    return Path("runs") / f"{name}-{datetime.now():%Y%m%d-%H%M%S}"


def _run(experiment: Experiment, out: Path, resume: bool) -> None:
    from rich.console import Console

    console = Console(highlight=False, markup=False)
    with console.status("loading backbone and data"):
        from simulations import plots, run
        from simulations.display import Display

        folder, runtime = run.prepare(experiment, out, resume)
    layout, federation = runtime.model.layout, experiment.federation
    console.print(
        f"{experiment.task.name} · {experiment.method.name} on {experiment.backbone} · "
        f"{federation.clients} clients, {experiment.clients_per_round} a round · "
        f"{layout.size:,} numbers each way ({layout.head_size:,} of them the head)",
        soft_wrap=True,
    )
    with folder.locked(), _quiet("flwr", "server", "clients"):
        folder.checkpoint()  # drops what was written after it, before the display looks
        with Display(folder, federation.rounds, runtime.task.info.metric, console):
            result = run.simulate(folder, experiment)
    if experiment.output.plots:
        plots.draw_run(folder, runtime)
    _print_result(console, result, folder, federation.rounds)


@contextmanager
def _quiet(*names: str) -> Iterator[None]:
    """Hold back the loggers' warnings: the display says what they would."""
    levels = {name: logging.getLogger(name).level for name in names}
    try:
        for name in names:
            logging.getLogger(name).setLevel(logging.ERROR)
        yield
    finally:
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)


def _both_ways(sizes: dict[str, Any]) -> str:
    """Return the bytes of the messages in both directions, for people."""
    from simulations.display import readable_bytes

    up, down = (readable_bytes(sizes[way]["message"]) for way in ("up", "down"))
    return f"{up} up and {down} down"


def _failures(rounds: list[dict[str, Any]]) -> list[str]:
    """Return a line for each of the clients that failed most, at most three."""
    failures: dict[int, list[str]] = {}
    for line in rounds:
        for failed in line["failed"]:
            failures.setdefault(failed["client"], []).append(failed["reason"])
    most = sorted(failures.items(), key=lambda each: -len(each[1]))
    lines = [
        f"client {client} failed in {len(reasons)} of {len(rounds)} rounds: {reasons[-1]}"
        for client, reasons in most[:_SHOWN]
    ]
    more = len(most) - len(lines)
    return [*lines, f"{more} more clients failed in some rounds"] if more else lines


def _print_result(console: Any, result: dict[str, Any], folder: Any, rounds: int) -> None:
    from simulations.display import readable_seconds

    up, evaluated = (result["bytes"][key] for key in ("per_client_round_up", "evaluate"))
    console.print(
        f"{result['metric']} {result['score']:.4f} after {result['rounds']} rounds in "
        f"{readable_seconds(result['seconds'])}; a client sent {up['payload']:,} bytes of numbers "
        f"a round ({up['message']:,} as a message), training {_both_ways(result['bytes'])}, "
        f"handshakes {_both_ways(result['bytes']['handshake'])}"
        + (f", evaluation {_both_ways(evaluated)}" if evaluated["up"]["message"] else ""),
        soft_wrap=True,
    )
    for line in _failures(folder.rounds()):
        console.print(line, soft_wrap=True)
    if result["rounds"] < rounds:
        console.print(f"ended before round {result['rounds'] + 1} of {rounds}: privacy is spent")
    for said in (result["privacy"] or {}).values():
        if said:
            console.print(_privacy_line(said), soft_wrap=True)
    console.print(f"results: {folder.path}", soft_wrap=True)


def _privacy_line(said: dict[str, Any]) -> str:
    """Return one statement of result.json for people."""
    from simulations.display import readable_epsilon

    if said["epsilon"] is None:
        return f"no privacy for any {said['unit']}: some of it ran without noise"
    runs = [
        f"{steps:,} steps with noise multiplier {sigma:.4g} and q {rate:.4g}"
        for sigma, rate, steps in said["composition"]
    ]
    warnings = ""
    if said["delta"] > _LARGE_DELTA:
        warnings += f"; a delta of {said['delta']:.2g} promises little"
    if not said["releasable"]:
        warnings += "; NOT for release: the noise can be drawn again"
    return (
        f"({readable_epsilon(said['epsilon'])}, {said['delta']:.2g})-DP for every {said['unit']} "
        f"({said['neighbouring']}): {said['mechanism']}, {' and '.join(runs)}, "
        f"{said['accountant'].upper()} accountant{warnings}"
    )
