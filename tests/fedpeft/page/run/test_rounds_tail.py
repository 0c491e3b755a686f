"""rounds.jsonl as it grows, is damaged, and is replaced."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fedpeft.page.run.rounds import RoundsTail


def line(number: int, **more: Any) -> dict[str, Any]:
    sizes = {"payload": 100, "message": 150}
    measured = {"score": number / 10, "loss": 1.0, "metrics": {"f1": 0.0, "accuracy": number / 10}}
    sent = {"bytes": {"up": sizes, "down": {"payload": 200, "message": 250}}}
    return {"round": number, "clients": 3, "failed": [], "seconds": 2.0, **measured, **sent, **more}


def text(*lines: dict[str, Any]) -> str:
    return "".join(json.dumps(entry) + "\n" for entry in lines)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "rounds.jsonl"


def test_only_whole_new_lines_are_read(path: Path) -> None:
    tail = RoundsTail(path)
    assert not tail.refresh() and len(tail) == 0
    path.write_text(text(line(1)) + '{"round": 2')
    assert tail.refresh() and len(tail) == 1
    assert not tail.refresh()
    with path.open("a") as file:
        file.write(json.dumps(line(2))[len('{"round": 2') :] + "\n" + text(line(3, score=None)))
    assert tail.refresh()
    assert tail.columns["round"] == [1, 2, 3]
    assert tail.columns["score"] == [0.1, 0.2, None]
    assert tail.columns["up"] == [150] * 3 and tail.columns["payload"] == [100] * 3
    assert tail.since(2)["round"] == [3]
    assert tail.metrics == ["accuracy"]


@pytest.mark.parametrize(
    "broken",
    [
        b"{",
        b"[]",
        b"3",
        b"\xff\xfe",
        b'{"round": 2}',
        b"",
        json.dumps(line(2, seconds="x")).encode(),
    ],
)
def test_a_damaged_line_is_named_and_the_rest_is_shown(path: Path, broken: bytes) -> None:
    path.write_bytes(text(line(1)).encode() + broken + b"\n" + text(line(3)).encode())
    tail = RoundsTail(path)
    tail.refresh()
    assert tail.columns["round"] == [1, 3]
    (problem,) = tail.problems
    assert problem.startswith("rounds.jsonl line 2 is damaged and left out (")


@pytest.mark.parametrize("last", [3, 9])
def test_a_replaced_file_is_read_again_if_shorter_or_longer(path: Path, last: int) -> None:
    path.write_text(text(*map(line, range(1, 6))))
    tail = RoundsTail(path)
    tail.refresh()
    before = tail.generation
    new = path.with_name("new")
    new.write_text(text(*map(line, range(1, last + 1))))
    new.replace(path)
    assert tail.refresh() and tail.generation > before
    assert tail.columns["round"] == [*range(1, last + 1)]
    path.unlink()
    assert tail.refresh() and len(tail) == 0


def test_failures_are_counted_by_reason(path: Path) -> None:
    def failed(*pairs: tuple[int, str]) -> list[dict[str, Any]]:
        return [{"client": client, "reason": reason} for client, reason in pairs]

    first, second = failed((1, "slow"), (2, "slow")), failed((1, "slow"), (4, "<b>"))
    path.write_text(text(line(1, failed=first), line(2), line(3, failed=second, late=[5])))
    tail = RoundsTail(path)
    tail.refresh()
    assert tail.failures == [
        {"reason": "slow", "times": 3, "clients": 2, "first": 1, "last": 3},
        {"reason": "<b>", "times": 1, "clients": 1, "first": 3, "last": 3},
    ]
    assert tail.columns["failed"] == [2, 0, 2] and tail.columns["late"] == [0, 0, 1]


def test_numbers_that_json_does_not_know_are_left_out(path: Path) -> None:
    path.write_text(text(line(1, loss=float("nan"), epsilon=float("inf"), score=True)))
    tail = RoundsTail(path)
    tail.refresh()
    assert (tail.columns["loss"], tail.columns["epsilon"], tail.columns["score"]) == ([None],) * 3
