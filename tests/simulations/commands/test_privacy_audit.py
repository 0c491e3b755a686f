"""``fedpeft privacy audit`` as a person uses it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedpeft.attacks import audit
from fedpeft.privacy.accounting import Mechanism, spent

Command = Callable[..., tuple[int, str, str]]

#: Small and with noise that is the same every time, so that no test fails once in twenty runs.
PLAIN = (
    "-s", "task.train_limit=90", "-s", "task.eval_limit=4", "-s", "local.batch_size=20",
    "-s", "engine.threads=1",
)  # fmt: skip
SMALL = (*PLAIN, "-s", "privacy.reproducible=true")
ONLY_CANARIES = (*SMALL, "--rounds", "3", "--no-inversion")


def audited(fedpeft: Command, *arguments: str | Path) -> tuple[int, dict[str, Any], str]:
    code, printed, errors = fedpeft("privacy", "audit", *arguments, "--json")
    result = json.loads(printed, parse_constant=pytest.fail)  # Infinity is not JSON
    return code, result, errors


def test_json_has_the_claim_the_bound_and_the_inversion(
    fedpeft: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "_RESTARTS", 1)  # of 8 searches; test_inversion.py has several
    code, result, errors = audited(fedpeft, *SMALL, "--rounds", "3", "--canaries", "40")
    assert (code, errors) == (0, "")
    inversion = result.pop("inversion")
    claim, bound, right = (result.pop(key) for key in ("claimed_epsilon", "lower_bound", "right"))
    assert 0.9 < claim <= 1  # calibrated for epsilon = 1 over the three rounds
    assert 0 <= bound < claim and 0 <= right <= 20
    assert result == {
        "confidence": 0.95,
        "canaries": 40,
        "guesses": 20,
        "rounds": 3,
        "delta": 1e-5,
    }
    assert inversion["victims"] == 5 and inversion["tokens"] == 25
    for row in ("without_dp", "with_dp", "usual", "random"):
        assert set(inversion[row]) == {"place", "bag", "label"}
        assert all(0 <= share <= 1 for share in inversion[row].values())
    assert inversion["noise_multiplier"] > 1 and inversion["clip"] == 1


def test_the_audit_prints_five_lines(fedpeft: Command) -> None:
    code, printed, errors = fedpeft("privacy", "audit", *ONLY_CANARIES, "--canaries", "40")
    assert (code, errors) == (0, "")
    lines = printed.splitlines()
    assert lines[0].startswith("synthetic/sentiment · lora on tiny · ")
    assert "40 canaries" in lines[0] and "50 other examples" in lines[0]
    assert lines[1:3] == ["training 3 rounds", "guessing the coins"]
    assert "claimed epsilon 0.9" in lines[3] or "claimed epsilon 1 " in lines[3]
    assert (
        "with confidence 0.95, at delta 1e-05" in lines[3] and "of 20 guesses correct" in lines[3]
    )
    assert lines[4].startswith("this attack does not refute the claim")
    assert len(lines) == 5


@pytest.mark.parametrize("noise", ["privacy.unit=none", "privacy.noise_multiplier=0"])
def test_without_noise_there_is_no_claim_and_the_canaries_are_found(
    fedpeft: Command, noise: str
) -> None:
    """30 right guesses of 30 bound epsilon by logit(0.05^(1/30)) = 2.25."""
    code, result, _ = audited(fedpeft, *PLAIN, "--rounds", "12", "--no-inversion", "-s", noise)
    assert code == 0 and result["claimed_epsilon"] is None and result["inversion"] is None
    assert result["canaries"] == 60 and result["guesses"] == 30
    assert result["lower_bound"] > 1.5


def test_a_bound_above_the_claim_ends_with_code_1(fedpeft: Command) -> None:
    """With a confidence of 1 % nearly every run refutes a small epsilon."""
    quick = (*ONLY_CANARIES, "-s", "privacy.epsilon=0.05", "--confidence", "0.01")
    code, result, errors = audited(fedpeft, *quick)
    assert result["lower_bound"] > result["claimed_epsilon"]
    assert code == 1 and errors.startswith("stopped: the training is not (0.0")
    assert errors.count("\n") == 1


def test_the_audit_of_a_file_uses_its_privacy_settings(fedpeft: Command, tmp_path: Path) -> None:
    """The claim is of its noise over the attacked rounds, whatever it planned itself."""
    file = tmp_path / "mine.toml"
    file.write_text(
        'backbone = "tiny"\n[task]\ntrain_limit = 120\neval_limit = 4\n[method]\nd = 16\n'
        "[federation]\nclients = 2\nrounds = 9\nfraction = 0.5\n[local]\nbatch_size = 10\n"
        'epochs = 3\n[engine]\nthreads = 1\n[privacy]\nunit = "both"\nnoise_multiplier = 2.0\n'
        "reproducible = true\n",
        encoding="utf-8",
    )
    code, result, _ = audited(fedpeft, file, "--rounds", "4", "--no-inversion", "--canaries", "20")
    assert code == 0 and result["guesses"] == 10
    # 60 examples a client; 40 and those of 20 canaries whom the coin put in are trained on.
    possible = [spent([Mechanism(2.0, 10 / n, 4)], 1e-5).epsilon for n in range(40, 61)]
    assert result["claimed_epsilon"] in possible


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--canaries", "90"), "--canaries 90: expected 2 to 89"),
        (("--canaries", "40", "--guesses", "41"), "expected an even number from 2 to 40"),
        (("--canaries", "40", "--guesses", "7"), "expected an even number from 2 to 40"),
        (("--confidence", "1"), "--confidence 1: expected a number in (0, 1)"),
        (
            ("--unit", "example", "-s", "privacy.unit=client"),
            "the audit attacks single examples",
        ),
        (("-s", "privacy.unit=client"), "--inversion: are for single examples"),
        (("--trials", "100"), "--trials 100: is for --unit client"),
        (
            ("-s", "task.name=synthetic/similarity"),
            "a task that predicts classes, not score",
        ),
        (("-s", "local.batch_size=80"), "local.batch_size = 80: expected at most"),
        (("missing.toml",), "no experiment file 'missing.toml'"),
    ],
)
def test_mistakes_end_with_code_2_and_one_line(
    fedpeft: Command, arguments: tuple[str, ...], words: str
) -> None:
    code, printed, errors = fedpeft("privacy", "audit", *ONLY_CANARIES, *arguments)
    assert (code, printed) == (2, "")
    assert words in errors and errors.count("\n") == 1


def test_help_has_an_example(fedpeft: Command) -> None:
    code, printed, _ = fedpeft("privacy", "audit", "--help")
    assert code == 0 and "Example: fedpeft privacy audit" in printed
