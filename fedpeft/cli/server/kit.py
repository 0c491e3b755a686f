"""``fedpeft server kit``: a folder for a site, with all that its node needs from the server."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedpeft.cli.options import ServerState


def kit(
    name: Annotated[str, typer.Argument(help="The node's name: letters, digits, '.', '_', '-'.")],
    state: ServerState,
    experiment: Annotated[
        Path | None,
        typer.Option(help="Experiment of the node: its command then has columns and labels."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The folder.", show_default="NAME-kit", metavar="FOLDER")
    ] = None,
) -> None:
    """Make a folder for the site of a node: the server's ca.crt, and a README with its commands.

    Nothing in it is secret; the site makes its own key. Prints what to compare by telephone and the
    next steps. The server may be up or down.

    Example: fedpeft server kit north --state /var/lib/fedpeft --experiment reviews.toml
    """
    from fedpeft.experiment.config import Experiment
    from fedpeft.hosting.keys import certificate_fingerprint
    from server.host.folder import ServerFolder
    from server.host.kit import write_kit

    server, folder = ServerFolder.read(state), out or Path(f"{name}-kit")
    settings = Experiment.read(experiment) if experiment else None
    fingerprint = certificate_fingerprint(server.ca)
    write_kit(server, name, folder, settings)
    print(f"for the site of '{name}', nothing in it is secret: {folder}")
    if not server.hosts:
        print(
            "its address is localhost, as the server's certificate is for this machine only: "
            "'fedpeft keys server HOST' makes one for others"
        )
    print(f"read to the site by telephone, the SHA-256 of its ca.crt:\n  {fingerprint}")
    print(f"next, when its {name}.pub has come: fedpeft server add-node {name}.pub --state {state}")
