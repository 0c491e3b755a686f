"""What `fedpeft node up` refuses before it starts, and how it says so."""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from clients.checks import check_all, check_ca, check_data, check_key, check_superlink
from clients.state import NodeSettings
from fedpeft.errors import UserError
from fedpeft.keys import make_authority, make_node, make_server
from simulations.processes import descendants

NONE = NodeSettings("", 0)


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Authorities `ca` and `other`, a server certificate of the first, and a node's key."""
    folder = tmp_path_factory.mktemp("keys")
    for name in ("ca", "other"):
        make_authority(folder / name)
    make_server(folder / "server", [], folder / "ca")
    make_node(folder, "site")
    return folder


@contextmanager
def answering(keys: Path, host: str = "127.0.0.1", tls: bool = True) -> Iterator[str]:
    """Answer once on a port, with the server's certificate or without TLS at all."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(keys / "server" / "server.crt", keys / "server" / "server.key")

    def answer() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.settimeout(10)
            if not tls:
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                return
            with contextlib.suppress(OSError):  # the other side may not like us
                context.wrap_socket(connection, server_side=True).close()

    with socket.create_server((host, 0)) as listener:
        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        yield f"{host}:{listener.getsockname()[1]}"
        thread.join(timeout=10)


def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@pytest.mark.slow
def test_a_node_with_all_it_needs_passes(keys: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text("text,label\ngood,1\n")
    settings = NodeSettings(str(tmp_path / "mine.csv"), allow=("tiny",))
    with answering(keys) as superlink:
        assert check_all(superlink, keys / "site", keys / "ca" / "ca.crt", settings) == []
    assert not descendants(os.getpid())


@pytest.mark.slow
def test_all_mistakes_are_told_at_once(keys: Path, tmp_path: Path) -> None:
    settings = NodeSettings(str(tmp_path / "no.csv"), allow=("/no/such/backbone",))
    with pytest.raises(UserError) as refused:
        check_all("nowhere", keys / "none", keys / "site.pub", settings)
    lines = str(refused.value).split("\nerror: ")
    assert [line.partition(":")[0] for line in lines] == [
        f"--key {keys / 'none'}",
        f"--ca {keys / 'site.pub'}",
        "--superlink nowhere",
        f"--data {tmp_path / 'no.csv'}",
        "backbone '/no/such/backbone'",
    ]


def written(
    path: Path,
    key: ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey,
    form: PrivateFormat = PrivateFormat.OpenSSH,
) -> Path:
    path.touch(0o600)
    path.write_bytes(key.private_bytes(Encoding.PEM, form, NoEncryption()))
    return path


def test_a_key_is_a_private_one_of_the_right_kind_for_us_alone(keys: Path, tmp_path: Path) -> None:
    check_key(keys / "site")
    curve, expected = ec.generate_private_key(ec.SECP384R1()), "expected a private elliptic-curve"
    other = written(tmp_path / "other", ed25519.Ed25519PrivateKey.generate())
    form = written(tmp_path / "form", curve, PrivateFormat.PKCS8)
    for wrong in (form, other):
        with pytest.raises(UserError, match=expected):
            check_key(wrong)
    shared = written(tmp_path / "shared", curve)
    shared.chmod(0o640)
    with pytest.raises(UserError, match=r"mode 0640, others may read it: chmod 600"):
        check_key(shared)
    with pytest.raises(UserError, match="cannot be read"):
        check_key(tmp_path)


def test_a_public_key_is_told_from_a_private_one(keys: Path, tmp_path: Path) -> None:
    """Whatever others may do with its file: the advice to chmod it would mislead."""
    said = rf"--key {keys}/site.pub: this is the public key, .* the private one, {keys}/site$"
    with pytest.raises(UserError, match=said):
        check_key(keys / "site.pub")
    pem = tmp_path / "key.pem"
    public = ec.generate_private_key(ec.SECP384R1()).public_key()
    pem.write_bytes(public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    with pytest.raises(UserError, match="this is the public key"):
        check_key(pem)


def test_a_ca_is_a_certificate(keys: Path) -> None:
    check_ca(keys / "ca" / "ca.crt")
    for wrong in (keys / "ca" / "ca.key", keys / "none", keys):
        with pytest.raises(UserError, match=f"--ca {wrong}"):
            check_ca(wrong)


def test_the_server_must_be_vouched_for_and_speak_tls(keys: Path) -> None:
    ca = keys / "ca" / "ca.crt"
    with answering(keys) as superlink:
        assert check_superlink(superlink, ca) == []
    with answering(keys) as superlink, pytest.raises(UserError, match="its certificate is refused"):
        check_superlink(superlink, keys / "other" / "ca.crt")
    with answering(keys, "127.0.0.2") as superlink, pytest.raises(UserError, match="mismatch"):
        check_superlink(superlink, ca)
    with answering(keys, tls=False) as superlink, pytest.raises(UserError, match="not speak TLS"):
        check_superlink(superlink, ca)


def test_a_server_that_is_not_up_yet_is_only_a_warning(keys: Path) -> None:
    for superlink in (f"127.0.0.1:{closed_port()}", "no-such-host.invalid:443"):
        (warning,) = check_superlink(superlink, keys / "ca" / "ca.crt")
        assert warning.startswith(f"--superlink {superlink}: nobody answers (")


@pytest.mark.parametrize("wrong", ["", "host", "host:", ":1", "host:port", "host:0", "host:65536"])
def test_an_address_is_a_host_and_a_port(keys: Path, wrong: str) -> None:
    with pytest.raises(UserError, match="expected HOST:PORT"):
        check_superlink(wrong, keys / "ca" / "ca.crt")


def test_data_must_be_there_and_be_a_table(tmp_path: Path) -> None:
    table, task = tmp_path / "mine.csv", tmp_path / "glue" / "SST-2"
    table.write_text("text,label\na secret text,1\n")
    task.mkdir(parents=True)
    for data in (tmp_path, task):
        with pytest.raises(UserError, match="no file 'train' in this folder"):
            check_data(NodeSettings(str(data)))
    (task / "train.tsv").write_text("sentence\tlabel\ngood\t1\n")
    for data in (table, task, task.parent):
        check_data(NodeSettings(str(data)))
    check_data(NONE)  # part 0 of a task that makes its own data
    for missing in (tmp_path / "no", tmp_path / "no.csv"):
        with pytest.raises(UserError, match=rf"--data {missing}: does not exist; expected"):
            check_data(NodeSettings(str(missing)))
    with pytest.raises(UserError, match="--data is missing"):
        check_data(NodeSettings(""))
    table.write_text("text,label\na secret text,1,2\n")
    with pytest.raises(UserError) as refused:
        check_data(NodeSettings(str(table)))
    assert "secret" not in str(refused.value)
