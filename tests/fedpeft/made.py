"""Run folders without training: as many rounds and runs as a page has to show."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from fedpeft.experiment.config import Experiment


@cache
def settings(rounds: int, *more: str) -> str:
    """Return the content of experiment.toml."""
    overrides = ["backbone=tiny", "method.d=16", "federation.clients=6"]
    return Experiment.load("", [*overrides, f"federation.rounds={rounds}", *more]).to_toml(
        comments=True
    )


def line(number: int, **more: Any) -> dict[str, Any]:
    """Return a line of rounds.jsonl."""
    none = {"payload": 0, "message": 0}
    score = 0.5 + 0.4 * (1 - math.exp(-number / 40)) + 0.01 * math.sin(number)
    return {
        "round": number,
        "clients": 6,
        "failed": [],
        "late": [],
        "clipped": [],
        "loss": 0.7 * math.exp(-number / 60),
        "score": score,
        "eval_loss": 0.6,
        "metrics": {"accuracy": score, "f1": score / 2},
        "evaluated": 100,
        "seconds": 1.5,
        "virtual": None,
        "bytes": {
            "down": {"payload": 1968, "message": 2900},
            "up": {"payload": 1968, "message": 3400},
            "evaluate": {"down": none, "up": none},
            "handshake": {"down": none, "up": none},
            "wire": None,
        },
        "epsilon": None,
        "privacy": None,
        **more,
    }


def add_lines(path: Path, *lines: dict[str, Any]) -> None:
    """Append lines to a run's rounds.jsonl."""
    with (path / "rounds.jsonl").open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(entry) + "\n" for entry in lines)


def result(rounds: int) -> dict[str, Any]:
    """Return the content of result.json."""
    total = line(rounds)["bytes"]
    for way in ("up", "down"):
        total[way] = {kind: size * rounds for kind, size in total[way].items()}
    return {
        "task": "synthetic/sentiment",
        "method": "slash",
        "backbone": "tiny",
        "metric": "accuracy",
        "score": line(rounds)["score"],
        "rounds": rounds,
        "clients": 6,
        "vector_size": 82,
        "head_size": 66,
        "bytes": total | {"per_client_round_up": {"payload": 328, "message": 567}},
        "epsilon": None,
        "privacy": None,
        "seconds": 1.5 * rounds,
        "digests": {"backbone": "0" * 64},
        "versions": {"fedpeft": "0.1.0"},
        "seed": 0,
    }


def make_run(
    path: Path,
    rounds: int = 5,
    done: int | None = None,
    entry: Callable[..., dict[str, Any]] = line,
    more: tuple[str, ...] = (),
) -> Path:
    """Write the folder of a run with ``done`` of its rounds; all of them = it is finished."""
    path.mkdir(parents=True)
    (path / "experiment.toml").write_text(settings(rounds, *more), encoding="utf-8")
    count = rounds if done is None else done
    add_lines(path, *(entry(number) for number in range(1, count + 1)))
    if count == rounds:
        (path / "result.json").write_text(json.dumps(result(rounds)), encoding="utf-8")
    return path
