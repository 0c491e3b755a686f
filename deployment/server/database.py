"""Whether the installed Flower can open the database of a state folder's SuperLink."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from importlib.metadata import version
from pathlib import Path

from fedpeft.errors import UserError


def check_database(path: Path) -> None:
    """Check that the installed Flower can open the database of a SuperLink, if there is one.

    Raises:
        UserError: a newer Flower has written it, or it is not a database.
    """
    from alembic.script import ScriptDirectory
    from alembic.util import CommandError

    from deployment.flower import migrations

    if not path.exists():
        return
    try:
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
            [found] = database.execute("SELECT version_num FROM alembic_version").fetchone() or [""]
        if found:
            ScriptDirectory(str(migrations())).get_revision(found)
    except sqlite3.OperationalError:  # no such table: it was killed in its first start
        return
    except sqlite3.DatabaseError as error:
        raise UserError(f"'{path}' is damaged ({error}); restore it from a backup") from None
    except CommandError:
        raise UserError(
            f"'{path}' was written by a newer Flower than the installed {version('flwr')}; install "
            "that version again, or use the backup that was made before the change"
        ) from None
