"""Checks of a server's keys: its certificate, private key and authority."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization

from deployment.hosting.keys import CA_CERTIFICATE, SERVER_CERTIFICATE, SERVER_KEY
from fedpeft.errors import UserError

_LOOPBACK = "127.0.0.1", "::1", "localhost"
_AGAIN = "make them with 'fedpeft keys server HOST --out KEYS --ca-dir CA'"


@dataclass(frozen=True)
class Certificate:
    """The content of a checked certificate.

    Attributes:
        hosts: names and addresses that it is valid for, except loopback.
        expires: when it or its authority expires, whichever is first.
    """

    hosts: tuple[str, ...]
    expires: datetime

    @property
    def days(self) -> int:
        """Whole days until the certificate expires."""
        return (self.expires - datetime.now(UTC)).days


def check_keys(folder: Path) -> Certificate:
    """Check a server's keys before any process is started with them.

    Args:
        folder: the folder of ca.crt, server.crt and server.key.

    Raises:
        UserError: a file is missing, damaged or expired, the key may be read by other users, the
            files do not belong together, or the certificate is not valid for loopback.
    """
    authority = _certificate(folder / CA_CERTIFICATE)
    certificate = _certificate(folder / SERVER_CERTIFICATE)
    _check_key(folder / SERVER_KEY, certificate)
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        raise UserError(
            f"'{folder / SERVER_CERTIFICATE}' was not signed by '{folder / CA_CERTIFICATE}'; "
            f"{_AGAIN}"
        ) from None
    for name, checked in ((CA_CERTIFICATE, authority), (SERVER_CERTIFICATE, certificate)):
        start, end = checked.not_valid_before_utc, checked.not_valid_after_utc
        if not start <= datetime.now(UTC) < end:
            raise UserError(
                f"'{folder / name}' is valid from {start:%Y-%m-%d} to {end:%Y-%m-%d}; {_AGAIN}"
            )
    hosts = _hosts(certificate)
    missing = [name for name in _LOOPBACK if name != "::1" and name not in hosts]
    if missing:  # the server's processes check it when they connect to each other
        raise UserError(
            f"'{folder / SERVER_CERTIFICATE}' is not valid for {' and '.join(missing)}; {_AGAIN}"
        )
    outside = tuple(host for host in hosts if host not in _LOOPBACK)
    return Certificate(outside, min(authority.not_valid_after_utc, certificate.not_valid_after_utc))


def _certificate(path: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except OSError as error:
        raise UserError(f"'{path}' cannot be read ({error.strerror}); {_AGAIN}") from None
    except ValueError:
        raise UserError(f"'{path}' is not a certificate in PEM format; {_AGAIN}") from None


def _check_key(path: Path, certificate: x509.Certificate) -> None:
    try:
        if path.stat().st_mode & 0o077:
            raise UserError(f"'{path}' may be read by other users; chmod 600 it")
        key = serialization.load_pem_private_key(path.read_bytes(), password=None)
    except OSError as error:
        raise UserError(f"'{path}' cannot be read ({error.strerror}); {_AGAIN}") from None
    except (ValueError, TypeError):  # damaged, or with a passphrase
        raise UserError(f"'{path}' is not a private key without a passphrase; {_AGAIN}") from None
    if key.public_key() != certificate.public_key():
        raise UserError(f"'{path}' is not the key of its certificate; {_AGAIN}")


def _hosts(certificate: x509.Certificate) -> list[str]:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return [
        *names.get_values_for_type(x509.DNSName),
        *map(str, names.get_values_for_type(x509.IPAddress)),
    ]
