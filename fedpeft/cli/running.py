"""What commands that run a federation share: its default folder, and what is said at its end."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedpeft.config import Experiment

if TYPE_CHECKING:
    from rich.console import Console

    from server.runfolder import RunFolder

_SHOWN = 3  # clients that failed, at the end
_LARGE_DELTA = 0.01  # with it, one of a hundred may be betrayed outright


def default_folder(experiment: Experiment) -> Path:
    """Return ``runs/TASK-METHOD-TIME``."""
    name = f"{experiment.task.name.replace('/', '-')}-{experiment.method.name}"
    return Path("runs") / f"{name}-{datetime.now():%Y%m%d-%H%M%S}"


def print_result(console: Console, result: dict[str, Any], folder: RunFolder, rounds: int) -> None:
    """Print what a finished run came to, who failed, what it promises, and where its files are.

    Args:
        console: to print on.
        result: content of result.json.
        folder: of the run.
        rounds: number of rounds wanted.
    """
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
