"""``fedpeft privacy calibrate`` and ``fedpeft privacy epsilon``."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

KEYS = {"noise_multiplier", "epsilon", "epsilon_error", "accountant", "steps", "sampling_rate"}
SMALL = ("--examples", 1000, "--batch", 50)


@pytest.mark.parametrize(
    ("examples", "expected"),
    [(392_702, 0.643), (363_846, 0.651), (104_743, 0.831), (67_349, 0.925)],
    ids=["mnli", "qqp", "qnli", "sst2"],
)
def test_the_noise_of_the_papers_table_6(fedpeft, examples: int, expected: float) -> None:
    code, printed, errors = fedpeft(
        *("privacy", "calibrate", "--epsilon", 6.7, "--delta", 1e-6, "--examples", examples),
        *("--batch", 2048, "--epochs", 20, "--convention", "paper", "--json"),
    )
    assert (code, errors) == (0, "")
    numbers = json.loads(printed)
    assert set(numbers) == KEYS
    assert numbers["noise_multiplier"] == pytest.approx(expected, abs=0.001)
    assert numbers["steps"] == 20 * (examples // 2048)
    assert numbers["epsilon"] <= 6.7 and 0.1 <= numbers["epsilon_error"] < 0.11


def test_epsilon_is_computed_from_a_given_noise(fedpeft) -> None:
    task = (*SMALL, "--steps", 100, "--json")
    _, printed, _ = fedpeft("privacy", "calibrate", "--epsilon", 2, *task)
    there = json.loads(printed)
    code, printed, errors = fedpeft(
        "privacy", "epsilon", "--noise-multiplier", there["noise_multiplier"], *task
    )
    assert (code, errors, json.loads(printed)) == (0, "", there)
    assert 1.95 < there["epsilon"] <= 2 and there["sampling_rate"] == 0.05


def test_an_epoch_uses_all_examples_unless_the_paper_says_otherwise(fedpeft) -> None:
    task = ("--noise-multiplier", 2, "--examples", 105, "--batch", 10, "--epochs", 4, "--json")
    steps = [
        json.loads(fedpeft("privacy", "epsilon", *task, "--convention", convention)[1])["steps"]
        for convention in ("fedpeft", "paper")
    ]
    assert steps == [42, 40]


def test_the_text_output_explains_its_number(fedpeft) -> None:
    code, printed, errors = fedpeft(
        "privacy", "epsilon", "--noise-multiplier", 1, *SMALL, "--epochs", 1
    )
    assert (code, errors) == (0, "")
    delta = 1000**-1.1
    for words in (f"{delta:.3g}", "PRV", "Poisson", "20 steps", "1,000 examples", "add or remove"):
        assert words in printed


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["epsilon", "--noise-multiplier", 0, *SMALL, "--steps", 1], "--noise-multiplier 0"),
        (["epsilon", "--noise-multiplier", -1, *SMALL, "--steps", 1], "--noise-multiplier -1"),
        (["epsilon", "--noise-multiplier", "nan", *SMALL, "--steps", 1], "--noise-multiplier nan"),
        (["epsilon", "--noise-multiplier", 1e-9, *SMALL, "--steps", 1], "no finite epsilon"),
        (["calibrate", "--epsilon", 0, *SMALL, "--steps", 1], "epsilon = 0"),
        (["calibrate", "--epsilon", 1, *SMALL], "got none"),
        (["calibrate", "--epsilon", 1, *SMALL, "--steps", 1, "--epochs", 1], "got both"),
        (["calibrate", "--epsilon", 1, *SMALL, "--steps", 0], "--steps"),
        (["calibrate", "--epsilon", 1, *SMALL, "--steps", 1, "--delta", 1e-3], "--delta 0.001"),
        (["calibrate", "--epsilon", 1, *SMALL, "--steps", 1, "--delta", 0], "--delta 0"),
        (
            ["calibrate", "--epsilon", 1, "--examples", 9, "--batch", 10, "--steps", 1],
            "--batch 10: expected at most --examples, which is 9",
        ),
    ],
)
def test_impossible_values_are_refused_in_one_line(fedpeft, arguments: list, words: str) -> None:
    code, printed, errors = fedpeft("privacy", *arguments)
    assert (code, printed) == (2, "")
    assert words in errors and errors.count("\n") == 1


@pytest.mark.parametrize("command", ["calibrate", "epsilon"])
def test_help_has_an_example(fedpeft, command: str) -> None:
    code, printed, _ = fedpeft("privacy", command, "--help")
    assert code == 0 and f"Example: fedpeft privacy {command}" in printed


def test_the_command_line_starts_without_heavy_libraries() -> None:
    heavy = ("torch", "scipy", "opacus", "prv_accountant")
    code = f"import sys, fedpeft.cli; print([name for name in {heavy} if name in sys.modules])"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert printed.stdout.strip() == "[]", printed.stderr
