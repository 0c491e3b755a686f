"""A node whose SuperNode no longer asks for work counts as hanging."""

from __future__ import annotations

import base64
import hashlib
import logging
import os
import subprocess
import sys
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from clients.folder import NodeFolder, NodeSettings
from deployment.hosting.keys import make_node
from deployment.hosting.record import write_record
from deployment.hosting.timing import Timing
from deployment.node.status import describe_node
from deployment.node.up import Node, Useful
from deployment.tunnel import asking
from fedpeft.errors import UserError

COMPUTE = """
import sys, pathlib
from deployment.tunnel import asking
from clients.folder import NodeFolder
with asking.computing(NodeFolder(pathlib.Path(sys.argv[1]))):
    print("computes", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def node(tmp_path: Path) -> Node:
    make_node(tmp_path, "north")
    (tmp_path / "state").mkdir()
    made = Node("host:1", tmp_path / "north", Path("/ca"), tmp_path / "state", NodeSettings("", 0))
    made.folder.prepare()
    return made


def asked(folder: NodeFolder, ago: float) -> None:
    folder.asked.write_text(str(time.monotonic() - ago))


def useful(node: Node) -> bool:
    return Useful(node, Timing(), logging.getLogger("test"))()


def test_silence_counts_from_the_last_question(node: Node) -> None:
    assert asking.silence(node.folder) == 0 and useful(node)  # it has just started
    asked(node.folder, 59)
    assert asking.silence(node.folder) >= 59 and useful(node)
    asked(node.folder, 61)
    assert not useful(node)
    asking.note(node.folder)
    assert asking.silence(node.folder) < 59 and useful(node)


@pytest.mark.parametrize("content", ["", "x", "1e999", "nan", "1e12"])
def test_a_damaged_or_later_time_is_no_silence(node: Node, content: str) -> None:
    """As after a restart of the machine, whose clock begins again."""
    node.folder.asked.write_text(content)
    assert useful(node)


def test_a_node_that_computes_is_not_silent_until_the_process_ends(node: Node) -> None:
    asked(node.folder, 10_000)
    command = [sys.executable, "-c", COMPUTE, str(node.state)]
    one, two = (
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(2)
    )
    for process in (one, two):
        assert process.stdout and process.stdout.readline() == b"computes\n"
    assert useful(node)
    one.kill()
    one.communicate()
    assert useful(node)
    two.kill()
    two.communicate()
    assert not useful(node)


def test_status_says_that_a_node_is_silent(node: Node) -> None:
    assert describe_node(node.state)["silent"] is None
    asked(node.folder, 75)
    assert describe_node(node.state)["silent"] is None  # it is down
    names = ("worker", "tunnel", "supernode", "superexec")
    write_record(
        node.folder.processes,
        datetime.now(UTC),
        dict.fromkeys(names, os.getpid()),
        dict.fromkeys(names, 0),
    )
    described = describe_node(node.state)
    assert 75 <= described["silent"] < 100 and not described["up"]
    replace(Timing(), silent=200.0).write(node.state)
    assert describe_node(node.state)["silent"] is None


def test_a_key_that_the_server_does_not_know_ends_the_node_or_is_waited_for(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    node.folder.unknown_key.touch()
    blob = base64.b64decode(Path(f"{node.key}.pub").read_text().split()[1])
    digest = base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")
    fingerprint = f"SHA256:{digest}"  # as `ssh-keygen -l` shows it
    with pytest.raises(UserError) as error:
        useful(node)
    assert str(error.value) == (
        f"the server at host:1 does not know the key '{node.key}' ({fingerprint}); its operator "
        f"runs 'fedpeft server add-node' with '{node.key}.pub'; start this node after that, or "
        "with --wait"
    )
    waiting = Useful(replace(node, wait=True), Timing(), logging.getLogger("test"))
    for _ in range(3):
        assert waiting()
    assert [record.getMessage() for record in caplog.records] == [
        f"the server at host:1 does not know the key '{node.key}' ({fingerprint}) yet: waiting "
        "(--wait)"
    ]
