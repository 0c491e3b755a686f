"""``fedpeft server up``: checks what a server needs, then keeps its processes running.

Flower's SuperLink and superexec on loopback, nginx before them, and the operations endpoint in a
thread of this process. The superexec outlives a SuperLink that dies, and with it the runs do.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from fedpeft.child import Child
from fedpeft.processes import Supervisor
from fedpeft.shims import environment, write_shims
from server.host import proxy
from server.host.certificate import Certificate, check_keys
from server.host.health import superlink_answers
from server.host.outputs import read_nginx, read_superlink
from server.host.state import ServerState, locked

_SOON = 30  # days before the end of a certificate that are worth a warning
_PATIENCE = 120.0  # seconds for a SuperLink on a slow machine to answer


@dataclass(frozen=True)
class Server:
    """What ``fedpeft server up`` was told; ports are None where any will do."""

    state: Path
    keys: Path
    host: str = "0.0.0.0"
    port: int | None = None
    control_port: int | None = None


def up(server: Server, as_json: bool) -> None:
    """Check a server and run it until SIGTERM or SIGINT, printing its log.

    Raises:
        UserError: what the server was told cannot work, or another one runs in this folder.
    """
    os.umask(0o077)  # whatever a process of the server writes is for this user alone
    proxy.find_nginx()
    proxy.bracketed(server.host)
    certificate = check_keys(server.keys)
    with locked(server.state):
        asked = {"public": server.port, "control": server.control_port, "operations": None}
        state = ServerState.settle(
            server.state, server.keys, certificate.hosts, server.host.strip("[]"), asked
        )
        with _printed_log(state, as_json) as log:
            _run(state, certificate, log, as_json)


@contextmanager
def _printed_log(state: ServerState, as_json: bool) -> Iterator[logging.Logger]:
    """Start the log, and print what is appended to it meanwhile."""
    from fedpeft.logs import follow, start_log

    log = start_log(state.log, "server")
    stop = threading.Event()
    begin = state.log.stat().st_size
    printing = threading.Thread(target=follow, args=(state.log, stop, as_json, begin), daemon=True)
    printing.start()
    try:
        yield log
    finally:
        stop.set()
        printing.join()


def _run(state: ServerState, certificate: Certificate, log: logging.Logger, as_json: bool) -> None:
    write_shims(state.path / "bin", {"flwr-serverapp": "server.task"})
    if certificate.days < _SOON:
        log.warning("the certificate expires in %d days: fedpeft keys server", certificate.days)
    supervisor = Supervisor(children(state), log)

    def tell() -> None:
        log.info("the server is up; nodes reach it at %s", ", ".join(addresses(state)))
        if not as_json:
            print(welcome(state), flush=True)

    with _operations(state, supervisor):
        supervisor.run(tell)
    log.info("the server has ended")


@contextmanager
def _operations(state: ServerState, supervisor: Supervisor) -> Iterator[None]:
    from server.host.operations import serve

    endpoint = serve(state, supervisor)
    serving = threading.Thread(target=endpoint.serve_forever, daemon=True, name="operations")
    serving.start()
    try:
        yield
    finally:
        endpoint.shutdown()
        endpoint.server_close()
        serving.join()


def children(state: ServerState) -> list[Child]:
    """Return the processes of a server in the order in which they start."""
    around = {**environment(state.path), "FEDPEFT_SERVER_STATE": str(state.path)}
    control, connection = f"127.0.0.1:{state.ports['control']}", state.connection()
    hidden = "--superexec-auth-secret-file", str(state.secret)
    superlink = Child(
        "superlink",
        [
            *("flower-superlink", "--host", "127.0.0.1", "--port", str(state.ports["control"])),
            *("--ssl-ca-certfile", str(state.ca)),
            *("--ssl-certfile", str(state.certificate), "--ssl-keyfile", str(state.key)),
            *("--enable-supernode-auth", "--database", str(state.path / "superlink.db")),
            *("--disable-runtime-dependency-installation", "--isolation", "process", *hidden),
        ],
        around,
        lambda: superlink_answers(connection),
        _PATIENCE,
        read_superlink,
    )
    superexec = Child(
        "superexec",
        [
            *("flower-superexec", "--runtime-api-address", control),
            *("--root-certificates", str(state.ca), *hidden),
        ],
        around,
    )
    nginx = Child(
        "nginx",
        proxy.command(state, proxy.write_configuration(state)),
        ready=lambda: proxy.answers(state),
        read=read_nginx,
    )
    return [superlink, superexec, nginx]


def addresses(state: ServerState) -> list[str]:
    """Return where nodes reach a server: the names of its certificate with the public port."""
    hosts = state.hosts or ("localhost",)
    return [
        f"[{host}]:{state.ports['public']}" if ":" in host else f"{host}:{state.ports['public']}"
        for host in hosts
    ]


def welcome(state: ServerState) -> str:
    """Return what to do next, now that the server is up."""
    first = (state.hosts or ("localhost",))[0]
    tunnels = " ".join(
        f"-L {port}:127.0.0.1:{port}"
        for port in (state.ports["control"], state.ports["operations"])
    )
    return f"""
fedpeft server is up; Ctrl-C or SIGTERM ends it.
  nodes reach it at  {", ".join(addresses(state))}
  give each site     {state.path}/ca.crt (public)
  let a node in      fedpeft server add-node NODE.pub --state {state.path}
  see what goes on   fedpeft server status --state {state.path}
  run something      fedpeft run experiment.toml --on {state.path}
  from elsewhere     ssh {tunnels} {first}
                     copy connection.toml (secret) and ca.crt from {state.path} to a FOLDER there
                     fedpeft run experiment.toml --on FOLDER
  log                {state.log}
"""
