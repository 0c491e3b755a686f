"""The file of a privacy ledger: an SQLite database with a chain of digests.

Each charge is chained to the previous one by SHA-256, and a seal holds the number of charges and
the last digest, so a changed byte, a missing row or a truncated file is detected. The chain guards
against accidents and careless edits. It does not detect an older copy of the whole file, or one
whose digests were recomputed on purpose.
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

NOISE = "noise"  # key of a charge's note, with the distribution of noise that is not Gaussian
_FORMAT = 1
#: Of ledgers with noise that is not Gaussian: readers of format 1 would take it for Gaussian noise.
_WITH_NOISE = 2
_BUSY_SECONDS = 120.0  # another process holds the lock while it composes mechanisms
_TABLES = """
CREATE TABLE charges (id INTEGER PRIMARY KEY, time TEXT, unit TEXT, noise_multiplier REAL,
    sampling_rate REAL, steps INTEGER, delta REAL, run TEXT, round INTEGER, note TEXT, draw TEXT,
    digest TEXT);
CREATE TABLE seal (format INTEGER, owner TEXT, data TEXT, count INTEGER, digest TEXT);
"""
# Errors of the environment (locks, permissions, full disk); all others mean a damaged file.
_ENVIRONMENT = {
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_CANTOPEN,
}


class LedgerDamaged(UserError):
    """The ledger file was changed, so the privacy spent is unknown."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(
            f"privacy ledger '{path}' is damaged ({why}): training is refused, because the privacy "
            f"spent is unknown; restore a copy with every charge, or ask the node's operator"
        )


@dataclass(frozen=True)
class Charge:
    """One entry: a mechanism that ran, or was about to run, on the owner's data."""

    id: int  # from 1, without gaps
    time: str  # UTC, ISO 8601
    unit: Unit
    mechanism: Mechanism
    delta: float  # for comparison with the budget; composing does not need it
    run: str
    round: int
    note: dict[str, str | float]
    draw: str | None


@dataclass(frozen=True)
class Attempt:
    """The training of one request, which may be interrupted and tried again.

    Attributes:
        key: SHA-256 of the request, hex.
        charges: number of charges in the ledger before the first try.
        charged: whether the ledger was charged since then, so perhaps by an earlier try.
    """

    key: str
    charges: int
    charged: bool = False


@dataclass(frozen=True)
class Contents:
    """The contents of a ledger whose chain is intact."""

    owner: str
    data: str  # SHA-256 of the owner's training data, hex
    charges: tuple[Charge, ...]
    digest: str

    def mechanisms(self, unit: Unit) -> list[Mechanism]:
        """Return the mechanisms charged for a unit, in order."""
        return [charge.mechanism for charge in self.charges if charge.unit == unit]

    def repeats(self, charge: Charge) -> bool:
        """Return whether the same random numbers and results were charged before."""
        key = (charge.draw, charge.unit, charge.mechanism, charge.note)
        return charge.draw is not None and any(
            (known.draw, known.unit, known.mechanism, known.note) == key for known in self.charges
        )

    def resumes(self, charge: Charge, attempt: Attempt) -> bool:
        """Return whether an earlier try of the same attempt made this charge."""
        key = (charge.unit, charge.mechanism, charge.note)
        return any(
            (known.unit, known.mechanism, known.note) == key
            for known in self.charges[attempt.charges :]
        )


def read_ledger(path: Path) -> Contents:
    """Return the contents of a ledger; the file is opened read-only.

    Raises:
        LedgerDamaged: the file was changed.
        UserError: the file is missing or cannot be read.
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
    """Yield a connection in a transaction, which is rolled back unless committed.

    Raises:
        LedgerDamaged: the file is not a valid database.
        UserError: the file cannot be used now (permissions, a full disk, a lock).
    """
    address = f"{path.absolute().as_uri()}?mode={mode}"  # a plain name would create a file
    try:
        with closing(
            sqlite3.connect(address, timeout=_BUSY_SECONDS, isolation_level=None, uri=True)
        ) as connection:
            # EXTRA also syncs the deletion of the journal: a journal that reappears after a loss
            # of power would roll back a charge that was already trained on.
            connection.execute("PRAGMA synchronous = EXTRA")
            connection.execute("PRAGMA fullfsync = ON")  # macOS: flush the disk's cache
            connection.execute(f"BEGIN {begin}")
            yield connection
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:  # latter: damaged schema
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT)
        if code == sqlite3.SQLITE_READONLY_ROLLBACK:
            why = "a crash interrupted a charge; the client's next start repairs it"
        elif code & 0xFF in _ENVIRONMENT:  # the low byte is the primary error code
            why = str(error)
        else:
            raise LedgerDamaged(path, str(error)) from None
        raise UserError(f"privacy ledger '{path}': cannot be used now ({why})") from None


def create(path: Path, owner: str, data: str) -> None:
    """Create an empty ledger atomically, unless the file exists.

    A crash leaves at most a hidden temporary file.

    Raises:
        OSError: the folder or the file cannot be created.
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
        with suppress(FileExistsError):  # created by another process
            os.link(temporary, path)
    finally:
        temporary.unlink()
    sync(path.parent)


def _make_folder(folder: Path) -> None:
    """Create a folder and its parents, synced to disk."""
    if not folder.is_dir():
        _make_folder(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)
        sync(folder.parent)


def append(connection: sqlite3.Connection, contents: Contents, charge: Charge) -> None:
    """Add a charge to ``contents``, read in the same transaction, and update the seal."""
    mechanism = charge.mechanism
    row: tuple[object, ...] = (
        charge.id,
        charge.time,
        charge.unit,
        float(mechanism.noise_multiplier),  # Python types: SQLite would store numpy's as bytes
        float(mechanism.sampling_rate),
        int(mechanism.steps),
        float(charge.delta),
        charge.run,
        int(charge.round),
        json.dumps(charge.note),
        charge.draw,
    )
    digest = _digest(contents.digest, row)
    connection.execute(f"INSERT INTO charges VALUES ({', '.join('?' * 12)})", (*row, digest))
    connection.execute("UPDATE seal SET count = ?, digest = ?", (charge.id, digest))
    if mechanism.noise != "gaussian":
        connection.execute("UPDATE seal SET format = ?", (_WITH_NOISE,))


def read_chain(connection: sqlite3.Connection, path: Path) -> Contents:
    """Return the contents of the file after checking the whole chain.

    Raises:
        LedgerDamaged: digests or counts do not match.
    """
    seals = connection.execute("SELECT format, owner, data, count, digest FROM seal").fetchall()
    if len(seals) != 1:
        raise LedgerDamaged(path, f"it has {len(seals)} seals instead of one")
    version, owner, data, count, sealed = seals[0]
    if version not in (_FORMAT, _WITH_NOISE):
        expected = f"{_FORMAT} and {_WITH_NOISE}"
        raise LedgerDamaged(path, f"its format is {version}, this fedpeft reads {expected}")
    digest, charges = _first_digest(owner, data), []
    for *row, stored in connection.execute("SELECT * FROM charges ORDER BY id"):
        digest = _digest(digest, row)
        if digest != stored:
            raise LedgerDamaged(path, f"charge {row[0]} or an earlier one was changed")
        number, time, unit, sigma, rate, steps, delta, run, round_number, note, draw = row
        facts = json.loads(note)
        mechanism = Mechanism(sigma, rate, steps, facts.get(NOISE, "gaussian"))
        charges.append(Charge(number, time, unit, mechanism, delta, run, round_number, facts, draw))
    if (count, sealed) != (len(charges), digest):
        raise LedgerDamaged(path, f"its {len(charges)} charges do not match the seal of {count}")
    return Contents(owner, data, tuple(charges), digest)


def _first_digest(owner: object, data: object) -> str:
    return _digest("", [_FORMAT, owner, data])


def _digest(before: str, content: Iterable[object]) -> str:
    """Return the SHA-256, hex, of the previous digest and a row's values as JSON.

    ``repr`` is used for damaged files only (bytes instead of text); its digest never matches.
    """
    return hashlib.sha256((before + json.dumps(list(content), default=repr)).encode()).hexdigest()
