"""Statements: what is read back, what is refused, and which one a run tells."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from fedpeft.privacy.accounting import Mechanism, Spent
from fedpeft.privacy.ledgerfile import Charge
from fedpeft.privacy.statement import read_statement, so_far, statement


def charge(unit: Any = "example", sigma: float = 1.1, draw: str | None = None) -> Charge:
    mechanism = Mechanism(sigma, 0.2, 30)
    return Charge(1, "2026-01-01T00:00:00+00:00", unit, mechanism, 1e-4, "run", 1, {}, draw)


def said(
    epsilon: float = 2.0, unit: Any = "example", delta: float = 1e-4, draw: str | None = None
) -> dict[str, Any]:
    return statement([charge(unit, 1.1, draw)], Spent(epsilon, 0.01, delta, "prv"), 0.5, "flat")


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
        {"mechanism": "x" * 201},
        {"mechanism": "\x1b[2J"},
        {"releasable": 1},
        {"more": 1},
        {"delta": 1.5},
        {"sampling_rate": 2},
        {"steps": 10**400},
        {"composition": [[1.0, 0.2]]},
        {"composition": "none"},
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
    told = so_far(so_far(None, [said(1.0, draw="seeded")]), [said(2.0)])
    assert told["epsilon"] == 2.0
    assert not told["privacy"]["example"]["releasable"]


def test_what_is_told_holds_for_clients_of_every_size() -> None:
    """A client with few examples has a larger delta than the one with the largest epsilon."""
    told = so_far(None, [said(2.9, delta=1e-3), said(3.0, delta=1e-5)])
    assert told["epsilon"] == 3.0
    assert told["privacy"]["example"]["delta"] == 1e-3


def test_a_statement_lists_all_that_its_epsilon_is_composed_of() -> None:
    charges = [charge(sigma=1.1), charge(sigma=2.0), charge(sigma=1.1)]
    told = statement(charges, Spent(2.0, 0.01, 1e-4, "prv"), 0.5, "flat")
    assert told["composition"] == [[1.1, 0.2, 60], [2.0, 0.2, 30]]
    assert told["steps"] == 90


def test_a_secure_round_does_not_make_seeded_ones_before_it_releasable() -> None:
    charges = [charge(draw="seeded"), charge()]
    assert not statement(charges, Spent(2.0, 0.01, 1e-4, "prv"), 0.5, "flat")["releasable"]


def test_without_privacy_nothing_is_told() -> None:
    nothing = {"epsilon": None, "privacy": None}
    assert so_far(None, []) == nothing
    assert so_far(nothing, []) == nothing


def test_where_only_clients_are_protected_the_epsilon_is_theirs() -> None:
    told = so_far(None, [said(1.5, "client")])
    assert told["epsilon"] == 1.5
    assert told["privacy"]["example"] is None
