"""The file of a privacy ledger: SQLite, with a chain of digests that shows any change.

Every charge is chained to the one before it by SHA-256, and a seal holds the number of charges
and the last digest, so that a changed byte, a missing row or a cut-off file is noticed. The chain
is against accidents and careless edits: it cannot tell an older copy of the whole file, nor one
that somebody sealed anew on purpose.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fedpeft.errors import UserError
from fedpeft.files import sync
from fedpeft.privacy.accounting import Mechanism

Unit = Literal["example", "client"]

_FORMAT = 1
_BUSY_SECONDS = 120.0  # another process may hold the ledger for as long as its composing takes
_TABLES = """
CREATE TABLE charges (id INTEGER PRIMARY KEY, time TEXT, unit TEXT, noise_multiplier REAL,
    sampling_rate REAL, steps INTEGER, delta REAL, run TEXT, round INTEGER, note TEXT, draw TEXT,
    digest TEXT);
CREATE TABLE seal (format INTEGER, owner TEXT, data TEXT, count INTEGER, digest TEXT);
"""
# These tell of the machine (a lock, rights, a full disk), all others of what is in the file.
_MACHINE = {
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_CANTOPEN,
}


class LedgerDamaged(UserError):
    """The file does not hold what was written to it, so what was spent is not known."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(
            f"privacy ledger '{path}' is damaged ({why}): training is refused, because what was "
            f"spent is not known; put back a copy with every charge, or ask who runs this node"
        )


@dataclass(frozen=True)
class Charge:
    """One entry: a mechanism that ran on the owner's data, or was about to."""

    id: int  # from 1, without gaps
    time: str  # UTC, ISO 8601
    unit: Unit
    mechanism: Mechanism
    delta: float  # at which the charge was judged; composing does not need it
    run: str
    round: int
    note: dict[str, str | float]
    draw: str | None


@dataclass(frozen=True)
class Contents:
    """A whole ledger whose chain was found intact."""

    owner: str
    data: str  # SHA-256 of the owner's training data, hex
    charges: tuple[Charge, ...]
    digest: str

    def mechanisms(self, unit: Unit) -> list[Mechanism]:
        """Return what was charged for a unit, in order."""
        return [charge.mechanism for charge in self.charges if charge.unit == unit]

    def repeats(self, charge: Charge) -> bool:
        """Return whether a charge is for random numbers and results that were paid for before."""
        same = (charge.draw, charge.unit, charge.mechanism, charge.note)
        return charge.draw is not None and any(
            (each.draw, each.unit, each.mechanism, each.note) == same for each in self.charges
        )


def read_ledger(path: Path) -> Contents:
    """Return what a ledger holds, without writing anything.

    Raises:
        LedgerDamaged: the file does not hold what was written to it.
        UserError: there is no file, or it cannot be read.
    """
    try:
        if path.is_dir():
            raise UserError(f"'{path}' is a folder; name one of the ledgers in it")
        with path.open("rb"):
            pass
    except FileNotFoundError:
        raise UserError(f"no privacy ledger '{path}'") from None
    except OSError as error:
        raise UserError(f"privacy ledger '{path}': cannot be read ({error.strerror})") from None
    with transaction(path, "ro", "DEFERRED") as connection:
        return read_chain(connection, path)


@contextmanager
def transaction(
    path: Path, mode: Literal["ro", "rw"], begin: Literal["DEFERRED", "IMMEDIATE"]
) -> Iterator[sqlite3.Connection]:
    """Give a connection in a transaction; what is not committed is rolled back.

    Raises:
        LedgerDamaged: SQLite cannot make sense of the file.
        UserError: the file cannot be used now (rights, a full disk, a lock).
    """
    address = f"{path.absolute().as_uri()}?mode={mode}"  # unlike a plain name, makes no file
    try:
        with closing(
            sqlite3.connect(address, timeout=_BUSY_SECONDS, isolation_level=None, uri=True)
        ) as connection:
            # EXTRA: the journal's end reaches the disk as well. If it came back after a loss of
            # power, it would undo a charge that was already trained on.
            connection.execute("PRAGMA synchronous = EXTRA")
            connection.execute("PRAGMA fullfsync = ON")  # macOS: past the disk's own cache
            connection.execute(f"BEGIN {begin}")
            yield connection
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:  # the latter: a damaged schema
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT)
        if code == sqlite3.SQLITE_READONLY_ROLLBACK:
            why = "a crash interrupted a charge; the client's next start puts that right"
        elif code & 0xFF in _MACHINE:  # the low byte is the kind, the rest its variant
            why = str(error)
        else:
            raise LedgerDamaged(path, str(error)) from None
        raise UserError(f"privacy ledger '{path}': cannot be used now ({why})") from None


def create(path: Path, owner: str, data: str) -> None:
    """Make an empty ledger that has its name only when it is whole, and replaces nothing.

    A crash in between leaves a file with a dot and another name, which is in nobody's way.

    Raises:
        OSError: the folder or the file cannot be made.
    """
    _make_folder(path.parent)
    handle, name = tempfile.mkstemp(".tmp", f".{path.name}.", path.parent)  # mode 0600
    os.close(handle)
    temporary = Path(name)
    try:
        with transaction(temporary, "rw", "IMMEDIATE") as connection:
            for statement in _TABLES.split(";"):
                connection.execute(statement)
            seal = (_FORMAT, owner, data, 0, _first_digest(owner, data))
            connection.execute("INSERT INTO seal VALUES (?, ?, ?, ?, ?)", seal)
            connection.execute("COMMIT")
        with suppress(FileExistsError):  # another process was faster
            os.link(temporary, path)
    finally:
        temporary.unlink()
    sync(path.parent)


def _make_folder(folder: Path) -> None:
    """Make a folder and those above it so that they survive a loss of power."""
    if not folder.is_dir():
        _make_folder(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)
        sync(folder.parent)


def append(connection: sqlite3.Connection, contents: Contents, charge: Charge) -> None:
    """Add a charge to the contents of the same transaction, and renew the seal; no commit."""
    ran = charge.mechanism
    row: tuple[object, ...] = (
        charge.id,
        charge.time,
        charge.unit,
        float(ran.noise_multiplier),  # Python's own types: SQLite keeps numpy's as bytes
        float(ran.sampling_rate),
        int(ran.steps),
        float(charge.delta),
        charge.run,
        int(charge.round),
        json.dumps(charge.note),
        charge.draw,
    )
    digest = _digest(contents.digest, row)
    connection.execute(f"INSERT INTO charges VALUES ({', '.join('?' * 12)})", (*row, digest))
    connection.execute("UPDATE seal SET count = ?, digest = ?", (charge.id, digest))


def read_chain(connection: sqlite3.Connection, path: Path) -> Contents:
    """Return what the file holds, after the whole chain was checked.

    Raises:
        LedgerDamaged: it does not fit together.
    """
    seals = connection.execute("SELECT format, owner, data, count, digest FROM seal").fetchall()
    if len(seals) != 1:
        raise LedgerDamaged(path, f"it has {len(seals)} seals in place of one")
    form, owner, data, count, sealed = seals[0]
    if form != _FORMAT:
        raise LedgerDamaged(path, f"it is of format {form}, this fedpeft knows {_FORMAT}")
    digest, charges = _first_digest(owner, data), []
    for *row, end in connection.execute("SELECT * FROM charges ORDER BY id"):
        digest = _digest(digest, row)
        if digest != end:
            raise LedgerDamaged(path, f"charge {row[0]} or those before it were changed")
        id, time, unit, sigma, rate, steps, delta, run, round, note, draw = row
        ran, facts = Mechanism(sigma, rate, steps), json.loads(note)
        charges.append(Charge(id, time, unit, ran, delta, run, round, facts, draw))
    if (count, sealed) != (len(charges), digest):
        raise LedgerDamaged(path, f"its {len(charges)} charges do not match the seal of {count}")
    return Contents(owner, data, tuple(charges), digest)


def _first_digest(owner: object, data: object) -> str:
    return _digest("", [_FORMAT, owner, data])


def _digest(before: str, content: Iterable[object]) -> str:
    """Return SHA-256, hex, of the digest before and a row's values in order, as JSON.

    ``repr`` is for what stands in damaged files only (bytes where text was), and fits nothing.
    """
    return hashlib.sha256((before + json.dumps(list(content), default=repr)).encode()).hexdigest()
