"""``fedpeft privacy audit --unit client`` as a person uses it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fedpeft.privacy import updates

Command = Callable[..., tuple[int, str, str]]
#: 60 clients, 6 a round, one turn each; noise that is the same every time.
SMALL = (
    "privacy", "audit", "--unit", "client", "-s", "federation.clients=60",
    "-s", "federation.per_round=6", "--rounds", "10", "--trials", "600",
    "-s", "privacy.reproducible=true",
)  # fmt: skip
BANDED = (*SMALL, "-s", "privacy.mechanism=banded")


def test_json_has_the_claim_and_both_bounds(fedpeft: Command) -> None:
    code, printed, errors = fedpeft(*BANDED, "--json")
    result = json.loads(printed, parse_constant=pytest.fail)
    assert (code, errors) == (0, "")
    claim, plain, tight, trials = (
        result.pop(key) for key in ("claimed_epsilon", "lower_bound", "gaussian_bound", "trials")
    )
    assert 0.9 < claim <= 1 and 0 <= plain < claim and 0 <= tight < claim
    assert 50 < trials <= 300  # clients whose last round cuts off their noise do not count
    assert result == {
        "unit": "client",
        "delta": 60**-1.1,
        "confidence": 0.95,
        "runs": 10,
        "rounds": 10,
    }


def test_the_audit_prints_its_runs_and_what_it_found(fedpeft: Command) -> None:
    code, printed, errors = fedpeft(*BANDED)
    assert (code, errors) == (0, "")
    lines = printed.splitlines()
    assert lines[0] == (
        "banded noise for 60 clients, 6 a round, 10 rounds; 10 runs with 60 canary clients, half "
        "of them included"
    )
    assert lines[1].startswith("claimed epsilon ") and "at delta 0.011" in lines[1]
    assert lines[2].endswith("if the noise is Gaussian")
    assert lines[3:] == ["this attack does not refute the claim; a stronger attack might"]


def test_a_file_that_protects_clients_is_audited_as_such_and_spends_nothing(
    fedpeft: Command, tmp_path: Path
) -> None:
    """Its ledger, the rounds and the noise are those of the file; the ledger is not touched."""
    file, ledger = tmp_path / "mine.toml", tmp_path / "ledger"
    file.write_text(
        'backbone = "tiny"\n[federation]\nclients = 50\nrounds = 4\nfraction = 0.5\n[privacy]\n'
        f'unit = "client"\nnoise_multiplier = 2.0\nledger = "{ledger}"\n',
        encoding="utf-8",
    )
    code, printed, _ = fedpeft("privacy", "audit", file, "--trials", "200", "--json")
    result = json.loads(printed)
    assert (code, result["rounds"], result["runs"]) == (0, 4, 4)
    assert result["gaussian_bound"] is None and result["claimed_epsilon"] > 0
    assert not ledger.exists()


def test_a_bound_above_the_claim_ends_with_code_1(
    fedpeft: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def exact(
        rows: np.ndarray, clip: float, sigma: float, expected: float, noise: object
    ) -> object:
        return updates.noisy_mean(rows, clip, 0.0, expected, noise)  # type: ignore[arg-type]

    monkeypatch.setattr("server.privacy.central_privacy.noisy_mean", exact)
    code, _, errors = fedpeft(*BANDED, "--json")
    assert code == 1 and errors.count("\n") == 1
    assert errors.startswith("stopped: the noise does not give (0.9998, 0.011)-privacy")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("-s", "privacy.unit=example"), "expected unit 'client' or 'both' and"),
        (("-s", "privacy.client_noise=clients"), "privacy.client_noise = 'clients'"),
        (("--canaries", "40"), "--canaries, --guesses, --inversion: are for single examples"),
        (("--confidence", "0"), "--confidence 0: expected a number in (0, 1)"),
        (("-s", "federation.clients=1"), "federation.clients = 1"),
    ],
)
def test_mistakes_end_with_code_2_and_one_line(
    fedpeft: Command, arguments: tuple[str, ...], words: str
) -> None:
    code, printed, errors = fedpeft(*SMALL, *arguments, "--json")
    assert (code, printed) == (2, "")
    assert words in errors and errors.count("\n") == 1


def test_help_has_an_example(fedpeft: Command) -> None:
    code, printed, _ = fedpeft("privacy", "audit", "--help")
    assert code == 0 and "Example: fedpeft privacy audit --unit client" in printed


def test_noise_of_clients_in_sums_is_audited(fedpeft: Command) -> None:
    code, printed, errors = fedpeft(
        *SMALL, "-s", "federation.secure=true", "-s", "privacy.client_noise=secure",
        "-s", "federation.clients=12", "--trials", "300",
    )  # fmt: skip
    assert (code, errors) == (0, "")
    lines = printed.splitlines()
    assert lines[0].startswith("Skellam noise of ") and ", 5 rounds; " in lines[0]
    assert lines[1].startswith("claimed epsilon 0.9") or lines[1].startswith("claimed epsilon 1,")
