"""Where a server is and how an operator proves to be one: ``connection.toml``.

Both addresses are loopback ones, on the server's own machine or at this end of a tunnel
(``ssh -L``); the file is as secret as the token in it. Whoever listens there has to show a
certificate of the server's authority before anything is sent to it.
"""

from __future__ import annotations

import http.client
import os
import re
import ssl
import tomllib
from dataclasses import dataclass
from pathlib import Path

from fedpeft.errors import UserError, suggestion

CONNECTION = "connection.toml"  # in a server's state folder
_ADDRESS = re.compile(r"(?:[A-Za-z0-9.-]+|\[[0-9A-Fa-f:]+\]):([0-9]{1,5})")


@dataclass(frozen=True)
class Connection:
    """What a machine needs to give a server runs and to fetch their results.

    Attributes:
        control: host:port of Flower's control API (TLS).
        ca: file of the certificate that the server's is signed by.
        operations: host:port of the operations endpoint (TLS, on loopback only).
        token: what the operations endpoint asks for.
    """

    control: str
    ca: Path
    operations: str
    token: str

    def __repr__(self) -> str:
        """Leave out the token: a repr ends in logs."""
        return f"Connection({self.control!r}, {self.operations!r})"

    def to_toml(self) -> str:
        """Return the content of ``connection.toml``; contains the token."""
        lines = ("control", self.control), ("ca", str(self.ca)), ("operations", self.operations)
        return "".join(
            f"{key} = {_quoted(value)}\n" for key, value in (*lines, ("token", self.token))
        )

    @classmethod
    def read(cls, path: Path) -> Connection:
        """Read a ``connection.toml``; a ``ca`` without a leading slash lies beside the file.

        Raises:
            UserError: not readable, not TOML, a key missing or unknown, no address, no such ca.
        """
        try:
            values = tomllib.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            reason = error.strerror or type(error).__name__
            raise UserError(f"'{path}' cannot be read ({reason})") from None
        except ValueError:  # not UTF-8, not TOML; the parser's words could quote the token
            raise UserError(f"'{path}' is no TOML file; copy the server's again") from None
        keys = ("control", "ca", "operations", "token")
        wrong = [key for key in keys if not isinstance(values.get(key), str) or not values[key]]
        wrong += [key for key in values if key not in keys]
        if wrong:
            raise UserError(
                f"'{path}': {', '.join(wrong)}: expected {', '.join(keys)}, each of them a text"
            )
        for key in ("control", "operations"):
            match = _ADDRESS.fullmatch(values[key])
            if not match or not 0 < int(match[1]) < 65536:
                raise UserError(f"'{path}': {key} = '{values[key]}': expected HOST:PORT")
        ca = (path.parent / values["ca"]).resolve()
        if not ca.is_file():
            raise UserError(f"'{path}': no certificate '{ca}'; copy the server's ca.crt there")
        return cls(values["control"], ca, values["operations"], values["token"])


def secure_line(address: str, ca: Path, patience: float) -> http.client.HTTPSConnection:
    """Return a connection over TLS that is opened by its first request; it asks no proxy.

    Args:
        address: host:port.
        ca: file of the certificate that the other side's has to be signed by.
        patience: seconds without a byte.

    Raises:
        OSError: ``ca`` cannot be read or is no certificate.
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
    """Return the connection that ``--on`` means.

    Args:
        name: a server's state folder, a connection file, or the name of a file (without .toml)
            in ``servers_folder()``.

    Raises:
        UserError: nothing of that name, or it cannot be used; lists the names known.
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
