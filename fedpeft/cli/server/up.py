"""``fedpeft server up``: the processes that nodes and runs need, until they are told to end."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

_PORT = 9092


def up(
    state: Annotated[Path, typer.Option(help="Folder that the server keeps (mode 0700).")],
    keys: Annotated[
        Path, typer.Option(help="Folder of ca.crt, server.crt and server.key (fedpeft keys).")
    ],
    host: Annotated[str, typer.Option(help="IP address to await nodes on.")] = "0.0.0.0",
    port: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=65535,
            help=f"Port for nodes, the only one that is open; default: kept, at first {_PORT}.",
        ),
    ] = None,
    control_port: Annotated[
        int | None,
        typer.Option(
            min=1, max=65535, help="Port on loopback that runs are submitted to; default: kept."
        ),
    ] = None,
    log_json: Annotated[bool, typer.Option("--log-json", help="Print the log as JSON.")] = False,
) -> None:
    """Check keys and ports, then serve nodes until stopped.

    Example: fedpeft server up --state /var/lib/fedpeft --keys keys
    """
    from server.host.state import SETTINGS
    from server.host.up import Server
    from server.host.up import up as run

    if port is None and not (state / SETTINGS).exists():
        port = _PORT
    run(Server(state, keys, host, port, control_port), log_json)
