"""A node's state folder: access, content, and errors."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
from workers import other_user

from clients.folder import NodeFolder, NodeSettings
from fedpeft.errors import UserError


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """A state folder, made under umask 0."""
    before = os.umask(0)
    try:
        NodeFolder(tmp_path / "deep" / "state").prepare()
        return tmp_path / "deep" / "state"
    finally:
        os.umask(before)


@pytest.mark.parametrize(
    "settings",
    [
        NodeSettings("/data/reviews.csv", allow=("minilm", "/models/ours")),
        NodeSettings("", 3, 2.5),
        NodeSettings("/ä ö/train.tsv", 0, 4),
        NodeSettings(
            *("/d", None, 4.0, ("tiny",), "custom", "review", "reply", "mood", "in", "out", "tags"),
            *(("O", "B-ä"), 3000, 1e-6, 10),
        ),
        NodeSettings("/d", key="/keys/ä site", roster="/keys/roster"),
    ],
)
def test_settings_are_read_as_written(state: Path, settings: NodeSettings) -> None:
    settings.write(state)
    assert NodeSettings.read(state) == settings
    assert mode(state / "node.json") == 0o600


WHOLE = asdict(NodeSettings("/d"))


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("", r"node.json: damaged; start"),
        ("[]", "damaged"),
        ('{"data": "/d"}', "damaged; start"),
        (json.dumps({**WHOLE, "more": 1}), "damaged; start"),
        (json.dumps({**WHOLE, "partition": "0"}), "damaged at 'partition'"),
        (json.dumps({**WHOLE, "partition": True}), "damaged at 'partition'"),
        (json.dumps({**WHOLE, "max_epsilon": "none"}), "damaged at 'max_epsilon'"),
        (json.dumps({**WHOLE, "allow": "tiny"}), "damaged at 'allow'"),
        (json.dumps({**WHOLE, "labels": "a,b"}), "damaged at 'labels'"),
        (json.dumps({**WHOLE, "examples": True}), "damaged at 'examples'"),
        (json.dumps({**WHOLE, "max_vector": "10"}), "damaged at 'max_vector'"),
        (json.dumps({**WHOLE, "key": None}), "damaged at 'key'"),
        (json.dumps({**WHOLE, "roster": ["/keys/roster"]}), "damaged at 'roster'"),
        (json.dumps({k: WHOLE[k] for k in WHOLE if k != "roster"}), "damaged; start"),
    ],
)
def test_damaged_settings_are_named(state: Path, content: str, expected: str) -> None:
    (state / "node.json").write_text(content)
    with pytest.raises(UserError, match=expected):
        NodeSettings.read(state)


def test_missing_settings_are_named(state: Path) -> None:
    with pytest.raises(UserError, match=r"node.json: no such file; 'fedpeft node up' makes it"):
        NodeSettings.read(state)


def test_the_state_folder_is_private(state: Path) -> None:
    for folder in (state, NodeFolder(state).experiments, state / "flwr", state / "bin"):
        assert mode(folder) == 0o700, folder
    assert mode(NodeFolder(state).log) == 0o600
    state.chmod(0o755)
    NodeFolder(state).prepare()  # as of an older version, or made by hand
    assert mode(state) == 0o700


def test_a_state_folder_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"--state .*file/state: cannot be written"):
        NodeFolder(tmp_path / "file" / "state").prepare()
    user, state = other_user(), tmp_path / "theirs"
    state.mkdir()
    os.chown(state, user, user)
    with pytest.raises(UserError, match="belongs to another user"):
        NodeFolder(state).prepare()


def test_the_secret_is_made_once(state: Path, tmp_path: Path) -> None:
    secret = NodeFolder(state).secret().read_bytes()
    assert NodeFolder(state).secret().read_bytes() == secret and len(secret) == 64
    assert mode(NodeFolder(state).secret()) == 0o600
    NodeFolder(tmp_path / "other").prepare()
    assert NodeFolder(tmp_path / "other").secret().read_bytes() != secret


def test_a_second_node_in_a_state_folder_is_refused(state: Path) -> None:
    program = (
        "import sys, pathlib; from clients.folder import NodeFolder\n"
        "with NodeFolder(pathlib.Path(sys.argv[1])).locked(): pass"
    )
    other = [sys.executable, "-c", program, str(state)]
    with NodeFolder(state).locked():
        ended = subprocess.run(other, capture_output=True, text=True)
        assert ended.returncode != 0
        assert f"--state {state}: another node runs there" in ended.stderr
    assert subprocess.run(other).returncode == 0
