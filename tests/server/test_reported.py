"""Numbers that sites report are refused if their type or size is wrong, without quoting texts."""

from __future__ import annotations

import math
from typing import Any

import pytest

from fedpeft.tasks.metrics import MAX_SCORE
from server.aggregation.reported import max_loss, read_float, read_int


@pytest.mark.parametrize("value", [3, 0, 7])
def test_a_whole_number_in_range_is_returned(value: int) -> None:
    assert read_int({"examples": value}, "examples", 0, 7) == value


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (8, "examples is 8, expected 0 to 7"),
        (-1, "examples is -1, expected 0 to 7"),
        (10**400, "examples is of 1329 bits, expected 0 to 7"),
        (True, "examples is of type bool"),
        (1.0, "examples is of type float"),
        ("1", "examples is of type str"),
        (b"1" * 100_000, "examples is of type bytes"),
        (["x" * 100_000], "examples is of type list"),
        (None, "examples is missing"),
    ],
)
def test_any_other_whole_number_is_refused_in_a_short_line(value: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=reason) as refused:
        read_int({"examples": value}, "examples", 0, 7)
    assert len(str(refused.value)) < 100


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1.7e308, -1e-9, "0.5", [0.5]])
def test_a_loss_out_of_range_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match="loss is "):
        read_float({"loss": value}, "loss", 0, max_loss("classes"))


def test_a_missing_number_is_named() -> None:
    with pytest.raises(ValueError, match=r"^loss is missing$"):
        read_float({}, "loss", 0, 1)


def test_a_squared_error_may_be_larger_than_a_cross_entropy() -> None:
    assert read_float({"loss": 1e12}, "loss", 0, max_loss("score")) == 1e12
    assert max_loss("score") == MAX_SCORE**2 > max_loss("classes") == max_loss("tags")
