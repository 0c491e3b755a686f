"""A run's folder at the server, copied home while the run goes on.

Over the operations endpoint of the server, which is on loopback: at the server itself, or at this
end of a tunnel. Nothing that it says is trusted as a path; only a run's own files come home.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from fedpeft.config import Experiment, differing_keys
from fedpeft.errors import RunFailed, UserError
from fedpeft.files import append_lines, write_atomic
from fedpeft.vectorfile import EXPERIMENT, VECTOR
from server.deployed import ENDED, PLAIN_NAME, STARTED
from server.remote.connection import Connection, secure_line
from server.runfolder import (
    BYTES,
    CHECKPOINT,
    IDENTITY,
    PROGRESS,
    REFUSED,
    RESULT,
    ROSTER,
    ROUNDS,
)

DIGEST = "X-SHA256"  # header of a file: of the whole
IN_USE = "X-In-Use"  # header of a run's list of files: "yes" while a process runs in its folder
_GROWING = (ROUNDS, BYTES, REFUSED)
_LIVE = (PROGRESS, ENDED)  # small, and replaced while a run goes on
_LARGE = (*_GROWING, CHECKPOINT, VECTOR)
_OWN = (*_LARGE, *_LIVE, EXPERIMENT, IDENTITY, RESULT, STARTED, ROSTER)  # all that comes home
_SMALL = 1 << 20  # bytes that a listing or any other file has at most
_PATIENCE = 30.0  # seconds without a byte


class Lost(ConnectionError):
    """The server cannot be reached at the moment; trying again may help."""


class RefusedToken(UserError):
    """The server does not take the token."""


class Mirror:
    """Copies ``runs/NAME`` of a server into a folder."""

    def __init__(self, connection: Connection, name: str, folder: Path):
        self.connection, self.name, self.folder = connection, name, folder
        self._copied: dict[str, int] = {}  # bytes of growing files that are home

    def in_use(self) -> bool:
        """Return whether a process of the server runs in the run's folder now.

        Raises:
            Lost, UserError: see ``files``.
        """
        with _asked(self.connection, f"/runs/{self.name}") as answer:
            return answer.headers.get(IN_USE, "") == "yes"

    def files(self) -> dict[str, int]:
        """Return the run's files with their sizes in bytes; empty while there is no such run.

        Files that are no run's are left out.

        Raises:
            Lost: no connection.
            RefusedToken: the server does not take the token.
            UserError: it is no fedpeft server.
        """
        listed = _json(self.connection, f"/runs/{self.name}", {})
        if not all(
            isinstance(size, int) and PLAIN_NAME.fullmatch(name) for name, size in listed.items()
        ):
            raise UserError(f"{self.connection.operations} is no fedpeft server")
        return {name: size for name, size in listed.items() if name in _OWN}

    def update(self) -> None:
        """Copy what is needed to follow the run: whole new rounds, progress, the end.

        Raises:
            Lost: no connection; the next update copies everything again.
            UserError: see ``files``.
            RunFailed: see ``read``.
        """
        try:
            listed = self.files()
            for name in _GROWING:
                if name in listed:
                    self._grow(name, listed[name])
            for name in _LIVE:
                data = self.read(name) if name in listed else b""
                if data:
                    write_atomic(self.folder / name, data)
                else:
                    (self.folder / name).unlink(missing_ok=True)  # of an earlier try
        except (Lost, UserError):
            self._copied.clear()  # the server may have dropped rounds meanwhile
            raise

    def fetch(self) -> list[str]:
        """Copy every file of the run whole; return their names.

        Raises:
            Lost, UserError: see ``files``.
            RunFailed: see ``fetch_file``.
        """
        listed = self.files()
        for name in listed:
            self.fetch_file(name)
        return list(listed)

    def read(self, name: str, start: int = 0) -> bytes:
        """Return a file's bytes from ``start`` on; none if the server has no such file.

        Raises:
            Lost, UserError: see ``files``.
            RunFailed: it is larger than such a file can be.
        """
        return self._get(name, start)[0]

    def fetch_file(self, name: str) -> None:
        """Copy one file whole and check its SHA-256.

        Raises:
            Lost, UserError: see ``files``.
            RunFailed: it has gone, came home other than the server has it, is larger than such a
                file can be, or is the experiment of another run than the one in the folder.
        """
        data, expected = self._get(name, 0)
        digest = hashlib.sha256(data).hexdigest()
        if digest != expected:
            raise RunFailed(
                f"'{name}' of run '{self.name}' did not come home as it is at the server: SHA-256 "
                f"{digest[:12]}, there {expected[:12] or 'none'}; the same command with --resume "
                f"fetches it again"
            )
        if name == EXPERIMENT:
            self._check_experiment(data)
        write_atomic(self.folder / name, data)

    def _check_experiment(self, theirs: bytes) -> None:
        """Raise RunFailed where another experiment is in the folder already."""
        if not (self.folder / EXPERIMENT).exists():
            return
        try:
            there = Experiment.load(theirs.decode())
            differing = ", ".join(differing_keys(Experiment.read(self.folder / EXPERIMENT), there))
        except (UserError, UnicodeDecodeError):
            differing = "it cannot be read"
        if differing:
            raise RunFailed(
                f"'{EXPERIMENT}' of run '{self.name}' at the server is not the one in "
                f"'{self.folder}', which stays: {differing}"
            )

    def _get(self, name: str, start: int) -> tuple[bytes, str]:
        """Return a file's bytes from ``start`` on and the SHA-256 of all, both empty without it."""
        path = f"/runs/{self.name}/{quote(name)}?from={start}"
        with _asked(self.connection, path) as answer:
            if answer.status != 200:
                return b"", ""
            if name not in _LARGE and not _is_small(answer):
                raise RunFailed(f"'{name}' of run '{self.name}' has more than {_SMALL} bytes")
            return answer.read(), answer.headers.get(DIGEST, "")

    def _grow(self, name: str, size: int) -> None:
        """Append the new whole lines of a file; copy it anew if the server dropped some."""
        have = self._copied.get(name, 0)
        if size == have:
            return
        # From the newline before: where that is another byte, the file has been written anew.
        data = self.read(name, have - 1) if 0 < have < size else b""
        if data[:1] == b"\n":
            data = data[1 : data.rindex(b"\n") + 1]
            append_lines(self.folder / name, data.decode().split("\n")[:-1])
            self._copied[name] = have + len(data)
            return
        data = self.read(name)
        data = data[: data.rfind(b"\n") + 1]
        write_atomic(self.folder / name, data)
        self._copied[name] = len(data)


def runs_at(connection: Connection) -> list[str]:
    """Return the names of the runs that a server has.

    Raises:
        Lost: no connection.
        RefusedToken: the server does not take the token.
        UserError: it is no fedpeft server.
    """
    return [str(name) for name in _json(connection, "/runs", [])]


def _json(connection: Connection, path: str, empty: Any) -> Any:
    """Return the JSON at a path, of the type of ``empty``, which stands for what is not there."""
    with _asked(connection, path) as answer:
        if answer.status == 404:
            return empty
        try:
            found = json.loads(answer.read()) if _is_small(answer) else None
        except ValueError:
            found = None
    if not isinstance(found, type(empty)):
        raise UserError(
            f"{connection.operations} is no fedpeft server: see 'operations' in its file"
        )
    return found


def _is_small(answer: http.client.HTTPResponse) -> bool:
    """Return whether an answer gives its length, as a fedpeft server does, and it is in bounds."""
    return answer.length is not None and answer.length <= _SMALL


@contextmanager
def _asked(connection: Connection, path: str) -> Iterator[http.client.HTTPResponse]:
    """Give the answer to a GET, 200 or 404; errors while it is read are ``Lost``, too."""
    line = secure_line(connection.operations, connection.ca, _PATIENCE)
    try:  # the token goes to this server only: the other side has shown its certificate first
        line.request("GET", path, headers={"Authorization": f"Bearer {connection.token}"})
        with line.getresponse() as answer:  # has the socket now, to be closed
            if answer.status in (401, 403):
                raise RefusedToken(
                    f"the server at {connection.operations} does not take this token: copy its "
                    f"connection.toml again"
                )
            if answer.status not in (200, 404, 416):
                raise Lost(f"{connection.operations} answers {answer.status} {answer.reason}")
            yield answer
    except Lost:
        raise
    except ssl.SSLError:
        raise Lost(
            f"what answers at {connection.operations} has no certificate of '{connection.ca}': "
            f"another program, or another server's tunnel; nothing was told to it"
        ) from None
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "strerror", None) or type(error).__name__
        raise Lost(f"no connection to {connection.operations} ({reason})") from None
    finally:
        line.close()
