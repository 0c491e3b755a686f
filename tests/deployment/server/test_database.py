"""A database of the SuperLink that the installed Flower cannot open is refused in one line."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from superlinks import SuperLinkState

from deployment.server.database import check_database
from fedpeft.errors import UserError


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """A database as the installed Flower makes it."""
    path = tmp_path / "superlink.db"
    SuperLinkState(path)
    return path


def test_what_the_installed_flower_made_and_an_absent_one_are_accepted(
    database: Path, tmp_path: Path
) -> None:
    check_database(database)
    check_database(tmp_path / "none.db")
    assert not (tmp_path / "none.db").exists()


def test_one_of_a_newer_flower_is_refused(database: Path) -> None:
    with closing(sqlite3.connect(database)) as changed, changed:
        changed.execute("UPDATE alembic_version SET version_num = '0123456789ab'")
    with pytest.raises(UserError, match="was written by a newer Flower than the installed 1"):
        check_database(database)


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "superlink.db"
    path.write_bytes(b"no database" * 100)
    with pytest.raises(UserError, match=r"is damaged .*; restore it from a backup"):
        check_database(path)
