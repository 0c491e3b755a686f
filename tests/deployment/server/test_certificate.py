"""Checks of a server's keys before it starts."""

from __future__ import annotations

import re
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from deployment.hosting.keys import make_authority, make_server
from deployment.server.certificate import check_keys
from fedpeft.errors import UserError


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("keys")
    make_authority(folder)
    make_server(folder, ["fl.example.org", "10.0.0.5"], folder)
    return folder


@pytest.fixture
def keys(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "keys"))


def sign(keys: Path, hosts: list[str], start: datetime, end: datetime) -> None:
    """Replace the certificate with another one that the authority signs for the server's key."""
    ca_key = serialization.load_pem_private_key((keys / "ca.key").read_bytes(), None)
    assert isinstance(ca_key, ec.EllipticCurvePrivateKey)
    ca = x509.load_pem_x509_certificate((keys / "ca.crt").read_bytes())
    key = serialization.load_pem_private_key((keys / "server.key").read_bytes(), None)
    builder = x509.CertificateBuilder(
        ca.subject, ca.subject, key.public_key(), x509.random_serial_number(), start, end
    )
    if hosts:
        names = x509.SubjectAlternativeName([x509.DNSName(host) for host in hosts])
        builder = builder.add_extension(names, critical=False)
    signed = builder.sign(ca_key, hashes.SHA384())
    (keys / "server.crt").write_bytes(signed.public_bytes(serialization.Encoding.PEM))


def test_valid_keys_give_hosts_and_expiry(keys: Path) -> None:
    certificate = check_keys(keys)
    assert certificate.hosts == ("fl.example.org", "10.0.0.5")
    assert 820 <= certificate.days <= 825


@pytest.mark.parametrize("name", ["ca.crt", "server.crt", "server.key"])
def test_missing_and_damaged_files_are_named(keys: Path, name: str) -> None:
    (keys / name).write_text("nothing")
    with pytest.raises(UserError, match=f"{re.escape(str(keys / name))}' is not a .*keys server"):
        check_keys(keys)
    (keys / name).unlink()
    with pytest.raises(UserError, match=f"{re.escape(str(keys / name))}' cannot be read .*No such"):
        check_keys(keys)


def test_keys_that_do_not_belong_together_are_refused(keys: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    make_authority(other)
    make_server(other, ["fl.example.org"], other)
    shutil.copy(other / "server.key", keys / "server.key")
    with pytest.raises(UserError, match=r"server.key' is not the key of its certificate"):
        check_keys(keys)
    shutil.copy(other / "server.crt", keys / "server.crt")
    with pytest.raises(UserError, match=r"server.crt' was not signed by '.*ca.crt'"):
        check_keys(keys)


def test_a_key_that_others_may_read_is_refused(keys: Path) -> None:
    (keys / "server.key").chmod(0o640)
    with pytest.raises(UserError, match="may be read by other users; chmod 600 it"):
        check_keys(keys)


@pytest.mark.parametrize("days", [(-10, -1), (1, 10)])
def test_expired_or_future_certificate_is_refused(keys: Path, days: tuple[int, int]) -> None:
    start, end = (datetime.now(UTC) + timedelta(days=offset) for offset in days)
    sign(keys, ["localhost"], start, end)
    with pytest.raises(UserError, match=f"is valid from {start:%Y-%m-%d} to {end:%Y-%m-%d}"):
        check_keys(keys)


@pytest.mark.parametrize(
    ("hosts", "missing"),
    [(["localhost"], "127.0.0.1"), ([], "127.0.0.1 and localhost")],
)
def test_certificate_must_be_valid_for_loopback(keys: Path, hosts: list[str], missing: str) -> None:
    now = datetime.now(UTC)
    sign(keys, hosts, now - timedelta(days=1), now + timedelta(days=9))
    with pytest.raises(UserError, match=f"is not valid for {missing};"):
        check_keys(keys)
