"""The addresses and the token of a server: ``connection.toml``.

Both addresses are on loopback, at the server's own machine or at this end of a tunnel
(``ssh -L``); the file is as secret as its token. A program that listens there must show a
certificate of the server's authority before anything is sent to it.
"""

from __future__ import annotations

import http.client
import os
import re
import shlex
import ssl
import tomllib
from dataclasses import dataclass, field
from pathlib import Path

from fedpeft.errors import UserError, suggestion
from fedpeft.files import USERS_TEXT
from fedpeft.hosting.locks import is_held

# Files in a server's state folder.
CONNECTION = "connection.toml"
SETTINGS = "server.json"
LOCK = "server.lock"
_ADDRESS = re.compile(r"(?:[A-Za-z0-9.-]+|\[[0-9A-Fa-f:]+\]):([0-9]{1,5})")


@dataclass(frozen=True)
class Connection:
    """The data that a machine needs to submit runs to a server and to fetch their results.

    Attributes:
        control: host:port of Flower's control API (TLS).
        ca: the file of the certificate that signed the server's certificate.
        operations: host:port of the operations endpoint (TLS, on loopback only).
        token: required by the operations endpoint.
        state: the server's state folder if it is on this machine.
    """

    control: str
    ca: Path
    operations: str
    token: str
    state: Path | None = field(default=None, compare=False)

    def __repr__(self) -> str:
        """Leave out the token: a repr may end up in logs."""
        return f"Connection({self.control!r}, {self.operations!r})"

    @property
    def advice(self) -> str:
        """A clause that says what to do if the server does not answer."""
        if not self.state:
            return (
                f"is the server up, and the tunnel open? ssh -L {self.operations}:"
                f"{self.operations} -L {self.control}:{self.control} THE-SERVER"
            )
        command = "status" if is_held(self.state / LOCK) else "up"
        verb = "says more" if command == "status" else "starts the server"
        return f"'fedpeft server {command} --state {shlex.quote(str(self.state))}' {verb}"

    def to_toml(self) -> str:
        """Return the content of ``connection.toml``; contains the token."""
        lines = ("control", self.control), ("ca", str(self.ca)), ("operations", self.operations)
        return "".join(
            f"{key} = {_quoted(value)}\n" for key, value in (*lines, ("token", self.token))
        )

    @classmethod
    def read(cls, path: Path) -> Connection:
        """Read a ``connection.toml``; a relative ``ca`` is relative to the file's folder.

        Raises:
            UserError: the file is not readable or not TOML, a key is missing or unknown, or an
                address or the ca is wrong.
        """
        try:
            values = tomllib.loads(path.read_text(encoding=USERS_TEXT))
        except OSError as error:
            reason = error.strerror or type(error).__name__
            raise UserError(f"'{path}' cannot be read ({reason})") from None
        except ValueError:  # not UTF-8 or not TOML; the parser's message could quote the token
            raise UserError(f"'{path}' is not a TOML file; copy the server's again") from None
        keys = ("control", "ca", "operations", "token")
        wrong = [key for key in keys if not isinstance(values.get(key), str) or not values[key]]
        wrong += [key for key in values if key not in keys]
        if wrong:
            raise UserError(
                f"'{path}': {', '.join(wrong)}: expected {', '.join(keys)}, each a string"
            )
        for key in ("control", "operations"):
            match = _ADDRESS.fullmatch(values[key])
            if not match or not 0 < int(match[1]) < 65536:
                raise UserError(f"'{path}': {key} = '{values[key]}': expected HOST:PORT")
        ca = (path.parent / values["ca"]).resolve()
        if not ca.is_file():
            raise UserError(f"'{path}': no certificate '{ca}'; copy the server's ca.crt there")
        state = path.parent if (path.parent / SETTINGS).is_file() else None
        return cls(values["control"], ca, values["operations"], values["token"], state)


def secure_line(address: str, ca: Path, patience: float) -> http.client.HTTPSConnection:
    """Return a connection over TLS, opened by its first request; it ignores proxy settings.

    Args:
        address: host:port.
        ca: the file of the certificate that must have signed the server's certificate.
        patience: seconds without a byte before the connection fails.

    Raises:
        OSError: ``ca`` cannot be read or is not a certificate.
    """
    host, _, port = address.rpartition(":")
    context = ssl.create_default_context(cafile=ca)
    return http.client.HTTPSConnection(
        host.strip("[]"), int(port), timeout=patience, context=context
    )


def servers_folder() -> Path:
    """Return the folder of the named servers: ``$FEDPEFT_HOME/servers``."""
    home = os.environ.get("FEDPEFT_HOME")
    return (Path(home) if home else Path.home() / ".config" / "fedpeft") / "servers"


def find_connection(name: str) -> Connection:
    """Return the connection to the server that ``--on`` names.

    Args:
        name: a server's state folder, a connection file, or the name of a file (without .toml)
            in ``servers_folder()``.

    Raises:
        UserError: there is no such server, with a list of the known names, or its file is invalid.
    """
    given, folder = Path(name), servers_folder()
    named = folder / f"{name}.toml"
    for path in (given / CONNECTION, given, named):
        if path.is_file():
            return Connection.read(path)
    known = sorted(path.stem for path in folder.glob("*.toml"))
    listed = f"known: {', '.join(known)}" if known else f"none is known in '{folder}'"
    raise UserError(
        f"--on '{name}': no server of that name ({listed}), and no folder or file with a "
        f"connection{suggestion(name, known)}"
    )


def _quoted(text: str) -> str:
    """Return a TOML string."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
