"""Copy a run's folder from the server while the run continues.

The files come from the server's operations endpoint, which is on loopback: at the server itself or
at this end of a tunnel. None of its answers is trusted as a path; only files of a run are copied.
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

from deployment.operator.connection import Connection, secure_line
from fedpeft.errors import RunFailed, UserError
from fedpeft.experiment.config import Experiment, differing_keys
from fedpeft.files import PLAIN_NAME, append_lines, write_atomic
from fedpeft.runs.checkpoints import CHECKPOINT, PREVIOUS
from fedpeft.runs.folder import BYTES, IDENTITY, PROGRESS, REFUSED, RESULT, ROSTER, ROUNDS, START
from fedpeft.runs.vectorfile import EXPERIMENT, VECTOR
from server.deployed import ENDED, STARTED

DIGEST = "X-SHA256"  # header of a file: SHA-256 of the whole file
IN_USE = "X-In-Use"  # header of a run's list of files: "yes" while a process uses its folder
_GROWING = (ROUNDS, BYTES, REFUSED)
_LIVE = (PROGRESS, START, ENDED)  # small files, replaced while a run continues
_LARGE = (*_GROWING, CHECKPOINT, PREVIOUS, VECTOR)
_COPIED = (*_LARGE, *_LIVE, EXPERIMENT, IDENTITY, RESULT, STARTED, ROSTER)
_SMALL = 1 << 20  # maximum bytes of a listing or of any other file
_PATIENCE = 30.0  # seconds without a byte before a connection fails


class Lost(ConnectionError):
    """The server cannot be reached at the moment; trying again may help."""


class RefusedToken(UserError):
    """The server does not accept the token."""


class Mirror:
    """A copy of ``runs/NAME`` of a server in a folder."""

    def __init__(self, connection: Connection, name: str, folder: Path):
        self.connection, self.name, self.folder = connection, name, folder
        self._copied: dict[str, int] = {}  # bytes of growing files that are copied

    def in_use(self) -> bool:
        """Return whether a process of the server uses the run's folder now.

        Raises:
            Lost, UserError: see ``files``.
        """
        with _asked(self.connection, f"/runs/{self.name}") as answer:
            return answer.headers.get(IN_USE, "") == "yes"

    def files(self) -> dict[str, int]:
        """Return the sizes of the run's files in bytes, or {} while there is no such run.

        Files that do not belong to a run folder are left out.

        Raises:
            Lost: no connection.
            RefusedToken: the server does not accept the token.
            UserError: it is not a fedpeft server.
        """
        listed = _json(self.connection, f"/runs/{self.name}", {})
        if not all(
            isinstance(size, int) and PLAIN_NAME.fullmatch(name) for name, size in listed.items()
        ):
            raise UserError(f"{self.connection.operations} is not a fedpeft server")
        return {name: size for name, size in listed.items() if name in _COPIED}

    def update(self) -> None:
        """Copy the files needed to follow the run: new complete rounds, progress, the end.

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
                    (self.folder / name).unlink(missing_ok=True)  # of an earlier attempt
        except (Lost, UserError):
            self._copied.clear()  # the server may have dropped rounds meanwhile
            raise

    def fetch(self) -> list[str]:
        """Copy every file of the run completely; return their names.

        Raises:
            Lost, UserError: see ``files``.
            RunFailed: see ``fetch_file``.
        """
        listed = self.files()
        for name in listed:
            self.fetch_file(name)
        return list(listed)

    def read(self, name: str, start: int = 0) -> bytes:
        """Return a file's bytes from offset ``start``; b"" if the server has no such file.

        Raises:
            Lost, UserError: see ``files``.
            RunFailed: it is larger than a file of this name can be.
        """
        return self._get(name, start)[0]

    def fetch_file(self, name: str) -> None:
        """Copy one file completely and check its SHA-256.

        Raises:
            Lost, UserError: see ``files``.
            RunFailed: it is missing, differs from the server's file, is larger than a file of
                this name can be, or is not the same experiment as in the folder.
        """
        data, expected = self._get(name, 0)
        digest = hashlib.sha256(data).hexdigest()
        if digest != expected:
            raise RunFailed(
                f"'{name}' of run '{self.name}' differs from the server's file: SHA-256 "
                f"{digest[:12]}, expected {expected[:12] or 'none'}; the same command with "
                f"--resume fetches it again"
            )
        if name == EXPERIMENT:
            self._check_experiment(data)
        write_atomic(self.folder / name, data)

    def _check_experiment(self, data: bytes) -> None:
        """Raise RunFailed if the folder holds another experiment already."""
        if not (self.folder / EXPERIMENT).exists():
            return
        try:
            server = Experiment.load(data.decode())
            differing = ", ".join(differing_keys(Experiment.read(self.folder / EXPERIMENT), server))
        except (UserError, UnicodeDecodeError):
            differing = "it cannot be read"
        if differing:
            raise RunFailed(
                f"'{EXPERIMENT}' of run '{self.name}' at the server is not the one in "
                f"'{self.folder}', which is kept: {differing}"
            )

    def _get(self, name: str, start: int) -> tuple[bytes, str]:
        """Return a file's bytes from ``start`` and its SHA-256; both are empty if it is missing."""
        path = f"/runs/{self.name}/{quote(name)}?from={start}"
        with _asked(self.connection, path) as answer:
            if answer.status != 200:
                return b"", ""
            if name not in _LARGE and not _is_small(answer):
                raise RunFailed(f"'{name}' of run '{self.name}' has more than {_SMALL} bytes")
            return answer.read(), answer.headers.get(DIGEST, "")

    def _grow(self, name: str, size: int) -> None:
        """Append the new complete lines of a file; copy it again if the server dropped lines."""
        copied = self._copied.get(name, 0)
        if size == copied:
            return
        # From the newline before the new bytes: if it differs, the file has been rewritten.
        data = self.read(name, copied - 1) if 0 < copied < size else b""
        if data[:1] == b"\n":
            data = data[1 : data.rindex(b"\n") + 1]
            append_lines(self.folder / name, data.decode().split("\n")[:-1])
            self._copied[name] = copied + len(data)
            return
        data = self.read(name)
        data = data[: data.rfind(b"\n") + 1]
        write_atomic(self.folder / name, data)
        self._copied[name] = len(data)


def runs_at(connection: Connection) -> list[str]:
    """Return the names of a server's runs.

    Raises:
        Lost: no connection.
        RefusedToken: the server does not accept the token.
        UserError: it is not a fedpeft server.
    """
    return [str(name) for name in _json(connection, "/runs", [])]


def _json(connection: Connection, path: str, empty: Any) -> Any:
    """Return the JSON at a path, which must have the type of ``empty``; ``empty`` for a 404."""
    with _asked(connection, path) as answer:
        if answer.status == 404:
            return empty
        try:
            value = json.loads(answer.read()) if _is_small(answer) else None
        except ValueError:
            value = None
    if not isinstance(value, type(empty)):
        raise UserError(
            f"{connection.operations} is not a fedpeft server; check 'operations' in its "
            f"connection.toml"
        )
    return value


def _is_small(answer: http.client.HTTPResponse) -> bool:
    """Return whether an answer declares a length of at most ``_SMALL`` bytes."""
    return answer.length is not None and answer.length <= _SMALL


@contextmanager
def _asked(connection: Connection, path: str) -> Iterator[http.client.HTTPResponse]:
    """Yield the answer to a GET; network errors, also while it is read, become ``Lost``."""
    line = secure_line(connection.operations, connection.ca, _PATIENCE)
    try:  # the token is sent after the server has shown its certificate
        line.request("GET", path, headers={"Authorization": f"Bearer {connection.token}"})
        with line.getresponse() as answer:
            if answer.status in (401, 403):
                raise RefusedToken(
                    f"the server at {connection.operations} does not accept this token: copy its "
                    f"connection.toml again"
                )
            if answer.status not in (200, 404, 416):
                raise Lost(f"{connection.operations} answers {answer.status} {answer.reason}")
            yield answer
    except Lost:
        raise
    except ssl.SSLError:
        raise Lost(
            f"the program at {connection.operations} has no certificate of '{connection.ca}': it "
            f"is not this server, or the tunnel leads to another one; nothing was sent to it"
        ) from None
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "strerror", None) or type(error).__name__
        raise Lost(f"no connection to {connection.operations} ({reason})") from None
    finally:
        line.close()
