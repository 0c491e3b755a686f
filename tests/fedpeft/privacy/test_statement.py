"""Statements: what is read back, what is refused, and which one a run tells."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from fedpeft.privacy.accounting import Mechanism, Spent
from fedpeft.privacy.statement import read_statement, so_far, statement


def said(epsilon: float = 2.0, unit: Any = "example", releasable: bool = True) -> dict[str, Any]:
    spent = Spent(epsilon, 0.01, 1e-4, "prv")
    return statement(unit, Mechanism(1.1, 0.2, 30), spent, 0.5, "flat", releasable)


def test_a_statement_travels_as_json() -> None:
    assert read_statement(json.dumps(said()), "example") == said()
    unbounded = said(math.inf)
    assert unbounded["epsilon"] is None
    assert not unbounded["releasable"]
    assert read_statement(json.dumps(unbounded), "example") == unbounded


@pytest.mark.parametrize(
    "changes",
    [
        {"epsilon": -1},
        {"epsilon": "2"},
        {"epsilon": True},
        {"epsilon": math.nan},
        {"epsilon": None},  # and still releasable
        {"delta": None},
        {"steps": math.inf},
        {"unit": "client"},
        {"accountant": 7},
        {"mechanism": "x" * 200},
        {"releasable": 1},
        {"more": 1},
    ],
)
def test_a_statement_that_cannot_be_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"statement"):
        read_statement(json.dumps({**said(), **changes}), "example")


@pytest.mark.parametrize("text", ["[]", "null", "{}", "{"])
def test_what_is_no_statement_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"statement|Expecting"):
        read_statement(text, "example")


def test_a_run_tells_the_largest_epsilon_of_all_clients_and_rounds() -> None:
    first = so_far(None, [said(2.0), said(3.0), said(1.0, "client")])
    assert first["epsilon"] == 3.0
    then = so_far(first, [said(2.5), said(4.0, "client")])
    assert then["epsilon"] == 3.0
    assert then["privacy"]["client"]["epsilon"] == 4.0
    assert so_far(then, [said(math.inf)])["epsilon"] is None  # nothing bounds it any more


def test_one_client_with_seeded_noise_makes_the_run_unfit_for_release() -> None:
    told = so_far(so_far(None, [said(1.0, releasable=False)]), [said(2.0)])
    assert told["epsilon"] == 2.0
    assert not told["privacy"]["example"]["releasable"]


def test_without_privacy_nothing_is_told() -> None:
    nothing = {"epsilon": None, "privacy": None}
    assert so_far(None, []) == nothing
    assert so_far(nothing, []) == nothing


def test_where_only_clients_are_protected_the_epsilon_is_theirs() -> None:
    told = so_far(None, [said(1.5, "client")])
    assert told["epsilon"] == 1.5
    assert told["privacy"]["example"] is None
