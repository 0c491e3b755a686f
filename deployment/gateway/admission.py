"""Admission of requests by their headers: a registered key, its signature, and the time window.

Flower's nodes sign the current time and send it with their public key. The SuperLink checks the
same, but only after it has read a request's body, and it reads any body.
"""

from __future__ import annotations

import binascii
import hashlib
from base64 import b64decode
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_public_key,
)

from fedpeft.errors import UserError
from server.members.registry import NODES, Registered, registered_nodes

KEY, TIME, SIGNATURE = b"flwr-public-key", b"flwr-timestamp", b"flwr-signature"
#: Ages of a signature in seconds that Flower 1.41 accepts, exclusive.
YOUNGEST, OLDEST = -5.0, 305.0
_LONGEST = 2000  # bytes of each header; a key has 290


class Refused(Exception):
    """A request is refused.

    Attributes:
        status: HTTP status of the answer.
        reason: for the log.
        body: of the answer.
    """

    def __init__(self, status: int, reason: str, body: bytes = b""):
        super().__init__(reason)
        self.status, self.reason, self.body = status, reason, body


@dataclass(frozen=True)
class Admitted:
    """An admitted request.

    Attributes:
        node: the registered node that signed it.
        seconds: for which the SuperLink accepts the signature.
    """

    node: Registered
    seconds: float


class Admission:
    """The check of requests against the nodes in a server's state folder.

    Args:
        state: the folder of nodes.json, which is read again whenever it changes.
    """

    def __init__(self, state: Path):
        self._state = state
        self._version: object = None
        self._nodes: dict[str, Registered] = {}
        # Parsed keys by the bytes in the header; only keys of registered nodes, so it is bounded.
        self._keys: dict[bytes, tuple[str, ec.EllipticCurvePublicKey]] = {}

    def check(self, path: str, headers: Mapping[bytes, bytes]) -> Admitted:
        """Return the node that signed a request.

        Args:
            path: of the request.
            headers: values by lowercase name.

        Raises:
            Refused: the key is not registered, the signature is not of this key, or it is too old
                or from the future.
        """
        given = [headers.get(name, b"") for name in (KEY, TIME, SIGNATURE)]
        if not all(given) or any(len(value) > _LONGEST for value in given):
            raise Refused(401, "no signature of a node")
        digest, key = self._registered_key(path, given[0])
        age = _age(given[1])
        if not YOUNGEST < age < OLDEST:
            raise Refused(
                401,
                f"the signature is {age:.0f} s old, expected -5 to 305: the node's clock is wrong, "
                "or an old request was sent again",
            )
        try:
            signature = b64decode(given[2], validate=True)
            key.verify(signature, given[1], ec.ECDSA(hashes.SHA256()))
        except (InvalidSignature, binascii.Error, ValueError):
            raise Refused(401, "the signature is not of the node's key") from None
        return Admitted(self._nodes[digest], OLDEST - age)

    def _registered_key(self, path: str, encoded: bytes) -> tuple[str, ec.EllipticCurvePublicKey]:
        self._refresh()
        if encoded in self._keys:
            return self._keys[encoded]
        try:
            key = load_pem_public_key(b64decode(encoded, validate=True))
        except (binascii.Error, ValueError, UnsupportedAlgorithm):
            raise Refused(401, "the public key cannot be read") from None
        if isinstance(key, ec.EllipticCurvePublicKey):
            blob = key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).split()[1]
            digest = hashlib.sha256(b64decode(blob)).hexdigest()
            if digest in self._nodes:
                self._keys[encoded] = digest, key
                return digest, key
        # The SuperNode shows the body of an answer 412 to its operator; 401 would only end it.
        activates = path == "/v1/fleet/activate-node"
        body = b'{"code": 2004, "detail": "The key of this node is not registered at the server."}'
        raise Refused(
            412 if activates else 401,
            "its key is not registered (fedpeft server add-node)",
            body if activates else b"",
        )

    def _refresh(self) -> None:
        """Read nodes.json again if it has changed."""
        try:
            about = (self._state / NODES).stat()
            version = about.st_ino, about.st_mtime_ns, about.st_size
        except FileNotFoundError:
            version = None
        if version == self._version and self._version is not None:
            return
        try:
            nodes = registered_nodes(self._state)
        except (UserError, OSError):
            self._version, self._nodes = None, {}
            self._keys.clear()
            raise Refused(503, "nodes.json cannot be read; see 'fedpeft server status'") from None
        self._version, self._nodes = version, {node.public_key_sha256: node for node in nodes}
        self._keys.clear()


def _age(text: bytes) -> float:
    """Return the seconds since a time in ISO 8601 with its zone."""
    try:
        return (datetime.now(UTC) - datetime.fromisoformat(text.decode("ascii"))).total_seconds()
    except (ValueError, TypeError, OverflowError):  # UnicodeDecodeError is a ValueError
        raise Refused(401, "the time of the signature cannot be read") from None
