"""``fedpeft keys``: the keys of a deployment, made before anything is started."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(no_args_is_help=True, help="Make the keys of a server and of its nodes.")
Out = Annotated[Path, typer.Option(help="Folder for the files; made if missing (mode 0700).")]
Force = Annotated[bool, typer.Option("--force", help="Replace files that are there.")]


@app.command()
def init(out: Out, force: Force = False) -> None:
    """Make a private certificate authority: ca.key and ca.crt, valid for 10 years.

    Example: fedpeft keys init --out ca
    """
    from fedpeft.keys import make_authority

    key, certificate = make_authority(out, force)
    print(f"secret, needed for 'fedpeft keys server' only, best kept offline: {key}")
    print(f"for every node, by a way that nobody can change it on: {certificate}")
    print(f"next: fedpeft keys server HOST --out OTHER_FOLDER --ca-dir {out}")


@app.command()
def server(
    host: Annotated[
        list[str], typer.Argument(help="Names and IP addresses by which nodes reach the server.")
    ],
    out: Out,
    ca_dir: Annotated[
        Path | None, typer.Option(help="Folder of ca.key and ca.crt.", show_default="--out")
    ] = None,
    force: Force = False,
) -> None:
    """Make a server's key and certificate, valid for 825 days: server.key and server.crt.

    The certificate is also for localhost, which the server's own parts use.

    Example: fedpeft keys server fed.example.org 192.0.2.7 --out keys
    """
    from fedpeft.keys import make_server

    key, certificate, authority = make_server(out, host, ca_dir or out, force)
    print(f"secret, for the server only: {key}")
    print(f"for the server: {certificate}, {authority}")
    print(f"next: fedpeft server up --state DIR --keys {out}")
    print("then, at each site: fedpeft keys node NAME --out DIR")


@app.command()
def node(
    name: Annotated[str, typer.Argument(help="The node's name: letters, digits, '.', '_', '-'.")],
    out: Out,
    force: Force = False,
) -> None:
    """Make a node's key pair, NAME and NAME.pub, at the site itself: the secret stays there.

    Example: fedpeft keys node hospital-a --out keys
    """
    from fedpeft.keys import make_node

    private, public = make_node(out, name, force)
    print(f"secret, for this node only: {private}")
    print(f"for the server's operator: {public}")
    print(f"next, at the server: fedpeft server add-node {public.name} --state DIR")
