"""The state folder of a server: addresses, ports and secrets, created once and then kept."""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from deployment.hosting.keys import CA_CERTIFICATE, SERVER_CERTIFICATE, SERVER_KEY
from deployment.operator.connection import CONNECTION, LOCK, SETTINGS, Connection
from fedpeft import locks
from fedpeft.errors import UserError
from fedpeft.files import PRIVATE, PUBLIC, write_json, write_together
from fedpeft.page.ports import LOOPBACK, check_free, free_port

LOG = "server.log"
PORTS = ("public", "control", "operations")
_LEAVING = 15.0  # seconds that the processes of a killed server may take to end


@dataclass(frozen=True)
class ServerFolder:
    """The state folder of a server, opened.

    Attributes:
        path: the absolute path of the folder.
        keys: the absolute path of the folder of ca.crt, server.crt and server.key.
        host: the IP address at which the server listens for nodes.
        hosts: names and addresses that the certificate is valid for.
        ports: by the names in ``PORTS``; public is for nodes, the others are on loopback.
    """

    path: Path
    keys: Path
    host: str
    hosts: tuple[str, ...]
    ports: Mapping[str, int]

    @classmethod
    def read(cls, path: Path) -> ServerFolder:
        """Read the folder as the last ``fedpeft server up`` left it.

        Raises:
            UserError: it is missing or damaged.
        """
        file = path / SETTINGS
        try:
            settings = json.loads(file.read_text(encoding="utf-8"))
            ports = {name: int(settings["ports"][name]) for name in PORTS}
            hosts = tuple(str(host) for host in settings["hosts"])
            return cls(path.resolve(), Path(settings["keys"]), str(settings["host"]), hosts, ports)
        except FileNotFoundError:
            raise UserError(f"no '{file}'; 'fedpeft server up --state {path}' makes it") from None
        except OSError as error:
            raise UserError(f"'{file}' cannot be read ({error.strerror})") from None
        except (ValueError, KeyError, TypeError):
            raise UserError(
                f"'{file}' is damaged; remove it, and 'fedpeft server up' makes a new one"
            ) from None

    @classmethod
    def settle(
        cls,
        path: Path,
        keys: Path,
        hosts: Sequence[str],
        host: str,
        ports: Mapping[str, int | None],
    ) -> ServerFolder:
        """Choose the ports that are not settled yet, and write all files of the folder.

        Args:
            path: the folder, which must exist.
            keys: the folder of the server's keys.
            hosts: names and addresses that the certificate is valid for.
            host: the IP address at which the server listens for nodes.
            ports: the requested ports; None keeps the port of the last start or takes a free one.

        Raises:
            UserError: two ports are equal, a port is in use (for a kept one: still in use after
                15 s, because the processes of a killed server need time to end), or the settings
                are damaged.
        """
        kept = cls.read(path).ports if (path / SETTINGS).exists() else {}
        settled = {name: ports[name] or kept.get(name) for name in PORTS}
        chosen: dict[str, int] = {}
        for name, port in settled.items():
            chosen[name] = port or free_port([*settled.values(), *chosen.values()])
        for name, port in chosen.items():
            others = [other for other in PORTS if other != name and chosen[other] == port]
            if others:
                raise UserError(
                    f"port {port} cannot be both the {name} port and the {others[0]} port; choose "
                    f"another with --{_option('control' if name == 'operations' else name)}"
                )
            patience = _LEAVING if kept.get(name) == port else 0.0
            _check_free(host if name == "public" else LOOPBACK, name, port, patience)
        state = cls(path.resolve(), keys.resolve(), host, tuple(hosts), chosen)
        state._write()
        return state

    def _write(self) -> None:
        write_json(
            self.path / SETTINGS,
            {
                "host": self.host,
                "hosts": list(self.hosts),
                "ports": dict(self.ports),
                "keys": str(self.keys),
            },
        )
        for folder in ("flwr", "bin", "runs"):
            (self.path / folder).mkdir(mode=0o700, exist_ok=True)
        files = {self.secret: secrets.token_hex(32), self.path / "token": secrets.token_hex(32)}
        new = {file: (text.encode(), PRIVATE) for file, text in files.items() if not file.exists()}
        write_together(new)
        # Beside the connection, so that both can be copied to the machine that starts the runs.
        connection = self.connection()
        portable = Connection(
            connection.control, Path(CA_CERTIFICATE), connection.operations, connection.token
        )
        write_together(
            {
                self.path / CA_CERTIFICATE: (self.ca.read_bytes(), PUBLIC),
                self.path / CONNECTION: (portable.to_toml().encode(), PRIVATE),
            },
            replace=True,
        )

    def connection(self) -> Connection:
        """Return the connection of this machine to the server; contains the token."""
        return Connection(
            f"127.0.0.1:{self.ports['control']}",
            self.ca,
            f"127.0.0.1:{self.ports['operations']}",
            (self.path / "token").read_text(encoding="ascii"),
            self.path,
        )

    def addresses(self) -> list[str]:
        """Return the addresses for nodes: the names of the certificate with the public port."""
        port = self.ports["public"]
        hosts = self.hosts or ("localhost",)
        return [f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host in hosts]

    @property
    def database(self) -> Path:
        """The SuperLink's database, written by Flower alone."""
        return self.path / "superlink.db"

    @property
    def ca(self) -> Path:
        """The file of the authority's certificate."""
        return self.keys / CA_CERTIFICATE

    @property
    def certificate(self) -> Path:
        """The file of the server's certificate."""
        return self.keys / SERVER_CERTIFICATE

    @property
    def key(self) -> Path:
        """The file of the server's private key."""
        return self.keys / SERVER_KEY

    @property
    def secret(self) -> Path:
        """The file of the secret that the server's processes share."""
        return self.path / "secret"

    @property
    def log(self) -> Path:
        """The log that all processes of the server append to."""
        return self.path / LOG

    @property
    def processes(self) -> Path:
        """The processes of the server, see :mod:`deployment.hosting.record`."""
        return self.path / "processes.json"


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Make the folder (0700) and lock it against a second server until this process ends.

    Raises:
        UserError: another server runs there, or the folder cannot be made or is another user's.
    """
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        if path.stat().st_uid != os.geteuid():
            raise UserError(f"--state '{path}' belongs to another user; use a folder of your own")
        path.chmod(0o700)
    except FileExistsError:
        raise UserError(f"--state '{path}' is a file; expected a folder") from None
    except OSError as error:
        raise UserError(f"--state '{path}' cannot be used ({error.strerror})") from None
    with locks.locked(path / LOCK, f"--state '{path}': another server runs there"):
        yield


def _check_free(host: str, name: str, port: int, patience: float) -> None:
    """Wait until a port is free, at most ``patience`` seconds."""
    deadline = time.monotonic() + patience
    while True:
        try:
            return check_free(host, port)
        except OSError as error:
            if time.monotonic() >= deadline:
                option = (
                    "" if name == "operations" else f" or choose another with --{_option(name)}"
                )
                raise UserError(
                    f"the {name} port {host}:{port} cannot be used ({error.strerror}); end the "
                    f"program that uses it{option}"
                ) from None
        time.sleep(0.1)


def _option(name: str) -> str:
    return "port" if name == "public" else f"{name}-port"
