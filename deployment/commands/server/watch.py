"""``fedpeft server watch``: print the address of a server's live page."""

from __future__ import annotations

from fedpeft.cli.options import OnServer
from fedpeft.errors import UserError


def watch(
    on: OnServer,
) -> None:
    """Print the address of a server's live page: nodes, runs, refusals, processes and log.

    The page is part of the running server, on loopback only. Its buttons stop and resume runs.
    Whoever has the address can do the same, so it is as secret as connection.toml.

    Example: fedpeft server watch --on /var/lib/fedpeft
    """
    from deployment.operator.connection import find_connection
    from deployment.operator.page import certificate_digest, page_address

    connection = find_connection(on)
    try:
        digest = certificate_digest(connection)
    except OSError:
        raise UserError(
            f"no server with a certificate of '{connection.ca}' answers at "
            f"{connection.operations}; {connection.advice}"
        ) from None
    print(page_address(connection))
    print(
        f"The certificate is of your own authority, which a browser does not know: import "
        f"'{connection.ca}', or accept the certificate if its SHA-256 is\n{digest}"
    )
