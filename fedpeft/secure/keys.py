"""Keys of secure aggregation: who a peer is, and what two peers share.

Each node has one X25519 key for a run and one for each round, and an Ed25519 key for a run. Its
registered key signs those of the run, and the Ed25519 key, which is quicker, those of the rounds.
The text that is signed begins with a name of its own, because Flower signs bare timestamps with the
registered key. Seeds of masks and shares come from HKDF-SHA256, never from a key itself.
"""

from __future__ import annotations

import hashlib
import hmac
from codecs import BOM_UTF8
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate, pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from fedpeft.errors import UserError
from fedpeft.randomness import philox

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

DOMAIN = "fedpeft-secagg-v2"
KEY_BYTES, SEED_BYTES, SIGNATURE_BYTES, NAME_BYTES = 32, 16, 96, 8
ROUND_SIGNATURE_BYTES = 64  # with Ed25519
_HALF = SIGNATURE_BYTES // 2  # of a signature with P-384: r and s


@dataclass(frozen=True)
class Peer:
    """A client as it introduces itself to its peers.

    Attributes:
        client: its number in the run.
        name: the first bytes of the SHA-256 of its registered key.
        key: its public X25519 key for the run.
        verifier: its public Ed25519 key for the run.
        signature: of both keys by the registered key.
    """

    client: int
    name: bytes
    key: bytes
    verifier: bytes
    signature: bytes

    SIZE = 4 + NAME_BYTES + 2 * KEY_BYTES + SIGNATURE_BYTES

    def to_bytes(self) -> bytes:
        """Return SIZE bytes."""
        number = self.client.to_bytes(4, "little")
        return number + self.name + self.key + self.verifier + self.signature

    @classmethod
    def from_bytes(cls, data: bytes) -> Peer:
        """Return the peer of received bytes.

        Raises:
            ValueError: wrong length.
        """
        if len(data) != cls.SIZE:
            raise ValueError(f"a peer has {len(data)} bytes, expected {cls.SIZE}")
        ends = [*accumulate((4, NAME_BYTES, KEY_BYTES, KEY_BYTES, SIGNATURE_BYTES))]
        client, *parts = (data[start:end] for start, end in pairwise([0, *ends]))
        return cls(int.from_bytes(client, "little"), *parts)


@dataclass(frozen=True, eq=False)  # a key of caches
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
            content = path.read_bytes().removeprefix(BOM_UTF8)
            lines = [line.strip() for line in content.splitlines()]
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


def introduced(
    registered: EllipticCurvePrivateKey, context: str, client: int, private: bytes
) -> Peer:
    """Return a client as it introduces itself, with the keys that follow from ``private``."""
    from cryptography.hazmat.primitives.asymmetric.ec import ECDSA
    from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
    from cryptography.hazmat.primitives.hashes import SHA256

    name, verifier = name_of(public_line(registered)), _signer(private).public_key()
    peer = Peer(client, name, public_key(private), verifier.public_bytes_raw(), b"")
    # The same at each handshake (RFC 6979): a server that resumes a round knows its clients again.
    how = ECDSA(SHA256(), deterministic_signing=True)
    numbers = decode_dss_signature(registered.sign(_text(context, peer), how))
    return replace(peer, signature=b"".join(n.to_bytes(_HALF, "big") for n in numbers))


def round_signature(private: bytes, *about: str | int | bytes) -> bytes:
    """Return a signature by the Ed25519 key of a run.

    Args:
        private: X25519 key of the run.
        about: what is signed, the same for the same.
    """
    return _signer(private).sign(_joined("round", *about))


def round_signed(verifier: bytes, signature: bytes, *about: str | int | bytes) -> bool:
    """Return whether an Ed25519 key signed this, see ``round_signature``."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        key = Ed25519PublicKey.from_public_bytes(verifier)
        key.verify(signature, _joined("round", *about))
    except (InvalidSignature, ValueError):
        return False
    return True


def _signer(private: bytes) -> Ed25519PrivateKey:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    return Ed25519PrivateKey.from_private_bytes(derived(private, "signing key"))


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


def private_key(private: bytes) -> X25519PrivateKey:
    """Return an X25519 key of its bytes, for ``agreed``; this takes half as long as an exchange."""
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    return X25519PrivateKey.from_private_bytes(private)


def public_key(private: bytes) -> bytes:
    """Return the public X25519 key of a private one."""
    return private_key(private).public_key().public_bytes_raw()


def derived(secret: bytes, *about: str | int | bytes) -> bytes:
    """Return 32 bytes by HKDF-SHA256 from a secret, for one purpose that ``about`` names.

    RFC 5869 without salt: one block of output takes two HMACs.
    """
    extracted = hmac.digest(bytes(32), secret, "sha256")
    return hmac.digest(extracted, _joined(*about) + b"\x01", "sha256")


def agreed(private: X25519PrivateKey, public: bytes, *about: str | int | bytes) -> bytes:
    """Return what two X25519 keys agree on, see ``derived``.

    Raises:
        ValueError: the public key is not one.
    """
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey

    return derived(private.exchange(X25519PublicKey.from_public_bytes(public)), *about)


def _joined(*about: str | int | bytes) -> bytes:
    text = "|".join(each.hex() if isinstance(each, bytes) else str(each) for each in about)
    return f"{DOMAIN}|{text}".encode()


def _text(context: str, peer: Peer) -> bytes:
    return _joined(context, peer.client, peer.key, peer.verifier)


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
