"""Keys and certificates, tested with TLS, OpenSSL and Flower."""

from __future__ import annotations

import contextlib
import socket
import ssl
import stat
import subprocess
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.cli.supernode.register import try_load_public_key
from flwr.supercore.primitives.asymmetric import bytes_to_public_key

from deployment.hosting import keys
from deployment.hosting.keys import make_authority, make_node, make_server
from fedpeft.errors import UserError

HOSTS = ["fed.example.org", "192.0.2.7", "2001:db8::7"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An authority and a server's keys in one folder."""
    folder = tmp_path_factory.mktemp("made") / "keys"
    make_authority(folder)
    make_server(folder, HOSTS, folder)
    return folder


def certificate(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


def handshake(server: Path, trusted: Path, host: str) -> str:
    """Connect over loopback with server name ``host``; return the protocol's version."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(server / "server.crt", server / "server.key")
    client = ssl.create_default_context(cafile=str(trusted))
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.settimeout(10)
                with contextlib.suppress(OSError):  # the client turned away
                    context.wrap_socket(connection, server_side=True).close()

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            with (
                socket.create_connection(listening.getsockname(), timeout=240) as plain,
                client.wrap_socket(plain, server_hostname=host) as connection,
            ):
                return str(connection.version())
        finally:
            thread.join()


@pytest.mark.parametrize("host", [*HOSTS, "localhost", "127.0.0.1", "::1"])
def test_the_servers_certificate_is_valid_for_all_its_names(folder: Path, host: str) -> None:
    assert handshake(folder, folder / "ca.crt", host) == "TLSv1.3"


@pytest.mark.parametrize("host", ["example.org", "x.fed.example.org", "192.0.2.8"])
def test_the_servers_certificate_is_invalid_for_other_hosts(folder: Path, host: str) -> None:
    with pytest.raises(ssl.SSLCertVerificationError, match=r"not valid for|mismatch"):
        handshake(folder, folder / "ca.crt", host)


def test_a_certificate_of_another_authority_is_refused(folder: Path, tmp_path: Path) -> None:
    """Also of an authority with the same name: all of fedpeft's have it."""
    _, other = make_authority(tmp_path)
    with pytest.raises(ssl.SSLCertVerificationError, match="verify failed"):
        handshake(folder, other, "localhost")


def test_openssl_verifies_the_chain_strictly_and_for_servers_only(folder: Path) -> None:
    def verify(purpose: str) -> str:
        command = ["openssl", "verify", "-x509_strict", "-purpose", purpose, "-CAfile", "ca.crt"]
        done = subprocess.run([*command, "server.crt"], cwd=folder, capture_output=True, text=True)
        return done.stdout + done.stderr

    assert verify("sslserver") == "server.crt: OK\n"
    assert "unsuitable certificate purpose" in verify("sslclient")


def test_a_servers_certificate_cannot_sign_another(folder: Path) -> None:
    server, authority = certificate(folder / "server.crt"), certificate(folder / "ca.crt")
    limits = [
        signed.extensions.get_extension_for_class(x509.BasicConstraints)
        for signed in (server, authority)
    ]
    assert [(limit.critical, limit.value.ca, limit.value.path_length) for limit in limits] == [
        (True, False, None),
        (True, True, 0),
    ]
    usage = server.extensions.get_extension_for_class(x509.KeyUsage).value
    assert usage.digital_signature and not usage.key_cert_sign


def test_lifetimes_of_certificates(folder: Path) -> None:
    for name, days in (("server.crt", 825), ("ca.crt", 3650)):
        made = certificate(folder / name)
        assert made.not_valid_after_utc - made.not_valid_before_utc == timedelta(days=days)
        assert made.not_valid_before_utc <= datetime.now(UTC) - timedelta(hours=23)


def test_a_servers_certificate_ends_no_later_than_its_authority(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keys, "CA_DAYS", 30)
    make_authority(tmp_path)
    make_server(tmp_path, ["a"], tmp_path)
    ends = {certificate(tmp_path / name).not_valid_after_utc for name in ("ca.crt", "server.crt")}
    assert len(ends) == 1


def test_an_expired_authority_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "CA_DAYS", 1)
    make_authority(tmp_path)
    with pytest.raises(UserError, match=r"ca\.crt' expired on .*keys init"):
        make_server(tmp_path, ["a"], tmp_path)


def test_only_private_files_are_private(folder: Path, tmp_path: Path) -> None:
    make_node(tmp_path / "node", "site-a")
    modes = {
        path.name: stat.S_IMODE(path.stat().st_mode)
        for path in [*folder.iterdir(), *(tmp_path / "node").iterdir()]
    }
    private = {"ca.key", "server.key", "site-a"}
    assert modes == {
        **dict.fromkeys(private, 0o600),
        **dict.fromkeys(("ca.crt", "server.crt", "site-a.pub"), 0o644),
    }
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_flower_reads_a_nodes_keys(tmp_path: Path) -> None:
    private, public = make_node(tmp_path, "site-a")
    key = load_ssh_private_key(private.read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    assert isinstance(key.curve, ec.SECP384R1)
    assert bytes_to_public_key(try_load_public_key(public)) == key.public_key()
    assert public.read_text().split()[::2] == ["ecdsa-sha2-nistp384", "site-a"]


def test_two_nodes_have_two_keys(tmp_path: Path) -> None:
    keys = [make_node(tmp_path, name)[1].read_text().split()[1] for name in ("a", "b")]
    assert keys[0] != keys[1]


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "../x", "a/b", "-x", ".x", "a b", "ż", "x" * 33, "a\n", "a.pub", "ca.key"],
)
def test_invalid_names_of_nodes_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UserError, match="is not a valid name of a node"):
        make_node(tmp_path, name)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "host", ["", "http://a", "a:80", "a b", "a..b", "-a", "*.example.org", "ż.pl", "a" * 64, "a\n"]
)
def test_invalid_hosts_are_refused(folder: Path, host: str) -> None:
    with pytest.raises(UserError, match=r"is not a host name or IP address.*without protocol"):
        make_server(folder, ["good", host], folder, force=True)


def test_a_servers_folder_gets_the_authoritys_certificate_but_not_its_key(
    folder: Path, tmp_path: Path
) -> None:
    paths = make_server(tmp_path, ["fed.example.org"], folder)
    assert [path.name for path in paths] == ["server.key", "server.crt", "ca.crt"]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "ca.crt",
        "server.crt",
        "server.key",
    ]
    assert (tmp_path / "ca.crt").read_bytes() == (folder / "ca.crt").read_bytes()
    assert handshake(tmp_path, folder / "ca.crt", "fed.example.org")


def test_existing_keys_are_kept_without_force(folder: Path, tmp_path: Path) -> None:
    make_authority(tmp_path)
    make_server(tmp_path, ["a"], tmp_path)
    make_node(tmp_path, "n")
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(
        UserError, match=r"ca\.key' exists already; choose .* every node the new ca.crt\)$"
    ):
        make_authority(tmp_path)
    with pytest.raises(UserError, match=r"server\.key' exists already"):
        make_server(tmp_path, ["a"], tmp_path)
    with pytest.raises(UserError, match=r"n' exists already"):
        make_node(tmp_path, "n")
    for name in ("ca.key", "server.key", "n"):  # the second file of a pair is enough
        (tmp_path / name).unlink()
        before.pop(tmp_path / name)
    with pytest.raises(UserError, match=r"ca\.crt' exists already"):
        make_authority(tmp_path)
    with pytest.raises(UserError, match=r"server\.crt' exists already"):
        make_server(tmp_path, ["a"], folder)
    with pytest.raises(UserError, match=r"n\.pub' exists already"):
        make_node(tmp_path, "n")
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_another_authoritys_certificate_is_not_overwritten(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "ca.crt").write_text("another's")
    with pytest.raises(UserError, match=r"ca\.crt' exists already"):
        make_server(tmp_path, ["a"], folder)
    assert [path.name for path in tmp_path.iterdir()] == ["ca.crt"]


def test_a_missing_damaged_or_mixed_authority_is_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no '.*ca\.key'.*--ca-dir.*keys init"):
        make_server(tmp_path, ["a"], tmp_path / "none")
    make_authority(tmp_path)
    (tmp_path / "ca.crt").write_bytes((folder / "ca.crt").read_bytes())
    with pytest.raises(UserError, match=r"is not the key of '.*ca\.crt'"):
        make_server(tmp_path, ["a"], tmp_path)
    (tmp_path / "ca.key").write_text("no key")
    with pytest.raises(UserError, match="is damaged"):
        make_server(tmp_path, ["a"], tmp_path)
    assert not (tmp_path / "server.key").exists()


def test_keys_in_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written"):
        make_authority(tmp_path / "file" / "keys")
