"""``fedpeft privacy ledger`` as a person uses it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedpeft.privacy.accounting import Mechanism, spent
from fedpeft.privacy.ledger import PrivacyLedger

NOISY = Mechanism(1.1, 0.02, 40)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A ledger in which one unit has a bound and the other has none."""
    path = tmp_path / "3.db"
    ledger = PrivacyLedger(path, "client 3", "ab" * 32)
    note = {"clipping": "flat", "clip": 0.5}
    ledger.charge("example", NOISY, 1e-6, None, run="a[b]", round_number=1, note=note)
    ledger.charge(
        "example", NOISY, 1e-5, None, run="a[b]", round_number=2, note=note, draw="seed 0"
    )
    ledger.charge(
        "client", Mechanism(0.0, 1.0, 1), 1e-3, None, run="second", round_number=7, note={}
    )
    return path


def test_a_ledger_is_printed_as_a_table(fedpeft, file: Path) -> None:
    code, printed, errors = fedpeft("privacy", "ledger", file)
    assert (code, errors) == (0, "")
    lines = printed.splitlines()
    title = " ".join(printed.split())  # it is wrapped after a long path
    assert "client 3, data abababababab" in title
    first = next(line.split() for line in lines if line.split()[:1] == ["1"])
    assert first[2:9] == ["example", "1.1", "0.02", "40", "1e-06", "a[b]", "1"]
    assert first[9:] == ["clipping", "flat,", "clip", "0.5"]
    epsilon = spent([NOISY, NOISY], 1e-6).epsilon
    assert f"per example: epsilon <= {epsilon:.4g}" in printed and "at delta 1e-06" in printed
    assert "per client: no bound" in printed


def test_long_notes_are_cut_in_the_table_only(fedpeft, tmp_path: Path) -> None:
    path, clients = tmp_path / "server.db", " ".join(map(str, range(100)))
    ledger, note = PrivacyLedger(path, "server", "ab" * 32), {"clients": clients}
    ledger.charge("client", NOISY, 1e-6, None, run="a", round_number=1, note=note)
    assert "clients 0 1 2 3 4 5 6 7 8 9 10 1..." in fedpeft("privacy", "ledger", path)[1]
    [charge] = json.loads(fedpeft("privacy", "ledger", path, "--json")[1])["charges"]
    assert charge["note"] == note


def test_a_ledger_is_printed_as_json(fedpeft, file: Path) -> None:
    before = file.read_bytes()
    code, printed, _ = fedpeft("privacy", "ledger", file, "--json")
    described = json.loads(printed, parse_constant=pytest.fail)  # Infinity is not JSON
    assert code == 0 and described["owner"] == "client 3" and described["data"] == "ab" * 32
    assert [(c["id"], c["round"]) for c in described["charges"]] == [
        (1, 1),
        (2, 2),
        (3, 7),
    ]
    second = {**described["charges"][1], "time": ""}
    assert second == {
        "id": 2,
        "time": "",
        "unit": "example",
        "noise_multiplier": 1.1,
        "sampling_rate": 0.02,
        "steps": 40,
        "delta": 1e-5,
        "run": "a[b]",
        "round": 2,
        "note": {"clipping": "flat", "clip": 0.5},
        "draw": "seed 0",
    }
    total = spent([NOISY, NOISY], 1e-6)  # the smallest delta in it
    assert described["spent"]["example"] == vars(total)
    assert described["spent"]["client"]["epsilon"] is None
    assert file.read_bytes() == before and list(file.parent.iterdir()) == [file]


def test_epsilon_is_recomputed_for_another_delta(fedpeft, file: Path) -> None:
    _, printed, _ = fedpeft("privacy", "ledger", file, "--delta", "1e-7", "--json")
    assert json.loads(printed)["spent"]["example"] == vars(spent([NOISY, NOISY], 1e-7))
    code, _, errors = fedpeft("privacy", "ledger", file, "--delta", "1.5")
    assert code == 2 and "delta" in errors and errors.count("\n") == 1


def test_a_ledger_without_charges(fedpeft, tmp_path: Path) -> None:
    PrivacyLedger(tmp_path / "3.db", "client 3", "ab" * 32)
    code, printed, _ = fedpeft("privacy", "ledger", tmp_path / "3.db")
    assert code == 0 and "nothing was spent" in printed


def test_a_missing_or_damaged_file_ends_with_code_2_and_one_line(fedpeft, file: Path) -> None:
    code, printed, errors = fedpeft("privacy", "ledger", file.with_name("4.db"))
    assert (code, printed) == (2, "") and "no privacy ledger" in errors
    file.write_bytes(file.read_bytes()[:-1])
    for arguments in ([], ["--json"]):
        code, printed, errors = fedpeft("privacy", "ledger", file, *arguments)
        assert (code, printed) == (2, "") and "is damaged" in errors
        assert errors.count("\n") == 1
    assert list(file.parent.iterdir()) == [file]


def test_a_folder_of_ledgers_is_summarized(fedpeft, file: Path) -> None:
    PrivacyLedger(file.parent / "4.sqlite", "client 4", "cd" * 32)
    file.rename(file.parent / "3.sqlite")
    code, printed, errors = fedpeft("privacy", "ledger", file.parent)
    assert (code, errors) == (0, "")
    third, fourth = printed.splitlines()
    assert third.startswith("3.sqlite: client 3, per client: no bound")
    assert f"per example: epsilon <= {spent([NOISY, NOISY], 1e-6).epsilon:.4g}" in third
    assert fourth == "4.sqlite: client 4, nothing was spent"
    _, printed, _ = fedpeft("privacy", "ledger", file.parent, "--json")
    assert [*json.loads(printed)] == ["3.sqlite", "4.sqlite"]


def test_the_ledgers_of_a_run_are_summarized(fedpeft, file: Path) -> None:
    (file.parent / "run" / "privacy").mkdir(parents=True)
    file.rename(file.parent / "run" / "privacy" / "3.sqlite")
    code, printed, errors = fedpeft("privacy", "ledger", file.parent / "run")
    assert (code, errors) == (0, "") and printed.startswith("3.sqlite: client 3, ")


def test_a_folder_without_ledgers_is_refused(fedpeft, tmp_path: Path) -> None:
    code, printed, errors = fedpeft("privacy", "ledger", tmp_path)
    assert (code, printed) == (2, "")
    assert "no privacy ledger (*.sqlite) in the folder" in errors
