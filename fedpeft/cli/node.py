"""``fedpeft node``: take part in federated training with the data of this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedpeft.errors import UserError

app = typer.Typer(no_args_is_help=True, help="Take part with the data of this machine.")


@app.callback()
def node() -> None:
    """Take part with the data of this machine."""


@app.command()
def up(
    superlink: Annotated[str, typer.Option(metavar="HOST:PORT", help="The server.")],
    key: Annotated[Path, typer.Option(help="This node's private key (fedpeft keys node).")],
    ca: Annotated[Path, typer.Option(help="The ca.crt that the server's operator hands out.")],
    state: Annotated[Path, typer.Option(help="Folder that the node keeps (mode 0700).")],
    data: Annotated[
        Path | None, typer.Option(help="This node's examples: a table file, or a folder of them.")
    ] = None,
    partition: Annotated[
        int | None, typer.Option(min=0, help="For trials: take only this part of the data.")
    ] = None,
    max_epsilon: Annotated[
        float | None, typer.Option(help="Refuse rounds that would spend more privacy than this.")
    ] = None,
    backbone: Annotated[
        list[str] | None, typer.Option(help="Load this backbone now, and no other ever.")
    ] = None,
    worker: Annotated[
        bool, typer.Option("--worker/--no-worker", help="Keep backbone and data loaded.")
    ] = True,
    log_json: Annotated[bool, typer.Option("--log-json", help="Print the log as JSON.")] = False,
) -> None:
    """Check key, certificate, data and backbones, then serve the server until stopped.

    Example: fedpeft node up --superlink fl.example.org:9092 --key site1 --ca ca.crt
    --data reviews.csv --state /var/lib/fedpeft
    """
    from clients import node
    from clients.state import NodeSettings

    if max_epsilon is not None and not max_epsilon > 0:
        raise UserError(f"--max-epsilon {max_epsilon:g}: expected a number above 0")
    settings = NodeSettings(
        str(data.resolve()) if data else "", partition, max_epsilon, tuple(backbone or ())
    )
    described = node.Node(superlink, key.resolve(), ca.resolve(), state.resolve(), settings, worker)
    node.up(described, log_json)
