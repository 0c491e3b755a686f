"""A damaged ledger is never lower than what was spent, and never started anew."""

from __future__ import annotations

import itertools
import random
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from ledgers import charged, opened

from fedpeft.errors import UserError
from fedpeft.privacy.accounting import Mechanism
from fedpeft.privacy.ledger import LedgerDamaged, read_ledger

PAGE = 4096  # bytes that SQLite writes at once


def assert_refused(path: Path) -> None:
    """Make sure that a file is refused for training and for reading, and left as it is."""
    before = path.read_bytes()
    with pytest.raises(LedgerDamaged, match="training is refused"):
        opened(path)
    with pytest.raises(LedgerDamaged):
        read_ledger(path)
    assert path.read_bytes() == before


def test_a_truncated_ledger_is_refused(full: Path) -> None:
    whole = full.read_bytes()
    sizes = [0, 1, 15, 16, 100, PAGE - 1, PAGE, PAGE + 1, 2 * PAGE, len(whole) - PAGE]
    for size in [*sizes, len(whole) - 100, len(whole) - 1]:
        full.write_bytes(whole[:size])
        assert_refused(full)


@pytest.mark.parametrize("content", [b"\0" * PAGE, b"not a database, but text\n" * 50])
def test_a_file_of_another_kind_is_refused(path: Path, content: bytes) -> None:
    path.parent.mkdir()
    path.write_bytes(content)
    assert_refused(path)


def test_a_flipped_bit_is_detected_or_harmless(full: Path) -> None:
    """SQLite's header, and samples of the bytes that hold something and of those that do not."""
    whole, contents = full.read_bytes(), read_ledger(full)
    draw, detected = random.Random(0), 0
    filled_in = [place for place, byte in enumerate(whole) if byte]
    empty = [place for place, byte in enumerate(whole) if not byte]
    places = [*range(100), *draw.sample(filled_in, 600), *draw.sample(empty, 100)]
    for place in places:
        flipped = bytearray(whole)
        flipped[place] ^= 1 << draw.randrange(8)
        full.write_bytes(flipped)
        try:
            with opened(full)._transaction("DEFERRED") as (_, read):
                assert read == contents, f"byte {place}"
        except LedgerDamaged:
            detected += 1
        except UserError as error:  # a bit that tells SQLite how to open the file
            assert "cannot be used now" in str(error)
            detected += 1
    assert detected > len(places) / 3


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        ("DELETE FROM charges WHERE id = 2", "charge 3 or an earlier one"),
        ("DELETE FROM charges WHERE id = 4", "3 charges do not match the seal of 4"),
        ("DELETE FROM charges", "0 charges do not match the seal of 4"),
        ("UPDATE charges SET noise_multiplier = 9 WHERE id = 2", "charge 2"),
        ("UPDATE charges SET steps = 1 WHERE id = 4", "charge 4"),
        ("UPDATE charges SET unit = 'client' WHERE id = 1", "charge 1"),
        ("UPDATE charges SET note = CAST(note AS BLOB) WHERE id = 1", "charge 1"),
        ("UPDATE charges SET draw = CAST(x'ff' AS TEXT) WHERE id = 1", "UTF-8"),
        ("UPDATE charges SET id = 5 WHERE id = 4", "charge 5"),
        ("UPDATE seal SET count = 3", "4 charges do not match the seal of 3"),
        ("UPDATE seal SET owner = 'client 4'", "charge 1"),
        ("UPDATE seal SET data = 'cd'", "charge 1"),
        ("UPDATE seal SET format = 3", "format is 3, this fedpeft reads 1 and 2"),
        ("DELETE FROM seal", "0 seals"),
        ("DROP TABLE charges", "no such table"),
    ],
)
def test_an_edited_ledger_is_refused(full: Path, edit: str, words: str) -> None:
    ledger = opened(full)
    connection = sqlite3.connect(full)
    with connection:
        connection.execute(edit)
    connection.close()
    assert_refused(full)
    with pytest.raises(LedgerDamaged, match=words):
        ledger.charges("example")
    with pytest.raises(LedgerDamaged, match=words):
        charged(ledger)


def test_noise_that_older_versions_misread_changes_the_format(path: Path) -> None:
    """They read format 1 only, and would take the noise for Gaussian noise."""

    def version() -> int:
        with closing(sqlite3.connect(path)) as connection:
            return int(connection.execute("SELECT format FROM seal").fetchone()[0])

    mechanisms = [Mechanism(2.0, 1.0, 1), Mechanism(2.0, 1.0, 1, "skellam"), Mechanism(2.0, 1.0, 1)]
    ledger, versions = opened(path), []
    for number, mechanism in enumerate(mechanisms, 1):
        charged(ledger, mechanism, round_number=number)
        versions.append(version())
    assert versions == [1, 2, 2]
    assert read_ledger(path).mechanisms("example") == mechanisms


def test_an_edited_empty_ledger_is_refused(path: Path) -> None:
    opened(path)
    connection = sqlite3.connect(path)
    with connection:
        connection.execute("UPDATE seal SET data = 'cd'")
    connection.close()
    assert_refused(path)


def test_a_charge_half_written_and_without_its_journal_is_old_new_or_refused(full: Path) -> None:
    """The disk lost power: any of the charge's pages may be there, the journal is deleted."""
    old, before = full.read_bytes(), read_ledger(full)
    charged(opened(full))
    new, after = full.read_bytes(), read_ledger(full)
    starts = [at for at in range(0, len(new), PAGE) if old[at : at + PAGE] != new[at : at + PAGE]]
    assert len(starts) >= 2 and len(old) == len(new)
    outcomes = set()
    for written in itertools.product([False, True], repeat=len(starts)):
        mixed = bytearray(old)
        for at, there in zip(starts, written, strict=True):
            if there:
                mixed[at : at + PAGE] = new[at : at + PAGE]
        full.write_bytes(mixed)
        try:
            contents = read_ledger(full)
        except LedgerDamaged:
            outcomes.add("refused")
        else:
            assert contents in (before, after)
            outcomes.add("old" if contents == before else "new")
    assert outcomes == {"old", "new", "refused"}


def interrupted(path: Path, folder: Path) -> Path:
    """Return a copy of a ledger in the middle of a charge, with its journal."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA cache_size = 1")  # so that pages reach the file before the commit
    connection.execute("BEGIN IMMEDIATE")
    connection.execute("UPDATE seal SET count = 9")
    for _ in range(5):
        connection.execute("INSERT INTO charges (note) VALUES (?)", ("n" * 3 * PAGE,))
    shutil.copytree(path.parent, folder)
    connection.close()
    assert (folder / path.name).read_bytes() != path.read_bytes()
    return folder / path.name


def test_an_interrupted_charge_is_rolled_back(full: Path, tmp_path: Path) -> None:
    before = read_ledger(full)
    crashed = interrupted(full, tmp_path / "crashed")
    with pytest.raises(UserError, match="the client's next start repairs it"):
        read_ledger(crashed)
    opened(crashed)
    assert read_ledger(crashed) == before


def test_an_interrupted_charge_without_its_journal_is_refused(full: Path, tmp_path: Path) -> None:
    crashed = interrupted(full, tmp_path / "crashed")
    crashed.with_name("3.db-journal").unlink()
    assert_refused(crashed)


def test_a_deleted_ledger_with_a_journal_is_not_recreated(full: Path, tmp_path: Path) -> None:
    crashed = interrupted(full, tmp_path / "crashed")
    crashed.unlink()
    with pytest.raises(LedgerDamaged, match="it is missing, but its journal exists"):
        opened(crashed)
