"""A node's state folder: whose it is, what it holds, and what is said of a damaged one."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from workers import other_user

from clients.state import NodeSettings, experiments, locked, log_path, prepare, secret_file
from fedpeft.errors import UserError


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """A state folder, made where files are by default for everybody."""
    before = os.umask(0)
    try:
        prepare(tmp_path / "deep" / "state")
        return tmp_path / "deep" / "state"
    finally:
        os.umask(before)


@pytest.mark.parametrize(
    "settings",
    [
        NodeSettings("/data/reviews.csv", allow=("minilm", "/models/ours")),
        NodeSettings("", 3, 2.5),
        NodeSettings("/ä ö/train.tsv", 0, 4),
    ],
)
def test_settings_come_back_as_they_were(state: Path, settings: NodeSettings) -> None:
    settings.write(state)
    assert NodeSettings.read(state) == settings
    assert mode(state / "node.json") == 0o600


WHOLE = {"data": "/d", "partition": None, "max_epsilon": None, "allow": []}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", r"node.json: damaged; start"),
        ("[]", "damaged"),
        ('{"data": "/d"}', "damaged; start"),
        (json.dumps({**WHOLE, "more": 1}), "damaged; start"),
        (json.dumps({**WHOLE, "partition": "0"}), "damaged at 'partition'"),
        (json.dumps({**WHOLE, "partition": True}), "damaged at 'partition'"),
        (json.dumps({**WHOLE, "max_epsilon": "none"}), "damaged at 'max_epsilon'"),
        (json.dumps({**WHOLE, "allow": "tiny"}), "damaged at 'allow'"),
    ],
)
def test_damaged_settings_are_named(state: Path, content: str, said: str) -> None:
    (state / "node.json").write_text(content)
    with pytest.raises(UserError, match=said):
        NodeSettings.read(state)


def test_missing_settings_are_named(state: Path) -> None:
    with pytest.raises(UserError, match=r"node.json: no such file; 'fedpeft node up' makes it"):
        NodeSettings.read(state)


def test_everything_is_for_its_owner_alone(state: Path) -> None:
    for folder in (state, experiments(state), state / "flwr", state / "bin"):
        assert mode(folder) == 0o700, folder
    assert mode(log_path(state)) == 0o600
    state.chmod(0o755)
    prepare(state)  # as of an older version, or made by hand
    assert mode(state) == 0o700


def test_a_folder_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"--state .*file/state: cannot be written"):
        prepare(tmp_path / "file" / "state")
    user, state = other_user(), tmp_path / "theirs"
    state.mkdir()
    os.chown(state, user, user)
    with pytest.raises(UserError, match="belongs to another user"):
        prepare(state)


def test_the_secret_is_made_once(state: Path, tmp_path: Path) -> None:
    secret = secret_file(state).read_bytes()
    assert secret_file(state).read_bytes() == secret and len(secret) == 64
    assert mode(secret_file(state)) == 0o600
    prepare(tmp_path / "other")
    assert secret_file(tmp_path / "other").read_bytes() != secret


def test_one_node_at_a_time(state: Path) -> None:
    program = (
        "import sys, pathlib; from clients.state import locked\n"
        "with locked(pathlib.Path(sys.argv[1])): pass"
    )
    other = [sys.executable, "-c", program, str(state)]
    with locked(state):
        ended = subprocess.run(other, capture_output=True, text=True)
        assert ended.returncode != 0
        assert f"--state {state}: another node runs there" in ended.stderr
    assert subprocess.run(other).returncode == 0
