"""Ledgers for tests."""

from __future__ import annotations

from pathlib import Path

from fedpeft.privacy.accounting import Mechanism, Spent, spent
from fedpeft.privacy.ledger import PrivacyLedger

DATA = "ab" * 32
DELTA = 1e-5
NO_NOISE = Mechanism(0.0, 0.5, 3)  # composing it costs no time; its epsilon is infinite


def opened(path: Path, owner: str = "client 3", data: str = DATA) -> PrivacyLedger:
    return PrivacyLedger(path, owner, data)


def charged(
    ledger: PrivacyLedger,
    mechanism: Mechanism = NO_NOISE,
    *,
    round_number: int = 1,
    budget: float | None = None,
    clipping: str = "flat",
    draw: str | None = None,
) -> Spent:
    """Charge a ledger; return the privacy loss of all its charges."""
    note: dict[str, str | float] = {"clipping": clipping, "clip": 0.5}
    ledger.charge(
        "example",
        mechanism,
        DELTA,
        budget,
        run="first",
        round_number=round_number,
        note=note,
        draw=draw,
    )
    return spent([charge.mechanism for charge in ledger.charges("example")], DELTA)


def filled(path: Path) -> Path:
    """Make a ledger with four charges."""
    ledger = opened(path)
    for number in range(1, 5):
        charged(ledger, Mechanism(0.0, 0.1 * number, number), round_number=number)
    return path
