"""Turns in the ledger: a round that breaks the limits of the whole run's charge is refused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from fedpeft.privacy.accounting import Mechanism, spent
from fedpeft.privacy.factorization import Banded, Factorization, Limits
from fedpeft.privacy.ledger import BudgetSpent, PrivacyLedger
from fedpeft.privacy.turns import Turn, TurnRefused, whole_note

DELTA = 1e-3
RUN = Mechanism(2.0, 1.0, 1)
BUDGET = spent([RUN], DELTA).epsilon  # nothing is left for anything else
FACTORS = Factorization(Banded((1.0, 0.5)), Limits(10, 3, 3))
Take = Callable[..., None]


@pytest.fixture
def ledger(tmp_path: Path) -> PrivacyLedger:
    """A ledger with the charge of a whole run: clients at most 3 times, at least 3 rounds apart."""
    made = PrivacyLedger(tmp_path / "server.sqlite", "server", "data")
    note = whole_note("banded", FACTORS)
    made.charge("client", RUN, DELTA, BUDGET, run="run", round_number=1, note=note)
    return made


def turn(number: int, clients: Sequence[int], whole: int = 1) -> Turn:
    return Turn(whole, FACTORS.digest, "run", number, tuple(clients))


@pytest.fixture
def take(ledger: PrivacyLedger) -> Take:
    """Return a function that records a turn, of zero steps."""

    def record(taken: Turn, draw: str | None = None) -> None:
        ledger.charge(
            "client",
            Mechanism(2.0, 1.0, 0),
            DELTA,
            BUDGET,
            run=taken.run,
            round_number=taken.round,
            note=taken.note,
            draw=draw,
            turn=taken,
        )

    return record


def test_turns_within_the_limits_cost_nothing_more(ledger: PrivacyLedger, take: Take) -> None:
    for number, clients in enumerate([(0, 1), (2,), (3, 4), (1, 0), (2,), (), (0,)], start=1):
        take(turn(number, clients))
    charges = ledger.charges("client")
    assert [each.mechanism.steps for each in charges] == [1, *[0] * 7]
    assert spent([each.mechanism for each in charges], DELTA).epsilon == BUDGET
    assert charges[1].note == {"whole": 1, "clients": "0 1"}


@pytest.mark.parametrize(
    ("number", "clients", "reason"),
    [
        (3, (5, 1), "client 1 takes part in round 1 and its rounds must be at least 3 apart"),
        (9, (0,), "client 0 takes part in round 7"),
        (10, (5, 0), "client 0 took part 3 times, at most 3"),
        (11, (5,), "the charge is for 10 rounds"),
        (0, (5,), "the charge is for 10 rounds"),
        (7, (5,), "its noise was drawn before, and repeating it was not charged"),
    ],
)
def test_a_client_cannot_take_part_too_early_or_too_often(
    ledger: PrivacyLedger, take: Take, number: int, clients: tuple[int, ...], reason: str
) -> None:
    for before, taking in ((1, (0, 1)), (4, (0,)), (7, (0,))):
        take(turn(before, taking))
    with pytest.raises(TurnRefused, match=f"round {number} is refused .*: {reason}") as refused:
        take(turn(number, clients))
    assert "\n" not in str(refused.value)
    assert len(ledger.charges("client")) == 4


def test_a_turn_also_keeps_its_distance_from_later_rounds(take: Take) -> None:
    """After a return to an earlier round, later ones are in the ledger already."""
    take(turn(5, (0,)))
    with pytest.raises(TurnRefused, match="client 0 takes part in round 5"):
        take(turn(4, (0,)))


@pytest.mark.parametrize(
    "taken",
    [
        turn(1, (0,), whole=2),
        Turn(1, FACTORS.digest, "other run", 1, (0,)),
        Turn(1, Factorization(Banded((1.0, 0.6)), FACTORS.limits).digest, "run", 1, (0,)),
    ],
)
def test_a_turn_of_another_run_or_factorization_is_refused(take: Take, taken: Turn) -> None:
    with pytest.raises(TurnRefused, match=r"is not that of this run|another factorization"):
        take(taken)


def test_a_repeated_round_is_charged_unless_its_noise_is_the_same(
    ledger: PrivacyLedger, take: Take
) -> None:
    first, row = turn(1, (0, 1)), Mechanism(4.0, 1.0, 1)
    take(first)
    assert first.unpaid(ledger.charges("client"), None) == 1
    facts = {"run": "run", "round_number": 1, "note": first.repeat_note}
    with pytest.raises(BudgetSpent):
        ledger.charge("client", row, DELTA, BUDGET, **facts)
    ledger.charge("client", row, DELTA, None, **facts)
    assert first.unpaid(ledger.charges("client"), None) == 0
    take(first)
    with pytest.raises(TurnRefused, match="drawn before"):
        take(first)
    take(turn(2, (2,)), draw="seeded")
    take(turn(2, (2,)), draw="seeded")
    assert [each.round for each in ledger.charges("client")] == [1, 1, 1, 1, 2]
