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

from clients.state import ledger_path, log_path, prepare
from fedpeft.cli import node
from fedpeft.privacy.accounting import Mechanism

Fedpeft = Callable[..., tuple[int, str, str]]


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """The folder of a node that is down, and answered a message a minute ago."""
    prepare(tmp_path / "state")
    said = {
        "time": (datetime.now(UTC) - timedelta(seconds=60)).isoformat(),
        "level": "info",
        "source": "worker",
        "run": "17",
        "message": "train, round 2: done in 0.53 s",
    }
    log_path(tmp_path / "state").write_text(json.dumps(said) + "\n")
    return tmp_path / "state"


def test_a_node_that_is_down(fedpeft: Fedpeft, state: Path) -> None:
    code, out, err = fedpeft("node", "status", "--state", state)
    assert (code, err) == (1, "")
    down, last, privacy = out.splitlines()
    assert down == "down; 'fedpeft node up' starts it"
    assert last.startswith("last message 6") and last.endswith("done in 0.53 s (run 17)")
    assert privacy == "no privacy was spent"


def test_what_was_spent_is_the_ledgers_sum(fedpeft: Fedpeft, state: Path) -> None:
    ledger = opened(ledger_path(state))
    spent = [charged(ledger, Mechanism(2.0, 0.1, 10), round=round) for round in (1, 2)][-1]
    code, out, _ = fedpeft("node", "status", "--state", state)
    assert code == 1
    assert f"spent per example: epsilon <= {spent.epsilon:.4g} at delta 1e-05" in out
    code, out, _ = fedpeft("node", "status", "--state", state, "--json")
    found = json.loads(out)
    assert (code, found["up"], found["last_message"]["run"]) == (1, False, "17")
    assert found["privacy"]["example"]["epsilon"] == spent.epsilon


def test_training_without_noise_has_no_bound(fedpeft: Fedpeft, state: Path) -> None:
    charged(opened(ledger_path(state)))
    assert "spent per example: no bound" in fedpeft("node", "status", "--state", state)[1]


def test_a_health_check_reads_no_ledger(fedpeft: Fedpeft, state: Path) -> None:
    ledger_path(state).write_text("damaged")
    code, out, err = fedpeft("node", "status", "--state", state, "--quick", "--json")
    assert (code, err, json.loads(out)["privacy"]) == (1, "", None)
    code, _, err = fedpeft("node", "status", "--state", state)
    assert code == 2 and "privacy.sqlite' is damaged" in err


def test_no_such_folder_is_a_mistake(fedpeft: Fedpeft, tmp_path: Path) -> None:
    code, out, err = fedpeft("node", "status", "--state", tmp_path / "none")
    assert (code, out) == (2, "")
    assert err.startswith("error: --state ") and "no node's folder" in err


def test_each_state_of_a_node_in_words(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = {
        "up": False,
        "pid": 7,
        "since": "2026-01-31T12:00:00+00:00",
        "worker": "away",
        "children": {
            "worker": {"pid": 8, "restarts": 2},
            "supernode": {"pid": None, "restarts": 1},
            "superexec": {"pid": 9, "restarts": 0},
        },
        "last_message": None,
        "privacy": None,
    }
    node._print(found)
    assert capsys.readouterr().out.splitlines() == [
        "not all of it runs, since 2026-01-31T12:00:00+00:00 (pid 7)",
        "worker runs (pid 8), but does not listen yet; restarts: 2",
        "supernode does not run; restarts: 1",
        "superexec runs (pid 9)",
    ]


def test_a_look_imports_neither_torch_nor_flower() -> None:
    program = (
        "import pathlib, sys; from clients.status import describe_node; "
        "print({'torch', 'flwr', 'numpy'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "set()\n"
