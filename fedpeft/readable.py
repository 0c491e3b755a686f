"""Bytes, durations, and epsilons as text for people."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from pathlib import PurePath
from typing import Any


def readable_bytes(count: float) -> str:
    """Return a number of bytes such as ``7.2 KB`` (1 KB = 1,000 bytes)."""
    for unit in ("B", "KB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.2f} GB"


def readable_seconds(seconds: float) -> str:
    """Return a duration such as ``2 min 05 s``."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"


def readable_epsilon(epsilon: float | None) -> str:
    """Return an epsilon, rounded up; ``infinite`` if it is unbounded."""
    return "infinite" if epsilon is None else f"{ceil(100 * epsilon) / 100:.2f}"


def task_title(task: Mapping[str, Any]) -> str:
    """Return the name of a task for people: that of the file or folder if the data are their own.

    Args:
        task: the section ``[task]`` of an experiment.
    """
    data = str(task.get("train") or task.get("path") or "")
    own = task["name"] == "custom" and data
    return PurePath(data).name or data if own else str(task["name"])
