"""``fedpeft server up``: run a server until it is stopped."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedpeft.cli.options import LogJson, ServerState

_PORT = 9092


def up(
    state: ServerState,
    keys: Annotated[
        Path, typer.Option(help="Folder of ca.crt, server.crt and server.key (fedpeft keys).")
    ],
    host: Annotated[str, typer.Option(help="IP address to listen on for nodes.")] = "0.0.0.0",
    port: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=65535,
            help=f"Port for nodes, the only public one; default: the last one used, or {_PORT}.",
        ),
    ] = None,
    control_port: Annotated[
        int | None,
        typer.Option(min=1, max=65535, help="Loopback port for runs; default: the last one used."),
    ] = None,
    max_body: Annotated[
        int,
        typer.Option(
            min=1,
            max=10_000,
            metavar="MB",
            help="Largest request of a node; a whole RoBERTa takes 500 MB.",
        ),
    ] = 64,
    log_json: LogJson = False,
) -> None:
    """Check keys and ports, then serve nodes until stopped.

    Prints a log. Ctrl-C and SIGTERM end it with exit code 0.

    Example: fedpeft server up --state /var/lib/fedpeft --keys keys
    """
    from deployment.operator.connection import SETTINGS
    from deployment.server_up import Server
    from deployment.server_up import up as run

    if port is None and not (state / SETTINGS).exists():
        port = _PORT
    run(Server(state, keys, host, port, control_port, max_body), log_json)
