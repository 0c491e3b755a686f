"""The live page of a server: its address and its tokens.

The page's tokens follow from the operator's token of ``connection.toml``, so that whoever has the
file can open the page, and an open page survives a restart of the server. A browser keeps them, and
neither of them reveals the operator's token.
"""

from __future__ import annotations

import hashlib
import hmac
import ssl

from deployment.operator.connection import Connection, secure_line

PATH = "/watch/"  # at the operations endpoint
_PATIENCE = 10.0  # seconds


def page_token(connection: Connection) -> str:
    """Return the token that opens the page, 64 hexadecimal digits."""
    return _derived(connection, "page")


def act_token(connection: Connection) -> str:
    """Return the token that the page itself sends when it starts, stops or resumes a run."""
    return _derived(connection, "act")


def page_address(connection: Connection) -> str:
    """Return the address of the page, with its token."""
    return f"https://{connection.operations}{PATH}?token={page_token(connection)}"


def certificate_digest(connection: Connection) -> str:
    """Return the SHA-256 of the certificate that the endpoint shows, as browsers print it.

    Raises:
        OSError: nothing answers there, or no server with a certificate of the authority.
    """
    line = secure_line(connection.operations, connection.ca, _PATIENCE)
    line.connect()
    try:
        assert isinstance(line.sock, ssl.SSLSocket)  # for mypy: the connection is over TLS
        digest = hashlib.sha256(line.sock.getpeercert(binary_form=True) or b"").hexdigest()
    finally:
        line.close()
    return ":".join(digest[at : at + 2] for at in range(0, len(digest), 2)).upper()


def _derived(connection: Connection, purpose: str) -> str:
    key, text = connection.token.encode(), f"fedpeft-{purpose}-v1"
    return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()
