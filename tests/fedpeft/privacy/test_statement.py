"""Statements: what is read back, what is refused, and which one a run tells."""

from __future__ import annotations

import math
import struct
import time
from collections.abc import Sequence
from typing import Any

import pytest

from fedpeft.experiment.config import Experiment
from fedpeft.privacy.accounting import Mechanism, spent
from fedpeft.privacy.ledger_store import Charge, Unit
from fedpeft.privacy.statement import Composition, read_statement, so_far, statement

EXAMPLES = 80  # 16 in a batch


def charge(unit: Unit = "example", sigma: float = 1.1, draw: str | None = None) -> Charge:
    mechanism = Mechanism(sigma, 0.2, 30)
    return Charge(1, "2026-01-01T00:00:00+00:00", unit, mechanism, 1e-4, "run", 1, {}, draw)


def made(
    epsilon: float | None = 2.0,
    unit: Unit = "example",
    delta: float = 1e-4,
    draw: str | None = None,
) -> dict[str, Any]:
    """Return a statement with any epsilon."""
    composed = statement(unit, Composition.of([charge(unit, 1.1, draw)]), delta, 0.5, "flat")
    return {**composed, "epsilon": epsilon, "releasable": epsilon is not None and draw is None}


def read(numbers: Sequence[float], *overrides: str, unit: Unit = "example") -> dict[str, Any]:
    data = struct.pack(f"<{len(numbers)}d", *numbers)
    settings = ["privacy.unit=both", "privacy.client_noise=clients", "privacy.noise_multiplier=1.1"]
    return read_statement(data, unit, Experiment.load("", [*settings, *overrides]), EXAMPLES)


def test_the_server_computes_the_statement_from_a_few_numbers() -> None:
    charges = [charge(sigma=2.0), charge()]
    numbers = [0, 2.0, 0.2, 30, 1.1, 0.2, 30]
    assert Composition.of(charges).to_bytes() == struct.pack("<7d", *numbers)
    stated = read(numbers)
    expected = spent([entry.mechanism for entry in charges], stated["delta"])
    assert stated["epsilon"] == expected.epsilon > 0
    assert stated["delta"] == EXAMPLES**-1.1
    assert (stated["clip"], stated["clipping"], stated["sampling"]) == (1.0, "flat", "Poisson")
    assert (stated["steps"], stated["noise_multiplier"], stated["releasable"]) == (60, 1.1, True)
    assert read([1.0, *numbers[1:]])["releasable"] is False


def test_a_mechanism_without_noise_has_no_epsilon() -> None:
    stated = read([0.0, 0.0, 0.2, 30.0], "privacy.noise_multiplier=0", "privacy.clip=0")
    assert stated["epsilon"] is stated["epsilon_error"] is None
    assert not stated["releasable"]


def test_noise_of_clients_uses_all_data() -> None:
    stated = read([0.0, 1.1, 1.0, 2.0], unit="client")
    assert (stated["sampling"], stated["neighbouring"][:7]) == ("none", "replace")
    assert stated["delta"] == 10**-1.1
    with pytest.raises(ValueError, match="another mechanism"):
        read([0.0, 1.1, 0.5, 2.0], unit="client")


def test_noise_of_sums_has_negative_steps_and_is_read_back() -> None:
    sums = ["federation.secure=true", "privacy.client_noise=secure"]
    stated = read([0.0, 1.1, 1.0, -2.0], *sums, unit="client")
    composed = [Mechanism(1.1, 1.0, 2, "skellam")]
    assert stated["epsilon"] == spent(composed, stated["delta"]).epsilon
    assert (stated["steps"], stated["accountant"], stated["sampling"]) == (2, "rdp", "none")
    assert "distributed DP" in stated["mechanism"] and "by zero" in stated["neighbouring"]
    mixed = Composition((Mechanism(1.1, 0.2, 3), Mechanism(1.1, 1.0, 2, "skellam")), True)
    assert Composition.from_bytes(mixed.to_bytes()) == mixed
    for numbers, settings in (
        ([0.0, 1.1, 1.0, 2.0], sums),  # Gaussian noise in a sum
        ([0.0, 1.1, 1.0, -2.0], []),  # Skellam noise in local DP
        ([0.0, 1.1, 0.5, -2.0], sums),
        ([0.0, 1.0, 1.0, -2.0], sums),
    ):
        with pytest.raises(ValueError, match=r"another mechanism|a sample with Skellam"):
            read(numbers, *settings, unit="client")


@pytest.mark.parametrize(
    ("numbers", "reason"),
    [
        ([], "does not hold 1 to 100 mechanisms"),
        ([0.0], "does not hold"),
        ([0.0, 1.1, 0.2], "does not hold"),
        ([0.0] + [1.1, 0.2, 30.0] * 101, "does not hold"),
        ([0.5, 1.1, 0.2, 30.0], "not a whole number"),
        ([math.nan, 1.1, 0.2, 30.0], "not a whole number"),
        ([0.0, -1.1, 0.2, 30.0], "out of range"),
        ([0.0, math.nan, 0.2, 30.0], "out of range"),
        ([0.0, math.inf, 0.2, 30.0], "out of range"),
        ([0.0, 1.1, 0.0, 30.0], "out of range"),
        ([0.0, 1.1, 1.2, 30.0], "out of range"),
        ([0.0, 1.1, math.nan, 30.0], "out of range"),
        ([0.0, 1.1, 0.2, 0.0], "out of range"),
        ([0.0, 1.1, 0.2, 1e15], "out of range"),
        ([0.0, 1.1, 0.2, math.inf], "out of range"),
        ([0.0, 1.1, 0.2, 30.5], "not a whole number"),
        ([0.0, 1.1, 1e-9, 30.0], "another mechanism"),  # an epsilon of 0
        ([0.0, 1e6, 0.2, 30.0], "another mechanism"),
    ],
)
def test_any_other_numbers_are_refused(numbers: Sequence[float], reason: str) -> None:
    with pytest.raises(ValueError, match=reason) as refused:
        read(numbers)
    assert len(str(refused.value)) < 100


@pytest.mark.parametrize("data", [b"", b"x" * 31, b"x" * 33, b"x" * 100_000])
def test_bytes_of_another_length_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="does not hold 1 to 100 mechanisms"):
        Composition.from_bytes(data)


def test_a_client_cannot_report_more_than_the_budget() -> None:
    """An honest client would have refused the round."""
    over = [0.0, 0.01, 1.0, 1e9, 1.1, 0.2, 30.0]
    assert read(over)["epsilon"] > 1e12  # nothing limits it in this run
    with pytest.raises(ValueError, match="exceeds the budget of epsilon 8"):
        read(over, "privacy.budget=8")


def test_reading_the_longest_statement_takes_little_time() -> None:
    different = [part for k in range(99) for part in (0.5 + k / 99, 0.001 + k / 100, 1e9 - k)]
    began = time.process_time()
    read([0.0, *different, 1.1, 0.2, 1e9])
    assert time.process_time() - began < 10


def test_a_run_reports_the_largest_epsilon_of_all_clients_and_rounds() -> None:
    first = so_far(None, [made(2.0), made(3.0), made(1.0, "client")])
    assert first["epsilon"] == 3.0
    then = so_far(first, [made(2.5), made(4.0, "client")])
    assert then["epsilon"] == 3.0
    assert then["privacy"]["client"]["epsilon"] == 4.0
    assert so_far(then, [made(None)])["epsilon"] is None  # nothing bounds it any more


def test_one_client_with_seeded_noise_makes_the_run_not_releasable() -> None:
    merged = so_far(so_far(None, [made(1.0, draw="seeded")]), [made(2.0)])
    assert merged["epsilon"] == 2.0
    assert not merged["privacy"]["example"]["releasable"]


def test_a_run_reports_the_largest_delta_of_all_clients() -> None:
    """A client with few examples has a larger delta than the one with the largest epsilon."""
    merged = so_far(None, [made(2.9, delta=1e-3), made(3.0, delta=1e-5)])
    assert merged["epsilon"] == 3.0
    assert merged["privacy"]["example"]["delta"] == 1e-3


def test_a_statement_lists_all_composed_mechanisms_the_last_one_at_the_end() -> None:
    charges = [charge(sigma=1.1), charge(sigma=2.0), charge(sigma=1.1)]
    merged = statement("example", Composition.of(charges), 1e-4, 0.5, "flat")
    assert merged["composition"] == [[2.0, 0.2, 30], [1.1, 0.2, 60]]
    assert (merged["steps"], merged["noise_multiplier"]) == (90, 1.1)


def test_a_secure_round_after_seeded_ones_is_not_releasable() -> None:
    composition = Composition.of([charge(draw="seeded"), charge()])
    assert not statement("example", composition, 1e-4, 0.5, "flat")["releasable"]


def test_a_run_without_privacy_has_no_statement() -> None:
    nothing = {"epsilon": None, "privacy": None}
    assert so_far(None, []) == nothing
    assert so_far(nothing, []) == nothing


def test_the_epsilon_of_clients_is_reported_if_only_they_are_protected() -> None:
    merged = so_far(None, [made(1.5, "client")])
    assert merged["epsilon"] == 1.5
    assert merged["privacy"]["example"] is None
