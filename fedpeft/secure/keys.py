"""Keys of secure aggregation: who a peer is, and what two peers share.

Each node has one X25519 key for a run, signed by its registered key, and one for each round. The
text that is signed begins with a name of its own, because Flower signs bare times with the
registered key. Seeds of masks and keys of ciphers come from HKDF-SHA256, never from a key itself.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from fedpeft.errors import UserError
from fedpeft.randomness import philox

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

DOMAIN = "fedpeft-secagg-v1"
KEY_BYTES, SEED_BYTES, SIGNATURE_BYTES, NAME_BYTES = 32, 16, 96, 8
_HALF = SIGNATURE_BYTES // 2  # of a signature with P-384: r and s


@dataclass(frozen=True)
class Peer:
    """A client as it introduces itself to its peers.

    Attributes:
        client: its number in the run.
        name: the first bytes of the SHA-256 of its registered key.
        key: its public X25519 key for the run.
        signature: of this key by the registered key.
    """

    client: int
    name: bytes
    key: bytes
    signature: bytes

    SIZE = 4 + NAME_BYTES + KEY_BYTES + SIGNATURE_BYTES

    def to_bytes(self) -> bytes:
        """Return SIZE bytes."""
        return self.client.to_bytes(4, "little") + self.name + self.key + self.signature

    @classmethod
    def from_bytes(cls, data: bytes) -> Peer:
        """Return the peer of received bytes.

        Raises:
            ValueError: wrong length.
        """
        if len(data) != cls.SIZE:
            raise ValueError(f"a peer has {len(data)} bytes, expected {cls.SIZE}")
        ends = (4, 4 + NAME_BYTES, 4 + NAME_BYTES + KEY_BYTES)
        client, name, key = data[: ends[0]], data[ends[0] : ends[1]], data[ends[1] : ends[2]]
        return cls(int.from_bytes(client, "little"), name, key, data[ends[2] :])


@dataclass(frozen=True)
class Roster:
    """The registered public keys that a site trusts, by ``Peer.name``, as OpenSSH lines."""

    keys: dict[bytes, bytes]

    @classmethod
    def of(cls, lines: Iterable[bytes]) -> Roster:
        """Return the roster of public keys in OpenSSH format.

        Raises:
            ValueError: a line is not a key, or two keys have one name.
        """
        keys: dict[bytes, bytes] = {}
        for line in lines:
            bare = b" ".join(line.split()[:2])
            _public(bare)
            if name_of(bare) in keys:
                raise ValueError("two of the keys are the same")
            keys[name_of(bare)] = bare
        return cls(keys)

    @classmethod
    def read(cls, path: Path) -> Roster:
        """Read a file with one public key in each line; empty lines and # comments are skipped.

        Raises:
            UserError: it cannot be read, or a line is not a P-384 key in OpenSSH format.
        """
        try:
            lines = [line.strip() for line in path.read_bytes().splitlines()]
            return cls.of(line for line in lines if line and not line.startswith(b"#"))
        except (OSError, ValueError) as error:
            raise UserError(
                f"--roster {path}: {getattr(error, 'strerror', None) or error}; expected the .pub "
                f"files of all nodes, one key in a line"
            ) from None

    def trusts(self, peer: Peer, context: str) -> bool:
        """Return whether a registered key signed the peer's key for this run."""
        line = self.keys.get(peer.name)
        return line is not None and _signed(line, peer.signature, _text(context, peer))


def name_of(line: bytes) -> bytes:
    """Return the short name of a public key in OpenSSH format."""
    return hashlib.sha256(b" ".join(line.split()[:2])).digest()[:NAME_BYTES]


def introduced(registered: EllipticCurvePrivateKey, context: str, client: int, key: bytes) -> Peer:
    """Return a client with its public X25519 ``key`` for the run, signed by its registered key."""
    from cryptography.hazmat.primitives.asymmetric.ec import ECDSA
    from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
    from cryptography.hazmat.primitives.hashes import SHA256

    peer = Peer(client, name_of(public_line(registered)), key, b"")
    # The same at each handshake (RFC 6979): a server that resumes a round knows its clients again.
    how = ECDSA(SHA256(), deterministic_signing=True)
    numbers = decode_dss_signature(registered.sign(_text(context, peer), how))
    return Peer(client, peer.name, key, b"".join(n.to_bytes(_HALF, "big") for n in numbers))


def public_line(registered: EllipticCurvePrivateKey) -> bytes:
    """Return a registered key's public part in OpenSSH format."""
    from cryptography.hazmat.primitives import serialization as forms

    return registered.public_key().public_bytes(forms.Encoding.OpenSSH, forms.PublicFormat.OpenSSH)


@lru_cache(maxsize=4096)
def simulated(seed: int, client: int) -> EllipticCurvePrivateKey:
    """Return the registered key of a simulated client."""
    from cryptography.hazmat.primitives.asymmetric import ec

    words = philox(f"{DOMAIN}|{seed}|{client}").random_raw(4)  # below the order of the group
    return ec.derive_private_key(int.from_bytes(words.tobytes(), "little") | 1, ec.SECP384R1())


@lru_cache(maxsize=4)
def simulated_roster(seed: int, clients: int) -> Roster:
    """Return the roster of all clients of a simulation."""
    return Roster.of(public_line(simulated(seed, client)) for client in range(clients))


def public_key(private: bytes) -> bytes:
    """Return the public X25519 key of a private one."""
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def derived(secret: bytes, *about: str | int | bytes) -> bytes:
    """Return 32 bytes by HKDF-SHA256 from a secret, for one purpose that ``about`` names."""
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    info = "|".join(each.hex() if isinstance(each, bytes) else str(each) for each in about)
    return HKDF(SHA256(), KEY_BYTES, None, f"{DOMAIN}|{info}".encode()).derive(secret)


def agreed(private: bytes, public: bytes, *about: str | int | bytes) -> bytes:
    """Return what two X25519 keys agree on, see ``derived``.

    Raises:
        ValueError: the public key is not one.
    """
    from cryptography.hazmat.primitives.asymmetric.x25519 import (
        X25519PrivateKey,
        X25519PublicKey,
    )

    other = X25519PublicKey.from_public_bytes(public)
    return derived(X25519PrivateKey.from_private_bytes(private).exchange(other), *about)


def sealed(key: bytes, text: bytes) -> bytes:
    """Return an encrypted and authenticated text; a key seals one text."""
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

    return ChaCha20Poly1305(key).encrypt(bytes(12), text, None)


def opened(key: bytes, text: bytes) -> bytes:
    """Return the text that was sealed with a key.

    Raises:
        ValueError: it was not, or was changed.
    """
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

    try:
        return ChaCha20Poly1305(key).decrypt(bytes(12), text, None)
    except InvalidTag:
        raise ValueError("a sealed text was not made for this round and receiver") from None


def _text(context: str, peer: Peer) -> bytes:
    return f"{DOMAIN}|{context}|{peer.client}|{peer.key.hex()}".encode()


@lru_cache(maxsize=1 << 14)
def _signed(line: bytes, signature: bytes, text: bytes) -> bool:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ec import ECDSA
    from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
    from cryptography.hazmat.primitives.hashes import SHA256

    r, s = (int.from_bytes(part, "big") for part in (signature[:_HALF], signature[_HALF:]))
    try:
        _public(line).verify(encode_dss_signature(r, s), text, ECDSA(SHA256()))
    except InvalidSignature:
        return False
    return True


@lru_cache(maxsize=4096)
def _public(line: bytes):  # type: ignore[no-untyped-def]
    """Return the P-384 key of a line in OpenSSH format; ValueError if it is none."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ec import SECP384R1, EllipticCurvePublicKey
    from cryptography.hazmat.primitives.serialization import load_ssh_public_key

    try:
        key = load_ssh_public_key(line)
    except (ValueError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, EllipticCurvePublicKey) or not isinstance(key.curve, SECP384R1):
        raise ValueError("a line is not a P-384 public key in OpenSSH format")
    return key
