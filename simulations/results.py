"""The default folder of a run, and the text that commands print when it has ended."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedpeft.errors import UserError
from fedpeft.experiment.config import Experiment
from fedpeft.privacy_words import privacy_line
from fedpeft.readable import readable_bytes, readable_seconds
from simulations.spread import called, names_of

if TYPE_CHECKING:
    from rich.console import Console

    from server.records import BothWays, FailedClient, RoundLine
    from server.runfolder import RunFolder

_SHOWN = 3  # failed clients that are printed


def new_folder(experiment: Experiment) -> Path:
    """Create and return ``runs/TASK-METHOD-TIME``, with a number appended if it exists.

    Raises:
        UserError: it cannot be created.
    """
    task, method = experiment.task.name.replace("/", "-"), experiment.method.name
    first = folder = Path("runs") / f"{task}-{method}-{datetime.now():%Y%m%d-%H%M%S}"
    number = 1
    try:
        folder.parent.mkdir(exist_ok=True)
        while True:
            with suppress(FileExistsError):
                folder.mkdir()
                return folder
            number += 1
            folder = first.with_name(f"{first.name}-{number}")
    except OSError as error:
        raise UserError(f"'{folder}' cannot be created ({error.strerror}); set --out") from None


@contextmanager
def kept_or_new(out: Path | None, experiment: Experiment) -> Iterator[Path]:
    """Yield ``out``, or a new folder, which goes again if nothing was written into it."""
    folder = out or new_folder(experiment)
    try:
        yield folder
    finally:
        if out is None:
            with suppress(OSError):
                folder.rmdir()


def print_result(console: Console, result: dict[str, Any], folder: RunFolder, rounds: int) -> None:
    """Print the score, bytes, failures, privacy, and folder of a finished run.

    Args:
        console: to print on.
        result: content of result.json.
        folder: of the run.
        rounds: number of rounds in the settings.
    """
    score = "undefined" if result["score"] is None else f"{result['score']:.4f}"
    up, evaluated = (result["bytes"][key] for key in ("per_client_round_up", "evaluate"))
    rounds_text = "1 round" if result["rounds"] == 1 else f"{result['rounds']} rounds"
    lines = [
        f"{result['metric']} {score} after {rounds_text}{_start(result)} in "
        f"{readable_seconds(result['seconds'])}; a client sent {up['payload']:,} bytes of numbers "
        f"a round ({up['message']:,} as a message), training {_both_ways(result['bytes'])}, "
        f"handshakes {_both_ways(result['bytes']['handshake'])}"
        + (f", evaluation {_both_ways(evaluated)}" if evaluated["up"]["message"] else "")
        + (f", sums {_both_ways(result['bytes']['start'])}" if "start" in result["bytes"] else ""),
        *result.get("remarks", ()),  # old runs have none
        *_backdoor(result["metrics"]),
        *_times(folder.rounds()),
        *_failures(folder.rounds(), folder.path),
    ]
    if result["rounds"] < rounds:
        lines.append(f"ended before round {result['rounds'] + 1} of {rounds}: privacy is spent")
    statements = (result["privacy"] or {}).values()
    lines += [privacy_line(statement) for statement in statements if statement]
    for line in (*lines, f"results: {folder.path}"):
        console.print(line, soft_wrap=True)


def _start(result: dict[str, Any]) -> str:
    """Return the score before the first round as text, if it was measured."""
    start = result.get("start") or {"score": None}  # old runs have none
    return "" if start["score"] is None else f" ({start['score']:.4f} before the first)"


def _backdoor(metrics: dict[str, float | None]) -> list[str]:
    """Return a line about the success of a backdoor, if there is one and it was measured."""
    success = metrics.get("attack_success")
    if success is None:
        return []
    return [f"the backdoor turned {success:.1%} of other texts into its target"]


def _both_ways(sizes: BothWays) -> str:
    """Return the bytes of the messages in both directions as text."""
    up, down = sizes["up"]["message"], sizes["down"]["message"]
    return f"{readable_bytes(up)} up and {readable_bytes(down)} down"


def _times(rounds: list[RoundLine]) -> list[str]:
    """Return lines about virtual time and late replies, if there are any."""
    virtual, late = rounds[-1].get("virtual"), sum(len(line.get("late", [])) for line in rounds)
    asked = late + sum(line["clients"] + len(line["failed"]) for line in rounds)
    lines = [f"{readable_seconds(virtual)} of virtual time"] if virtual is not None else []
    return [*lines, f"{late} of {asked} replies came too late"] if late else lines


def _failures(rounds: list[RoundLine], folder: Path) -> list[str]:
    """Return a line for each of the clients that failed most often, at most three."""
    failures: dict[int, list[FailedClient]] = {}
    for line in rounds:
        for failed in line["failed"]:
            failures.setdefault(failed["client"], []).append(failed)
    names = names_of(folder) if failures else ()
    most = sorted(failures.items(), key=lambda failure: -len(failure[1]))
    lines = [
        f"{called(times[-1], names)} failed in {len(times)} of {len(rounds)} rounds: "
        f"{times[-1]['reason']}"
        for _, times in most[:_SHOWN]
    ]
    more = len(most) - len(lines)
    return [*lines, f"{more} more clients failed in some rounds"] if more else lines
