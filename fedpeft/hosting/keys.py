"""Keys of a deployment: a private authority, the server's certificate, and nodes' key pairs.

Nodes trust a server whose certificate the authority signed (TLS); the server accepts a node whose
public key is registered (Flower's node authentication, EC keys in OpenSSH format). All keys are on
curve P-384. Private keys have no passphrase; the modes of their files protect them.
"""

from __future__ import annotations

import base64
import hashlib
import ipaddress
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedpeft.errors import UserError
from fedpeft.files import PRIVATE, PUBLIC, check_folder, write_together

CA_CERTIFICATE, CA_KEY = "ca.crt", "ca.key"
SERVER_CERTIFICATE, SERVER_KEY = "server.crt", "server.key"
CA_DAYS, SERVER_DAYS = 3650, 825
_LOOPBACK = ("localhost", "127.0.0.1", "::1")  # the server's processes use TLS on loopback
_SKEW = timedelta(days=1)  # a node's clock may be slow
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,31}")
_LABEL = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?")
_NO_USE = dict.fromkeys(
    (
        "digital_signature",
        "content_commitment",
        "key_encipherment",
        "data_encipherment",
        "key_agreement",
        "key_cert_sign",
        "crl_sign",
        "encipher_only",
        "decipher_only",
    ),
    False,
)


def make_authority(folder: Path, force: bool = False) -> tuple[Path, Path]:
    """Make a certificate authority, valid for 10 years; return (its key, its certificate).

    Raises:
        UserError: one of the two files exists, and ``force`` is False.
    """
    key = ec.generate_private_key(ec.SECP384R1())
    start = datetime.now(UTC) - _SKEW
    name = _common_name("fedpeft authority")
    certificate = (
        _certificate(name, key, name, start, start + timedelta(days=CA_DAYS))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(
            x509.KeyUsage(**{**_NO_USE, "key_cert_sign": True, "crl_sign": True}), critical=True
        )
        .add_extension(_identifier(key), critical=False)
        .sign(key, hashes.SHA384())
    )
    paths = folder / CA_KEY, folder / CA_CERTIFICATE
    files = {paths[0]: (_pem(key), PRIVATE), paths[1]: (_pem(certificate), PUBLIC)}
    _write(files, force, "the server then needs a new certificate, and every node the new ca.crt")
    return paths


def make_server(
    folder: Path, hosts: Sequence[str], authority: Path, force: bool = False
) -> tuple[Path, Path, Path]:
    """Make a server's key and certificate; return (key, certificate, the authority's certificate).

    The certificate is for ``hosts``, the names and IP addresses by which nodes reach the server,
    and for loopback; it is valid for 825 days, but not longer than its authority. ``authority`` is
    the folder of :func:`make_authority`; its certificate is copied into ``folder``, its key is not.

    Raises:
        UserError: a host is neither a name nor an address; the authority is missing, damaged or
            expired; one of the files exists, and ``force`` is False.
    """
    names = [_general_name(host) for host in dict.fromkeys([*hosts, *_LOOPBACK])]
    ca_key, ca = _read_authority(authority)
    key = ec.generate_private_key(ec.SECP384R1())
    start = max(datetime.now(UTC) - _SKEW, ca.not_valid_before_utc)
    end = min(start + timedelta(days=SERVER_DAYS), ca.not_valid_after_utc)
    certificate = (
        _certificate(_common_name("fedpeft server"), key, ca.subject, start, end)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.KeyUsage(**{**_NO_USE, "digital_signature": True}), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(_identifier(key), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False
        )
        .sign(ca_key, hashes.SHA384())
    )
    paths = folder / SERVER_KEY, folder / SERVER_CERTIFICATE, folder / CA_CERTIFICATE
    files = {paths[0]: (_pem(key), PRIVATE), paths[1]: (_pem(certificate), PUBLIC)}
    if not (paths[2].is_file() and paths[2].read_bytes() == _pem(ca)):
        files[paths[2]] = (_pem(ca), PUBLIC)
    _write(files, force, "then start the server again")
    return paths


def make_node(folder: Path, name: str, force: bool = False) -> tuple[Path, Path]:
    """Make a node's key pair ``name`` and ``name.pub``; return (private key, public key).

    Raises:
        UserError: the name is invalid; one of the files exists, and ``force`` is False.
    """
    check_name(name)
    key = ec.generate_private_key(ec.SECP384R1())
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.OpenSSH,
        serialization.NoEncryption(),
    )
    public = key.public_key().public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    )
    paths = folder / name, folder / f"{name}.pub"
    files = {paths[0]: (private, PRIVATE), paths[1]: (public + f" {name}\n".encode(), PUBLIC)}
    _write(files, force, "the server then has to remove the node and add the new .pub")
    return paths


def fingerprint(public: str) -> str:
    """Return the fingerprint of a public key in OpenSSH format, as ``ssh-keygen -l`` shows it."""
    digest = hashlib.sha256(base64.b64decode(public.split()[1])).digest()
    return f"SHA256:{base64.b64encode(digest).decode().rstrip('=')}"


def certificate_fingerprint(file: Path) -> str:
    """Return a certificate's SHA-256, as ``openssl x509 -fingerprint -sha256`` shows it.

    Raises:
        UserError: the file cannot be read, or holds no certificate.
    """
    try:
        certificate = x509.load_pem_x509_certificate(file.read_bytes())
    except (OSError, ValueError):
        raise UserError(f"'{file}' cannot be read as a certificate (PEM)") from None
    return certificate.fingerprint(hashes.SHA256()).hex(":").upper()


def check_name(name: str) -> None:
    """Check the name of a node, which is also the name of its key file.

    Raises:
        UserError: the name is not 1 to 32 letters, digits, dots, hyphens and underscores, does not
            begin with a letter or digit, or ends like another key file.
    """
    if not _NAME.fullmatch(name):
        raise UserError(
            f"{name!r} is not a valid name of a node: expected at most 32 letters, digits, '.', "
            "'_' and '-', beginning with a letter or digit"
        )
    if name.endswith((".pub", ".key", ".crt")):
        raise UserError(f"'{name}' is not a valid name of a node: leave off '{name[-4:]}'")


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host.strip("[]")))
    except ValueError:
        pass
    if len(host) > 253 or not all(_LABEL.fullmatch(label) for label in host.split(".")):
        raise UserError(
            f"{host!r} is not a host name or IP address: give it without protocol and port, for "
            "example fed.example.org or 10.0.0.5"
        )
    return x509.DNSName(host)


def _read_authority(folder: Path) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    """Return the authority's key and certificate; check that they match and are valid now."""
    for path in (folder / CA_KEY, folder / CA_CERTIFICATE):
        if not path.is_file():
            raise UserError(
                f"no '{path}': name the authority's folder with --ca-dir, or make an authority "
                f"with fedpeft keys init --out {folder}"
            )
    try:
        key = serialization.load_pem_private_key((folder / CA_KEY).read_bytes(), password=None)
        certificate = x509.load_pem_x509_certificate((folder / CA_CERTIFICATE).read_bytes())
    except OSError as error:
        raise UserError(f"'{error.filename}' cannot be read ({error.strerror})") from None
    except (ValueError, TypeError):  # damaged, or with a passphrase
        raise UserError(
            f"the authority in '{folder}' is damaged: expected a key without a passphrase in "
            f"{CA_KEY} and a certificate in {CA_CERTIFICATE}"
        ) from None
    if (
        not isinstance(key, ec.EllipticCurvePrivateKey)
        or key.public_key() != certificate.public_key()
    ):
        raise UserError(f"'{folder / CA_KEY}' is not the key of '{folder / CA_CERTIFICATE}'")
    if certificate.not_valid_after_utc <= datetime.now(UTC):
        raise UserError(
            f"'{folder / CA_CERTIFICATE}' expired on {certificate.not_valid_after_utc:%Y-%m-%d}: "
            "make another authority with fedpeft keys init, and give its ca.crt to all nodes"
        )
    return key, certificate


def _certificate(
    subject: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    issuer: x509.Name,
    start: datetime,
    end: datetime,
) -> x509.CertificateBuilder:
    return x509.CertificateBuilder(
        issuer, subject, key.public_key(), x509.random_serial_number(), start, end
    )


def _common_name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _identifier(key: ec.EllipticCurvePrivateKey) -> x509.SubjectKeyIdentifier:
    return x509.SubjectKeyIdentifier.from_public_key(key.public_key())


def _pem(item: ec.EllipticCurvePrivateKey | x509.Certificate) -> bytes:
    if isinstance(item, x509.Certificate):
        return item.public_bytes(serialization.Encoding.PEM)
    return item.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _write(files: Mapping[Path, tuple[bytes, int]], force: bool, then: str) -> None:
    """Write keys; ``then`` is what the user has to do after replacing existing ones."""
    for path in files:
        check_folder(path.parent)
    try:
        write_together(files, replace=force)
    except FileExistsError as error:
        raise UserError(
            f"'{error}' exists already; choose another --out, or --force to replace it ({then})"
        ) from None
    except OSError as error:
        raise UserError(f"'{error.filename}' cannot be written ({error.strerror})") from None
