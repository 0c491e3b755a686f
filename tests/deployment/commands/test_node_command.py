"""``fedpeft node status`` as an operator calls it, and as a health check does."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from ledgers import charged, opened

from clients.folder import NodeFolder
from deployment.commands import node
from deployment.hosting.keys import make_authority, make_node
from fedpeft.privacy.accounting import Mechanism

Fedpeft = Callable[..., tuple[int, str, str]]


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """The folder of a node that is down, and answered a message a minute ago."""
    NodeFolder(tmp_path / "state").prepare()
    time = (datetime.now(UTC) - timedelta(seconds=60)).isoformat()
    last = {"time": time, "run": "17", "message": "train, round 2: done in 0.53 s"}
    NodeFolder(tmp_path / "state").last_message.write_text(json.dumps(last))
    return tmp_path / "state"


def test_node_status_shows_a_node_that_is_down(fedpeft: Fedpeft, state: Path) -> None:
    code, out, err = fedpeft("node", "status", "--state", state)
    assert (code, err) == (1, "")
    down, last, privacy = out.splitlines()
    assert down == "down; 'fedpeft node up' starts it"
    assert last.startswith("last message 1 min ago") and last.endswith("done in 0.53 s (run 17)")
    assert privacy == "no privacy was spent"


def test_node_status_shows_the_total_epsilon_of_the_ledger(fedpeft: Fedpeft, state: Path) -> None:
    ledger = opened(NodeFolder(state).ledger)
    spent = [charged(ledger, Mechanism(2.0, 0.1, 10), round_number=number) for number in (1, 2)][-1]
    code, out, _ = fedpeft("node", "status", "--state", state)
    assert code == 1
    assert f"spent per example: epsilon <= {spent.epsilon:.4g} at delta 1e-05" in out
    code, out, _ = fedpeft("node", "status", "--state", state, "--json")
    described = json.loads(out)
    assert (code, described["up"], described["last_message"]["run"]) == (1, False, "17")
    assert described["privacy"]["example"]["epsilon"] == spent.epsilon


def test_training_without_noise_has_no_bound(fedpeft: Fedpeft, state: Path) -> None:
    charged(opened(NodeFolder(state).ledger))
    assert "spent per example: no bound" in fedpeft("node", "status", "--state", state)[1]


def test_a_health_check_reads_no_ledger(fedpeft: Fedpeft, state: Path) -> None:
    NodeFolder(state).ledger.write_text("damaged")
    code, out, err = fedpeft("node", "status", "--state", state, "--quick", "--json")
    assert (code, err, json.loads(out)["privacy"]) == (1, "", None)
    code, _, err = fedpeft("node", "status", "--state", state)
    assert code == 2 and "privacy.sqlite' is damaged" in err


def test_no_such_folder_is_a_mistake(fedpeft: Fedpeft, tmp_path: Path) -> None:
    code, out, err = fedpeft("node", "status", "--state", tmp_path / "none")
    assert (code, out) == (2, "")
    assert err.startswith("error: --state ") and "not a node's folder" in err


def test_each_state_of_a_node_in_words(
    capsys: pytest.CaptureFixture[str],
) -> None:
    described = {
        "up": False,
        "pid": 7,
        "since": "2026-01-31T12:00:00+00:00",
        "worker": "away",
        "silent": 75.3,
        "children": {
            "worker": {"pid": 8, "restarts": 2},
            "supernode": {"pid": 10, "restarts": 1},
            "superexec": {"pid": None, "restarts": 0},
        },
        "last_message": None,
        "privacy": None,
    }
    node._print(described)
    assert capsys.readouterr().out.splitlines() == [
        "partly up since 2026-01-31T12:00:00+00:00 (pid 7)",
        "worker runs (pid 8), but does not listen yet; restarts: 2",
        "supernode runs (pid 10), but has not asked for work for 75 s; restarts: 1",
        "superexec does not run",
    ]


def test_node_status_imports_neither_torch_nor_flower() -> None:
    program = (
        "import pathlib, sys; from deployment.node.status import describe_node; "
        "print({'torch', 'flwr', 'numpy'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "set()\n"


@pytest.fixture
def node_up(fedpeft: Fedpeft, tmp_path: Path) -> Callable[..., tuple[int, str, str]]:
    """Return a function that calls `fedpeft node up` with wrong options."""
    make_node(tmp_path, "site")
    make_authority(tmp_path)
    (tmp_path / "own.csv").write_text("text,label\ngood,1\nbad,0\n")
    usual = {
        "--superlink": "127.0.0.1:1",
        "--key": tmp_path / "site",
        "--ca": tmp_path / "ca.crt",
        "--state": tmp_path / "state",
        "--data": tmp_path / "own.csv",
    }

    def call(**options: object) -> tuple[int, str, str]:
        given = usual | {f"--{key.replace('_', '-')}": value for key, value in options.items()}
        return fedpeft("node", "up", *(word for pair in given.items() for word in pair))

    return call


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"max_epsilon": 0}, "--max-epsilon 0: expected a number above 0"),
        ({"max_epsilon": "inf"}, "--max-epsilon inf: expected a number above 0"),
        ({"max_epsilon": 4}, "--examples is missing: with --max-epsilon give a number near"),
        ({"max_epsilon": 4, "examples": 9, "delta": 1}, "--delta 1: expected a number between 0"),
        ({"max_epsilon": 4, "examples": 9, "delta": "nan"}, "--delta nan: expected a number"),
        ({"delta": 0.1}, "--delta 0.1: is the delta of --max-epsilon, which is missing"),
        ({"examples": 0}, "--examples 0: expected exact, rounded or a number from 1 to 1,000,0"),
        ({"examples": "many"}, "--examples many: expected exact, rounded or a number from 1 to "),
        ({"examples": "²"}, "--examples ²: expected exact, rounded or a number from 1 to "),
        ({"max_vector": 0}, "Invalid value for '--max-vector': 0 is not in the range x>=1"),
        ({"kind": "words"}, "Invalid value for '--kind': 'words' is not one of 'classes', 'sco"),
    ],
)
def test_wrong_options_are_one_line(
    node_up: Callable[..., tuple[int, str, str]], options: dict[str, object], expected: str
) -> None:
    code, out, err = node_up(**options)
    assert (code, out) == (2, "") and err.startswith(f"error: {expected}")
    assert err.count("\n") == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, "--labels is missing: the names of the classes in column 'label', in order"),
        ({"task": "sst"}, "--task sst: unknown task, or one that has no files; did you mean 'sst2"),
        ({"labels": "1,2"}, "row 2: label = '0' is none of the labels; valid: 1, 2"),
        ({"labels": "1,0", "text": "review"}, "no column 'review'; valid: label, text"),
        (
            {"labels": "1,0", "partition": 0, "max_epsilon": 4, "examples": "rounded"},
            "--partition 0: the server chooses how data are divided; with --max-epsilon leave it",
        ),
    ],
)
def test_a_wrong_description_of_the_data_is_one_line(
    node_up: Callable[..., tuple[int, str, str]], options: dict[str, object], expected: str
) -> None:
    code, _, err = node_up(**options)
    assert code == 2 and err.count("error: ") == 1
    assert expected in err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (None, "No such file or directory; expected the .pub files of all nodes, one key in a "),
        (
            "a secret line\n",
            "a line is not a P-384 public key in OpenSSH format; expected the .pub",
        ),
        ("", "lacks this node's own key; expected a line with the content of"),
        ("other", "lacks this node's own key; expected a line with the content of"),
    ],
)
def test_a_wrong_roster_is_one_line(
    node_up: Callable[..., tuple[int, str, str]],
    tmp_path: Path,
    content: str | None,
    expected: str,
) -> None:
    roster = tmp_path / "roster"
    if content is not None:
        make_node(tmp_path, "other")
        others = {"other": (tmp_path / "other.pub").read_text()}
        roster.write_text(others.get(content, content))
    code, out, err = node_up(labels="0,1", roster=roster)
    assert (code, out) == (2, "") and err.startswith(f"error: --roster {roster}: {expected}")
    assert err.count("\n") == 1 and "secret" not in err


def test_the_help_has_an_example_with_the_options_of_the_data(fedpeft: Fedpeft) -> None:
    code, out, _ = fedpeft("node", "up", "--help")
    text = " ".join(out.split())
    assert code == 0
    for words in ("--labels negative,positive", "--max-epsilon 8 --examples 3000"):
        assert words in text
    for option in ("--task", "--text-pair", "--kind", "--delta", "--max-vector"):
        assert option in text
