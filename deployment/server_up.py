"""``fedpeft server up``: check a server's settings, then keep its processes running.

The processes are Flower's SuperLink and superexec on loopback and the gateway in front of them; the
operations endpoint is a thread of this process. The superexec, and with it every run, survives the
death of the SuperLink.
"""

from __future__ import annotations

import ipaddress
import logging
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from deployment.gateway.limits import MEGABYTE
from deployment.hosting.child import Child
from deployment.hosting.processes import Supervisor
from deployment.hosting.shims import environment, write_shims
from deployment.hosting.timing import Timing
from deployment.server.certificate import Certificate, check_keys
from deployment.server.database import check_database
from deployment.server.folder import ServerFolder, locked
from deployment.server.health import superlink_answers
from fedpeft.errors import UserError
from fedpeft.page.ports import speaks_tls
from server.members.registry import STATE

_SOON = 30  # days before a certificate expires that a warning is given
_PATIENCE = 120.0  # seconds for a SuperLink on a slow machine to answer


@dataclass(frozen=True)
class Server:
    """The options of ``fedpeft server up``.

    Attributes:
        state: the state folder.
        keys: the folder of ca.crt, server.crt and server.key.
        host: the IP address at which the server listens for nodes.
        port: for nodes; None: chosen automatically, like the other.
        control_port: of the SuperLink, on loopback.
        max_body: the largest request of a node in megabytes.
    """

    state: Path
    keys: Path
    host: str = "0.0.0.0"
    port: int | None = None
    control_port: int | None = None
    max_body: int = 64


def up(server: Server, as_json: bool) -> None:
    """Check a server and run it until SIGTERM or SIGINT, printing its log.

    Raises:
        UserError: an option is invalid, or another server runs in this folder.
    """
    from deployment.hosting.logs import printed_log

    os.umask(0o077)  # files of the server's processes are for this user alone
    _check_host(server.host)
    certificate = check_keys(server.keys)
    with locked(server.state):
        ports = {"public": server.port, "control": server.control_port, "operations": None}
        state = ServerFolder.settle(
            server.state, server.keys, certificate.hosts, server.host.strip("[]"), ports
        )
        check_database(state.database)
        with printed_log(state.log, "server", as_json) as log:
            _run(state, certificate, server.max_body, log, as_json)


def _check_host(host: str) -> None:
    try:
        ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        raise UserError(
            f"--host '{host}': expected an IP address of this machine, 0.0.0.0 for all"
        ) from None


def _run(
    state: ServerFolder,
    certificate: Certificate,
    max_body: int,
    log: logging.Logger,
    as_json: bool,
) -> None:
    from deployment.operations import operations

    write_shims(state.path / "bin", {"flwr-serverapp": "deployment.server.process"})
    if certificate.days < _SOON:
        log.warning("the certificate expires in %d days: fedpeft keys server", certificate.days)
    timing = Timing.read(state.path)
    supervisor = Supervisor(children(state, max_body), log, timing, state.processes)

    def announce() -> None:
        log.info("the server is up; nodes reach it at %s", ", ".join(state.addresses()))
        if not as_json:
            print(welcome(state), flush=True)

    with operations(state, supervisor):
        supervisor.run(announce)
    log.info("the server has ended")


def children(state: ServerFolder, max_body: int) -> list[Child]:
    """Return the processes of a server in the order in which they start."""
    superexec = Child(
        "superexec",
        [
            *("flower-superexec", "--runtime-api-address", f"127.0.0.1:{state.ports['control']}"),
            *("--root-certificates", str(state.ca)),
            *("--superexec-auth-secret-file", str(state.secret)),
        ],
        _environment(state),
    )
    return [superlink(state), superexec, gateway(state, max_body)]


def gateway(state: ServerFolder, max_body: int) -> Child:
    """Return the gateway of a server, which accepts requests of ``max_body`` megabytes."""
    # "All addresses" is not an address to connect to; loopback is one of them.
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(state.host, state.host)
    return Child(
        "gateway",
        [
            *(sys.executable, "-P", "-m", "deployment.gateway", str(state.path)),
            *("--max-body", str(max_body * MEGABYTE)),
        ],
        ready=lambda: speaks_tls(host, state.ports["public"], state.ca, "localhost"),
    )


def superlink(state: ServerFolder) -> Child:
    """Return the SuperLink of a server."""
    connection = state.connection()
    return Child(
        "superlink",
        [
            *("flower-superlink", "--host", "127.0.0.1", "--port", str(state.ports["control"])),
            *("--ssl-ca-certfile", str(state.ca)),
            *("--ssl-certfile", str(state.certificate), "--ssl-keyfile", str(state.key)),
            *("--enable-supernode-auth", "--database", str(state.database)),
            *("--disable-runtime-dependency-installation", "--isolation", "process"),
            *("--superexec-auth-secret-file", str(state.secret)),
        ],
        _environment(state),
        lambda: superlink_answers(connection),
        _PATIENCE,
    )


def _environment(state: ServerFolder) -> dict[str, str]:
    return {**environment(state.path), STATE: str(state.path)}


def welcome(state: ServerFolder) -> str:
    """Return the next steps to print once the server is up."""
    first = (state.hosts or ("localhost",))[0]
    tunnels = " ".join(
        f"-L {port}:127.0.0.1:{port}"
        for port in (state.ports["control"], state.ports["operations"])
    )
    return f"""
fedpeft server is up; Ctrl-C or SIGTERM ends it.
  nodes reach it at  {", ".join(state.addresses())}
  give each site     {state.path}/ca.crt (public)
  register a node    fedpeft server add-node NODE.pub --state {state.path}
  show the status    fedpeft server status --state {state.path}
  open its page      fedpeft server watch --on {state.path}
  run something      fedpeft run experiment.toml --on {state.path}
  from elsewhere     ssh {tunnels} {first}
                     copy connection.toml (secret) and ca.crt from {state.path} to a FOLDER there
                     fedpeft run experiment.toml --on FOLDER
  log                {state.log}
"""
