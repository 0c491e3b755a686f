"""Numbers that sites report: type and range are checked, and errors quote no text of a site."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedpeft.tasks import Kind
from fedpeft.tasks.metrics import MAX_SCORE

#: Largest loss of one example of the other kinds; a cross-entropy is a difference of logits.
_MAX_CROSS_ENTROPY = 1e6


def max_loss(kind: Kind) -> float:
    """Return the largest loss of an example; all losses are 0 or more."""
    return MAX_SCORE**2 if kind == "score" else _MAX_CROSS_ENTROPY


def read_int(record: Mapping[str, Any], key: str, least: int, most: int) -> int:
    """Return a whole number that a site reported.

    Raises:
        ValueError: it is missing, of another type, or outside of ``least`` to ``most``.
    """
    value = _read(record, key, (int,))
    if not least <= value <= most:
        shown = value if abs(value) < 1 << 64 else f"of {value.bit_length()} bits"
        raise ValueError(f"{key} is {shown}, expected {least} to {most}")
    return int(value)


def read_float(record: Mapping[str, Any], key: str, least: float, most: float) -> float:
    """Return a number that a site reported.

    Raises:
        ValueError: it is missing, of another type, NaN, or outside of ``least`` to ``most``.
    """
    value = _read(record, key, (int, float))
    if not least <= value <= most:  # also for NaN
        raise ValueError(f"{key} is {value:.4g}, expected {least:g} to {most:g}")
    return float(value)


def _read(record: Mapping[str, Any], key: str, types: tuple[type, ...]) -> Any:
    value = record.get(key)
    if value is None:
        raise ValueError(f"{key} is missing")
    if type(value) not in types:  # bool is an int
        raise ValueError(f"{key} is of type {type(value).__name__}, expected a number")
    return value
