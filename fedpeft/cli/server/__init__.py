"""``fedpeft server``: run a server, invite and register nodes, show the status and a page."""

from __future__ import annotations

import typer

from fedpeft.cli.server import kit, nodes, status, up, watch

app = typer.Typer(no_args_is_help=True, help="Run a server for nodes on other machines.")
app.command()(up.up)
app.command()(kit.kit)
app.command()(nodes.add_node)
app.command()(nodes.remove_node)
app.command()(status.status)
app.command()(watch.watch)
