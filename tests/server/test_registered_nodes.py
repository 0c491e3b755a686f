"""Registration of nodes with real keys and a real SuperLink, and its error messages."""

from __future__ import annotations

import base64
import hashlib
import json
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from servers import server_folder, superlink

from deployment.hosting.keys import make_node
from deployment.operator.connection import Connection
from deployment.operator.flwr_cli import NoSuperLink, run_flwr
from deployment.server.folder import ServerFolder
from deployment.server.health import superlink_answers
from deployment.server.registration import add_node, fingerprint, remove_node
from fedpeft.errors import UserError
from server.members.registry import registered_nodes


@pytest.fixture
def key(tmp_path: Path) -> Path:
    """The file of a new public key."""
    return make_node(tmp_path, "site")[1]


def test_the_fingerprint_is_the_one_of_openssh(key: Path) -> None:
    blob = base64.b64decode(key.read_text().split()[1])
    assert fingerprint(key) == hashlib.sha256(blob).hexdigest()


def test_a_comment_does_not_make_another_key(key: Path, tmp_path: Path) -> None:
    again = tmp_path / "again.pub"
    again.write_text(" ".join([*key.read_text().split()[:2], "somebody else"]))
    assert fingerprint(again) == fingerprint(key)


def test_a_private_key_is_not_taken(key: Path) -> None:
    with pytest.raises(
        UserError, match=r"a private key, which must stay at its node; .*/site.pub'$"
    ):
        fingerprint(key.with_suffix(""))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is not a public key"),
        (b"hello", "is not a public key"),
        (b"\xff\x00" * 100, "is not a public key"),
        (b"ecdsa-sha2-nistp384 AAAA x", "is not a public key"),
        # An Ed25519 key of ssh-keygen: well made, but Flower takes NIST curves only.
        (
            b"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ12EadDlHfHnqQ1AJSuCgZUMTLL9+2ZZzHpZ6iWvjM1 x",
            "is not an elliptic-curve key",
        ),
    ],
)
def test_an_invalid_public_key_is_refused_in_one_line(
    tmp_path: Path, content: bytes, said: str
) -> None:
    file = tmp_path / "wrong.pub"
    file.write_bytes(content)
    with pytest.raises(UserError, match=rf"wrong.pub' {said}; expected .*fedpeft keys node"):
        fingerprint(file)


def test_a_certificate_is_not_accepted_as_a_key(tmp_path: Path) -> None:
    state = server_folder(tmp_path)
    with pytest.raises(UserError, match="is not a public key"):
        fingerprint(state.ca)


def test_a_missing_key_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"none.pub' cannot be read \(No such file"):
        fingerprint(tmp_path / "none.pub")


def test_a_new_server_has_no_nodes_and_a_damaged_registry_is_an_error(tmp_path: Path) -> None:
    assert registered_nodes(tmp_path) == []
    for content in ("{", "[{}]", '[{"name": 1}]', "7", '"ab"'):
        (tmp_path / "nodes.json").write_text(content)
        with pytest.raises(UserError, match=r"nodes\.json' is damaged"):
            registered_nodes(tmp_path)


def test_without_a_server_nothing_is_registered(key: Path, tmp_path: Path) -> None:
    state = server_folder(tmp_path)
    for name, said in (
        ("a b", "is not a valid name of a node"),
        ("a", "no SuperLink with a certificate of"),
    ):
        with pytest.raises(UserError, match=said):
            add_node(state.path, key, name)
    assert registered_nodes(state.path) == []
    with pytest.raises(UserError, match=r"server.json'; 'fedpeft server up"):
        add_node(tmp_path, key)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerFolder]:
    """A running SuperLink with TLS and node authentication, for all tests of this file."""
    state = server_folder(tmp_path_factory.mktemp("server"))
    with superlink(state):
        yield state


def flower_knows(state: ServerFolder) -> dict[int, str]:
    answer = run_flwr(["supernode", "list"], state.connection())
    return {int(node["node-id"]): node["status"] for node in answer["nodes"]}


@pytest.mark.long
def test_nodes_are_stored_in_order_of_registration(server: ServerFolder, tmp_path: Path) -> None:
    before = len(registered_nodes(server.path))
    keys = [make_node(tmp_path, name)[1] for name in ("zebra", "ant")]
    added = [add_node(server.path, key) for key in keys]
    assert registered_nodes(server.path)[before:] == added
    assert [node.name for node in added] == ["zebra", "ant"]
    assert [node.public_key_sha256 for node in added] == [fingerprint(key) for key in keys]
    known = flower_knows(server)
    assert [known[node.node_id] for node in added] == ["registered", "registered"]
    file = server.path / "nodes.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    entry = json.loads(file.read_text())[before]
    assert {*entry} == {"name", "node_id", "public_key_sha256", "added", "public_key"}
    assert entry["public_key"] == " ".join(keys[0].read_text().split()[:2])


@pytest.mark.long
def test_a_key_and_a_name_are_taken_once(server: ServerFolder, tmp_path: Path) -> None:
    (_, key), (_, other) = (make_node(tmp_path, name) for name in ("first", "second"))
    add_node(server.path, key)
    kept = registered_nodes(server.path)
    with pytest.raises(UserError, match=r"first.pub' is registered already, as node 'first'"):
        add_node(server.path, key, "another")
    with pytest.raises(UserError, match=r"a node 'first' is registered already; choose another"):
        add_node(server.path, other, "first")
    assert registered_nodes(server.path) == kept


@pytest.mark.long
def test_a_removed_node_cannot_connect_again(server: ServerFolder, tmp_path: Path) -> None:
    _, key = make_node(tmp_path, "leaving")
    node = add_node(server.path, key)
    with pytest.raises(UserError, match=r"no node 'leavin' is registered; did you mean 'leaving'"):
        remove_node(server.path, "leavin")
    assert remove_node(server.path, "leaving") == "leaving"
    assert node not in registered_nodes(server.path)
    assert flower_knows(server)[node.node_id] == "unregistered"
    with pytest.raises(UserError, match=r"SuperLink knows the key .* already.*keys node leaving"):
        add_node(server.path, key)


@pytest.mark.long
def test_a_node_is_removed_by_its_id_or_its_key_as_well(
    server: ServerFolder, tmp_path: Path
) -> None:
    by_id, by_key = (
        add_node(server.path, make_node(tmp_path, name)[1], f"called-{name}") for name in ("a", "b")
    )
    assert remove_node(server.path, str(by_id.node_id)) == "called-a"
    assert remove_node(server.path, str(tmp_path / "b.pub")) == "called-b"
    assert not {by_id, by_key} & {*registered_nodes(server.path)}
    # One that only the SuperLink knows, as when add-node was cut short.
    answer = run_flwr(
        ["supernode", "register", str(make_node(tmp_path, "half")[1])], server.connection()
    )
    number = int(answer["node-id"])
    assert remove_node(server.path, str(number)) == str(number)
    known = flower_knows(server)
    assert {known[each] for each in (by_id.node_id, by_key.node_id, number)} == {"unregistered"}
    with pytest.raises(UserError, match="no node has the id 7; see 'fedpeft server status'"):
        remove_node(server.path, "7")
    with pytest.raises(UserError, match=r"gone.pub' cannot be read"):
        remove_node(server.path, str(tmp_path / "gone.pub"))
    with pytest.raises(UserError, match=r"no node '.*half.pub' is registered"):
        remove_node(server.path, str(tmp_path / "half.pub"))


@pytest.mark.long
def test_a_node_unknown_to_flower_can_be_removed(server: ServerFolder, tmp_path: Path) -> None:
    node = add_node(server.path, make_node(tmp_path, "lost")[1])
    run_flwr(["supernode", "unregister", str(node.node_id)], server.connection())
    remove_node(server.path, "lost")
    assert node not in registered_nodes(server.path)


@pytest.mark.long
def test_refusals_of_flower_are_reported_in_one_line(server: ServerFolder) -> None:
    with pytest.raises(UserError) as error:
        run_flwr(["supernode", "unregister", "7"], server.connection())
    assert str(error.value) == (
        "Flower refused 'flwr supernode unregister': [code: 24] Node ID not found for account."
    )
    with pytest.raises(UserError, match=r"Flower refused 'flwr supernode nonsense': .*No such com"):
        run_flwr(["supernode", "nonsense"], server.connection())


@pytest.mark.long
def test_a_server_of_another_authority_is_not_trusted(server: ServerFolder, tmp_path: Path) -> None:
    own, other = server.connection(), server_folder(tmp_path).ca
    assert superlink_answers(own)
    wrong = Connection(own.control, other, own.operations, own.token)
    assert not superlink_answers(wrong)
    with pytest.raises(NoSuperLink, match=r"ca.crt' answers at 127.0.0.1:\d+; is the server up"):
        run_flwr(["supernode", "list"], wrong)


@pytest.mark.long
def test_concurrent_registrations_lose_no_node(server: ServerFolder, tmp_path: Path) -> None:
    code = (
        "import sys, pathlib; from deployment.server.registration import add_node; "
        "add_node(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]))"
    )
    keys = [make_node(tmp_path, f"both{number}")[1] for number in range(2)]
    commands = [
        subprocess.Popen([sys.executable, "-c", code, str(server.path), str(key)]) for key in keys
    ]
    assert [command.wait(timeout=60) for command in commands] == [0, 0]
    assert {"both0", "both1"} <= {node.name for node in registered_nodes(server.path)}
