"""The privacy ledger: every mechanism charged on one set of examples, over rounds and runs.

A ledger that was changed other than by a charge is refused; it is never reset to zero. The file
format is in ``ledger_store``.
"""

from __future__ import annotations

import os
import sqlite3
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from fedpeft.errors import UserError
from fedpeft.privacy import accounting
from fedpeft.privacy.accounting import Mechanism
from fedpeft.privacy.ledger_store import (
    NOISE,
    Attempt,
    Charge,
    Contents,
    LedgerDamaged,
    Unit,
    append,
    create,
    read_chain,
    read_ledger,
    transaction,
)
from fedpeft.privacy.turns import Turn

__all__ = [
    "Attempt",
    "BudgetSpent",
    "LedgerDamaged",
    "OtherLedger",
    "PrivacyLedger",
    "Unit",
    "read_ledger",
]


class BudgetSpent(UserError):
    """The next charge would exceed the budget; nothing was written.

    The server receives the message, so it does not name the client's file.
    """


class OtherLedger(UserError):
    """A ledger of another owner or of other data; nothing was written.

    The server receives the message: it holds no digests, as short texts could be guessed from them.
    """


def _facts(
    note: Mapping[str, str | float], mechanism: Mechanism, attempt: Attempt | None
) -> dict[str, str | float]:
    """Return the facts of a charge: the note, and what else its account follows from."""
    kept = {"attempt": attempt.key} if attempt else {}
    noise = {NOISE: mechanism.noise} if mechanism.noise != "gaussian" else {}
    return {**note, **kept, **noise}


class PrivacyLedger:
    """A client's privacy ledger, charged before every training.

    Guarantee: when ``charge`` returns, the charge survives kill -9 and a loss of power (the file,
    its rollback journal and the folder are fsynced; the disk must keep what it acknowledged).
    Training starts only afterwards, so the ledger is never below what was spent; a crash between
    the two leaves it above. Charges of several processes compose: each includes all before it.

    The file is closed between calls. It must be on a local disk (locks over networks are
    unreliable). Only its user can read it: a new file has mode 0600, a new folder 0700, and an
    existing file with wider permissions, such as a restored copy, is set to 0600.
    """

    def __init__(self, path: Path, owner: str, data: str) -> None:
        """Open the ledger of an owner's data, or create it if there is no file.

        Args:
            path: the file.
            owner: the owner of the data, such as ``"client 3"``.
            data: SHA-256 of the training data, hex. A ledger covers one set of examples.

        Raises:
            LedgerDamaged: the file was changed.
            OtherLedger: it is the ledger of another owner or of other data.
            UserError: it cannot be used.
        """
        self.path, self.owner, self.data = path, owner, data
        # Checked first: another process may create the ledger, with its journal, after this line.
        journal = Path(f"{path}-journal").exists()
        try:
            if not os.path.lexists(path):
                if journal:
                    raise LedgerDamaged(path, "it is missing, but its journal exists")
                create(path, owner, data)
            status = path.stat()
            if stat.S_ISREG(status.st_mode) and status.st_mode & 0o077:
                path.chmod(0o600)
        except OSError as error:
            reason = error.strerror or type(error).__name__
            raise UserError(f"privacy ledger '{path}': cannot be used ({reason})") from None
        with self._transaction("DEFERRED"):
            pass  # checks the file

    def charge(
        self,
        unit: Unit,
        mechanism: Mechanism,
        delta: float,
        budget: float | None,
        limit: tuple[float, float] | None = None,
        *,
        run: str,
        round_number: int,
        note: Mapping[str, str | float],
        draw: str | None = None,
        attempt: Attempt | None = None,
        turn: Turn | None = None,
    ) -> None:
        """Record a mechanism before it runs.

        Args:
            unit: what the mechanism protects; the two units are composed separately.
            mechanism: the mechanism that will run.
            delta: the delta of the run, at which its budget holds.
            budget: the largest epsilon allowed afterwards, at the smallest delta that the ledger
                has charged for the unit: a later run with a larger delta would otherwise spend
                more than the budget of an earlier one. None = no limit.
            limit: (epsilon, delta) that the owner of the data allows over all runs; None = any.
            run: name of the run.
            round_number: number of the round in the run.
            note: facts about the mechanism (clipping, ...) for readers of the ledger.
            draw: identifies reproducible random numbers: everything that determines them and the
                values they are added to (seed, round, start vector). If the ledger has a charge
                with the same draw, unit, mechanism and note, then training returns the same bits
                again. They are accounted for, and releasing them twice reveals no more, so no
                charge is added. None = new random numbers, always charged.
            attempt: the training that is charged. If it was interrupted after its charge, and
                nothing of it has been released, no charge is added.
            turn: a round of a mechanism charged as a whole; ``mechanism`` has no steps then.

        Raises:
            BudgetSpent: epsilon would exceed the budget.
            LedgerDamaged: the file was changed.
            TurnRefused: the round breaks what the whole mechanism's charge assumes.
            UserError: delta is not in (0, 1), or the file cannot be written.
        """
        accounting.spent([], delta)  # raises for a wrong delta before anything is written
        if limit is not None:
            accounting.spent([], limit[1])
        with self._transaction("IMMEDIATE") as (connection, contents):
            number = len(contents.charges) + 1
            time = datetime.now(UTC).isoformat(timespec="seconds")
            attempt = None if draw else attempt
            facts = _facts(note, mechanism, attempt)
            charge = Charge(number, time, unit, mechanism, delta, run, round_number, facts, draw)
            if contents.repeats(charge) or (attempt and contents.resumes(charge, attempt)):
                return
            if turn:
                turn.require([each for each in contents.charges if each.unit == unit], draw)
            self._require_limits(contents, charge, budget, limit)
            append(connection, contents, charge)
            read_chain(connection, self.path)  # commit only what can be read again
            connection.execute("COMMIT")

    def charges(self, unit: Unit) -> list[Charge]:
        """Return the charges of a unit, in order.

        Raises:
            LedgerDamaged: the file was changed.
            UserError: the file cannot be read.
        """
        with self._transaction("DEFERRED") as (_, contents):
            return [charge for charge in contents.charges if charge.unit == unit]

    def _require_limits(
        self,
        contents: Contents,
        charge: Charge,
        budget: float | None,
        limit: tuple[float, float] | None,
    ) -> None:
        """Raise BudgetSpent if a charge exceeds the run's budget or the owner's limit."""
        if not charge.mechanism.steps:
            return  # a part of what was charged before
        before, limits = contents.mechanisms(charge.unit), [] if limit is None else [limit]
        if budget is not None:
            deltas = [known.delta for known in contents.charges if known.unit == charge.unit]
            limits.append((budget, min(charge.delta, *deltas, charge.delta)))
        for epsilon, delta in limits:
            self._require(epsilon, delta, before, charge)

    def _require(
        self, budget: float, delta: float, before: list[Mechanism], charge: Charge
    ) -> None:
        """Raise BudgetSpent if a charge exceeds a budget of epsilon at a delta."""
        after = accounting.spent([*before, charge.mechanism], delta)
        if after.epsilon <= budget:
            return
        now = accounting.spent(before, delta)
        raise BudgetSpent(
            f"{self.owner} has spent epsilon {now.epsilon:.4g} (per {charge.unit}, delta "
            f"{delta:g}); round {charge.round} would make it {after.epsilon:.4g}, above the budget "
            f"of {budget:g}"
        )

    @contextmanager
    def _transaction(
        self, begin: Literal["DEFERRED", "IMMEDIATE"]
    ) -> Iterator[tuple[sqlite3.Connection, Contents]]:
        """Yield the checked contents in a transaction, which is rolled back without a COMMIT."""
        with transaction(self.path, "rw", begin) as connection:
            contents = read_chain(connection, self.path)
            if contents.owner != self.owner:
                raise OtherLedger(
                    f"privacy ledger '{self.path}' belongs to {contents.owner}, not to "
                    f"{self.owner}; choose another ledger file or folder"
                )
            if contents.data != self.data:
                raise OtherLedger(
                    f"privacy ledger '{self.path}' is about other training data; use that data, or "
                    f"choose another ledger (which does not count what examples in both have spent)"
                )
            yield connection, contents
