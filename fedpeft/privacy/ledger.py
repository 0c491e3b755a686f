"""What a client has spent of its privacy, over rounds, restarts and runs.

A ledger that was changed by anything but a charge is refused and never starts from zero. Its file
is written in ``ledgerfile``.
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
from fedpeft.privacy.accounting import Mechanism, Spent
from fedpeft.privacy.ledgerfile import (
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

__all__ = ["BudgetSpent", "LedgerDamaged", "PrivacyLedger", "Unit", "read_ledger"]


class BudgetSpent(UserError):
    """The next charge would exceed the budget; nothing was written.

    The text travels to the server, so it does not name the client's file.
    """

    #: Tells a server why a client failed; Flower's own codes are small numbers.
    CODE = 1001


class PrivacyLedger:
    """A client's privacy ledger, to be charged before every training.

    Guarantee: when ``charge`` returns, the charge survives kill -9 and a loss of power (the file,
    its rollback journal and the folder are fsynced; the disk must keep what it acknowledged).
    Training begins only afterwards, so the ledger is never below what was spent; a crash between
    the two leaves it above. Charges of several processes compose: each sees all before it.

    Nothing stays open between calls. The file must lie on a local disk (locks over networks are
    unreliable) and is readable by its user only: made with mode 0600, in a new folder with mode
    0700; a file with wider rights, such as a copy that was put back, gets 0600 as well.
    """

    def __init__(self, path: Path, owner: str, data: str) -> None:
        """Open the ledger of an owner's data, or make it if there is no file.

        Args:
            path: the file.
            owner: whose data it is, such as ``"client 3"``.
            data: SHA-256 of the training data, hex. A ledger is about ONE set of examples.

        Raises:
            LedgerDamaged: there is a file, but not what was written to it.
            UserError: it is the ledger of another owner or other data, or cannot be used.
        """
        self.path, self.owner, self.data = path, owner, data
        # Asked first: a ledger that another process makes meanwhile may have a journal, too.
        journal = Path(f"{path}-journal").exists()
        try:
            if not os.path.lexists(path):
                if journal:
                    raise LedgerDamaged(path, "it is gone, but its journal is there")
                create(path, owner, data)
            status = path.stat()
            if stat.S_ISREG(status.st_mode) and status.st_mode & 0o077:
                path.chmod(0o600)
        except OSError as error:
            reason = error.strerror or type(error).__name__
            raise UserError(f"privacy ledger '{path}': cannot be used ({reason})") from None
        with self._held("DEFERRED"):
            pass

    def charge(
        self,
        unit: Unit,
        mechanism: Mechanism,
        delta: float,
        budget: float | None,
        *,
        run: str,
        round: int,
        note: Mapping[str, str | float],
        draw: str | None = None,
    ) -> Spent:
        """Write down what is about to be spent, and return what is spent with it.

        Args:
            unit: whom the mechanism hides; the two units are composed apart.
            mechanism: what will run.
            delta: at which all charges of the unit are composed.
            budget: the highest epsilon allowed afterwards; None = no limit.
            run: name of the run.
            round: the round in it.
            note: further facts about the mechanism (clipping, ...) for whoever reads the ledger.
            draw: names the random numbers, where they are reproducible: whatever decides on them
                and on what they are added to (seed, round, start vector). If the ledger holds the
                same draw for the same unit, mechanism and note, then training gives the same bits
                again; those were paid for, and to release them twice tells nothing more: no
                charge is added. None = new random numbers, always charged.

        Raises:
            BudgetSpent: epsilon would exceed the budget.
            LedgerDamaged: the file was changed.
            UserError: a wrong delta, or the file cannot be written.
        """
        accounting.spent([], delta)  # refuses a wrong delta, which must not be written
        after = None
        with self._held("IMMEDIATE") as (connection, contents):
            number = len(contents.charges) + 1
            time = datetime.now(UTC).isoformat(timespec="seconds")
            charge = Charge(number, time, unit, mechanism, delta, run, round, {**note}, draw)
            before = contents.mechanisms(unit)
            if contents.repeats(charge):
                return accounting.spent(before, delta)
            if budget is not None:
                after = self._within(budget, before, charge)
            append(connection, contents, charge)
            read_chain(connection, self.path)  # what cannot be read again must not be committed
            connection.execute("COMMIT")
        # Without a budget nothing needs the sum before the commit, so nobody waits for it.
        return after or accounting.spent([*before, mechanism], delta)

    def spent(self, unit: Unit, delta: float) -> Spent:
        """Return what all charges of a unit compose to at ``delta``.

        Raises:
            LedgerDamaged: the file was changed.
            UserError: a wrong delta, or the file cannot be read.
        """
        return accounting.spent(self.mechanisms(unit), delta)

    def charges(self, unit: Unit) -> list[Charge]:
        """Return what was charged for a unit, in order.

        Raises:
            LedgerDamaged: the file was changed.
            UserError: the file cannot be read.
        """
        with self._held("DEFERRED") as (_, contents):
            return [each for each in contents.charges if each.unit == unit]

    def mechanisms(self, unit: Unit) -> list[Mechanism]:
        """Return the mechanisms of ``charges``."""
        return [each.mechanism for each in self.charges(unit)]

    def _within(self, budget: float, before: list[Mechanism], charge: Charge) -> Spent:
        """Return what a further charge would make it, if that is within the budget."""
        after = accounting.spent([*before, charge.mechanism], charge.delta)
        if after.epsilon <= budget:
            return after
        now = accounting.spent(before, charge.delta)
        raise BudgetSpent(
            f"{self.owner} has spent epsilon {now.epsilon:.4g} (per {charge.unit}, delta "
            f"{charge.delta:g}); round {charge.round} would make it {after.epsilon:.4g}, above the "
            f"budget of {budget:g}"
        )

    @contextmanager
    def _held(
        self, begin: Literal["DEFERRED", "IMMEDIATE"]
    ) -> Iterator[tuple[sqlite3.Connection, Contents]]:
        """Give the ledger in a transaction, checked; without a COMMIT nothing changes."""
        with transaction(self.path, "rw", begin) as connection:
            contents = read_chain(connection, self.path)
            if contents.owner != self.owner:
                raise UserError(
                    f"privacy ledger '{self.path}' is that of {contents.owner}, not of "
                    f"{self.owner}; choose another ledger file or folder"
                )
            if contents.data != self.data:
                # Without the digests: the line may travel, and short texts could be guessed.
                raise UserError(
                    f"privacy ledger '{self.path}' is about other training data; go on with that, "
                    f"or choose another ledger (what both have in common is then not added up)"
                )
            yield connection, contents
