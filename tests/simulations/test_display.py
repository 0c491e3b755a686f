"""What a person sees while a run goes on."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from fedpeft.experiment.config import Experiment
from fedpeft.readable import readable_bytes, readable_seconds
from server.checkpoints import Checkpoint
from server.runfolder import RunFolder
from simulations.display import Display


def line(number: int, **more: Any) -> dict[str, Any]:
    sizes = {"payload": 4000, "message": 5000}
    return {
        "round": number,
        "clients": 3,
        "failed": [],
        "loss": 1 / number,
        "score": number / 10,
        "seconds": 90.0,
        "bytes": {"down": sizes, "up": {"payload": 100, "message": 600}},
        **more,
    }


def save(folder: RunFolder, content: dict[str, Any]) -> None:
    folder.save_round(content, [], Checkpoint(content["round"], np.zeros(1)))


def text(console: Console) -> str:
    """Return what a console that writes to memory has shown."""
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


@pytest.fixture
def folder(quick: Callable[..., Experiment], tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path / "run", quick())


def test_without_a_terminal_each_round_is_one_line(folder: RunFolder) -> None:
    console = Console(file=StringIO(), width=40)  # narrow: lines are not wrapped
    with Display(folder, 3, "accuracy", console):
        for number in (1, 2, 3):
            save(folder, line(number, score=None if number == 2 else number / 10))
    printed = text(console)
    assert printed.splitlines() == [
        "round 1/3  accuracy 0.1000  loss 1.0000  up 600 B  down 5.0 KB  1 min 30 s a round  "
        "3 min 00 s left",
        "round 2/3  accuracy -  loss 0.5000  up 1.2 KB  down 10.0 KB  1 min 30 s a round  "
        "1 min 30 s left",
        "round 3/3  accuracy 0.3000  loss 0.3333  up 1.8 KB  down 15.0 KB  1 min 30 s a round  "
        "done",
    ]


def test_failures_are_named(folder: RunFolder) -> None:
    console = Console(file=StringIO())
    with Display(folder, 1, "accuracy", console):
        save(folder, line(1, failed=[{"client": 4, "reason": "error 2: [red]KeyError"}]))
    assert "client 4 failed: error 2: [red]KeyError" in text(console)


def test_rounding_that_drowns_the_updates_is_said_once_and_early(folder: RunFolder) -> None:
    console = Console(file=StringIO(), width=40)
    with Display(folder, 3, "accuracy", console):
        for number, error in enumerate((0.4, 9.8, 9.9), start=1):
            save(folder, line(number, caveats={"rounding": error}))
    said = [at for at, one in enumerate(text(console).splitlines()) if "an error of" in one]
    assert said == [2]
    assert "adds an error of 9.8 times the norm of an update" in text(console)


def test_a_resumed_run_does_not_show_earlier_rounds_again(folder: RunFolder) -> None:
    save(folder, line(1))
    console = Console(file=StringIO())
    with Display(folder, 2, "accuracy", console):
        save(folder, line(2))
    printed = text(console)
    assert printed.startswith("round 2/2")
    assert printed.count("round ") == 2  # one line: "round 2/2 ... a round  done"


def test_in_a_terminal_there_is_a_live_table(folder: RunFolder) -> None:
    console = Console(file=StringIO(), force_terminal=True, width=110)
    save(folder, line(1))
    folder.report(phase="train", number=2, done=1, total=4)
    with Display(folder, 3, "f1", console):
        save(folder, line(2, failed=[{"client": 0, "reason": "late"}]))
    printed = text(console)
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", printed)
    assert "\x1b[" in printed
    for title in ("round", "f1", "train loss", "up", "down", "time", "failed"):
        assert title in plain
    assert re.search(r"1 +0.1000 +1.0000 +600 B +5.0 KB +1 min 30 s", plain)
    assert re.search(r"2 +0.2000 +0.5000 +1.2 KB +10.0 KB +1 min 30 s +1", plain)
    assert "67 %  1 min 30 s left" in re.sub(r"\n|(?<=%) +", "  ", plain)


def test_the_bar_shows_who_has_replied(folder: RunFolder) -> None:
    console = Console(file=StringIO(), force_terminal=True, width=110)
    folder.report(phase="train", number=1, done=1, total=4)
    with Display(folder, 3, "f1", console):
        pass
    assert "round 1: train 1/4" in text(console)


@pytest.mark.parametrize("terminal", [True, False])
def test_a_run_that_fails_before_its_first_round_leaves_no_trace_of_an_error(
    folder: RunFolder, terminal: bool
) -> None:
    (folder.path / "progress.json").write_text("{")
    console = Console(file=StringIO(), force_terminal=terminal)
    with pytest.raises(RuntimeError), Display(folder, 3, "f1", console):
        raise RuntimeError
    assert "Traceback" not in text(console)


def test_a_line_that_is_being_written_is_not_shown(folder: RunFolder) -> None:
    console = Console(file=StringIO())
    with Display(folder, 3, "f1", console), open(folder.path / "rounds.jsonl", "a") as file:
        file.write(json.dumps(line(1)))
    assert console.file.getvalue() == ""  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("count", "shown"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 KB"),
        (7176, "7.2 KB"),
        (999_949, "999.9 KB"),
        (2_500_000, "2.5 MB"),
        (12_340_000_000, "12.34 GB"),
    ],
)
def test_bytes_are_readable(count: float, shown: str) -> None:
    assert readable_bytes(count) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0, "0.0 s"),
        (9.94, "9.9 s"),
        (10.4, "10 s"),
        (59.4, "59 s"),
        (59.6, "1 min 00 s"),
        (125, "2 min 05 s"),
        (3600, "60 min 00 s"),
    ],
)
def test_seconds_are_readable(seconds: float, shown: str) -> None:
    assert readable_seconds(seconds) == shown
