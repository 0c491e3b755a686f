"""``fedpeft keys``: make the keys of a deployment, before the server and nodes start."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(no_args_is_help=True, help="Make the keys of a server and its nodes.")
Out = Annotated[Path, typer.Option(help="Folder for the files; created if missing (mode 0700).")]
Force = Annotated[bool, typer.Option("--force", help="Replace existing files.")]


@app.command()
def init(out: Out, force: Force = False) -> None:
    """Make a private certificate authority: ca.key and ca.crt, valid for 10 years.

    Prints the paths of both files and the next step.

    Example: fedpeft keys init --out ca
    """
    from fedpeft.hosting.keys import make_authority

    key, certificate = make_authority(out, force)
    print(f"secret, needed only for 'fedpeft keys server', best kept offline: {key}")
    print(f"for every node, over a channel that protects it from changes: {certificate}")
    print(f"next: fedpeft keys server HOST --out OTHER_FOLDER --ca-dir {out}")


@app.command()
def server(
    host: Annotated[
        list[str],
        typer.Argument(help="Host names and IP addresses of the server."),
    ],
    out: Out,
    ca_dir: Annotated[
        Path | None, typer.Option(help="Folder of ca.key and ca.crt.", show_default="--out")
    ] = None,
    force: Force = False,
) -> None:
    """Make a server's key and certificate: server.key and server.crt, valid for 825 days.

    The certificate also covers localhost, for connections within the server. Prints the paths of
    the files and the next steps.

    Example: fedpeft keys server fed.example.org 192.0.2.7 --out keys
    """
    from fedpeft.hosting.keys import make_server

    key, certificate, authority = make_server(out, host, ca_dir or out, force)
    print(f"secret, only for the server: {key}")
    print(f"for the server: {certificate}, {authority}")
    print(f"next: fedpeft server up --state DIR --keys {out}")
    print("then, at each site: fedpeft keys node NAME --out DIR")


@app.command()
def node(
    name: Annotated[str, typer.Argument(help="The node's name: letters, digits, '.', '_', '-'.")],
    out: Out,
    force: Force = False,
) -> None:
    """Make a node's key pair, NAME and NAME.pub. Run it at the node's site: the secret stays there.

    Prints the paths of both files, the key's fingerprint and the next step.

    Example: fedpeft keys node hospital-a --out keys
    """
    from fedpeft.hosting.keys import fingerprint, make_node

    private, public = make_node(out, name, force)
    print(f"secret, only for this node: {private}")
    print(f"for the server's operator: {public}")
    print(f"its fingerprint, to compare by telephone: {fingerprint(public.read_text('ascii'))}")
    print(f"next, at the server: fedpeft server add-node {public.name} --state DIR")
