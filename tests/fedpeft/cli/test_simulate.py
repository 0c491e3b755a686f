"""What ``fedpeft simulate`` says at the end of a run: promises, failures, an early end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

Command = Callable[..., tuple[int, str, str]]
QUICK = [
    *("backbone=tiny", "task.train_limit=120", "task.eval_limit=20", "method.d=8"),
    *("federation.clients=3", "federation.rounds=3", "local.batch_size=8"),
    *("engine.threads=1", "output.plots=false"),
]


@pytest.fixture
def simulated(fedpeft: Command, tmp_path: Path) -> Callable[..., str]:
    """Return a runner of a quick simulation that gives what it prints."""

    def run(*overrides: str, out: str = "run") -> str:
        settings = [part for override in (*QUICK, *overrides) for part in ("-s", override)]
        code, printed, _ = fedpeft("simulate", *settings, "--out", tmp_path / out)
        assert code == 0
        return printed

    return run


def test_a_private_run_prints_its_guarantee(simulated: Callable[..., str]) -> None:
    printed = simulated("privacy.unit=both", "privacy.epsilon=8")
    assert "round 3/3" in printed and "  epsilon 8.00  " in printed and "loss" not in printed
    example, client = [line for line in printed.splitlines() if "-DP for every" in line]
    assert example.startswith("(8.00, 0.017)-DP for every example (add or remove one example): ")
    assert "15 steps with noise multiplier" in example and "PRV accountant" in example
    assert "client (add or remove one client with all its examples)" in client
    assert "3 steps with noise multiplier" in client
    assert "a delta of 0.3 promises little" in client
    assert "NOT for release" not in printed


def test_results_that_must_not_be_released_are_marked(simulated: Callable[..., str]) -> None:
    noisy = ["privacy.unit=example", "privacy.noise_multiplier=1", "privacy.reproducible=true"]
    assert "NOT for release: the noise can be drawn again" in simulated(*noisy, out="seeded")
    printed = simulated("privacy.unit=example", "privacy.noise_multiplier=0", out="plain")
    assert "no privacy for any example: some of it ran without noise" in printed
    assert "epsilon infinite" in printed


def test_runs_that_compose_name_every_mechanism(
    simulated: Callable[..., str], tmp_path: Path
) -> None:
    kept = ["privacy.unit=example", f"privacy.ledger={tmp_path / 'ledgers'}"]
    simulated(*kept, "privacy.noise_multiplier=1", out="first")
    printed = simulated(*kept, "privacy.noise_multiplier=2", out="second")
    assert (
        "15 steps with noise multiplier 1 and q 0.2 and 15 steps with noise multiplier 2" in printed
    )


def test_an_early_end_and_failures_are_summarized(
    simulated: Callable[..., str], tmp_path: Path
) -> None:
    kept = ["privacy.unit=example", f"privacy.ledger={tmp_path / 'ledgers'}", "privacy.epsilon=5"]
    printed = simulated(*kept, "privacy.participations=2", out="first")
    assert "ended before round 3 of 3: privacy is spent" in printed
    (tmp_path / "ledgers" / "client-00000.sqlite").unlink()
    printed = simulated(*kept, "privacy.participations=3", out="second")
    assert "client 1 failed in 1 of 3 rounds: error 1001: BudgetSpent: client 1 has" in printed
    assert "client 0 failed" not in printed


def test_a_budget_prints_its_choice_and_the_run_folder_has_it(
    simulated: Callable[..., str], tmp_path: Path
) -> None:
    printed = simulated("wire.budget=300 B")
    assert "wire.budget = '300 B' chose wire.up = 'eden4', method.d = 8: at most " in printed
    written = (tmp_path / "run" / "experiment.toml").read_text()
    assert 'up = "eden4"' in written and 'budget = ""' in written


def test_a_budget_that_is_too_small_names_the_smallest_message(
    fedpeft: Command, tmp_path: Path
) -> None:
    small = [part for setting in (*QUICK, "wire.budget=140 B") for part in ("-s", setting)]
    code, _, error = fedpeft("simulate", *small, "--out", tmp_path / "run")
    assert code == 2 and len(error.splitlines()) == 1
    assert "wire.budget = '140 B': the smallest message has 246 bytes" in error
    assert not (tmp_path / "run").exists()


def test_the_same_command_with_a_budget_resumes(fedpeft: Command, tmp_path: Path) -> None:
    """The budget chose settings for the run's file, which contradict a budget beside them."""
    budget = [part for each in (*QUICK, "wire.budget=300 B") for part in ("-s", each)]
    command = ["simulate", *budget, "--out", tmp_path / "run"]
    assert fedpeft(*command)[0] == 0
    code, printed, error = fedpeft(*command, "--resume")
    assert (code, error) == (0, "") and "after 3 rounds" in printed
    other = [part.replace("300 B", "8 KB") if isinstance(part, str) else part for part in command]
    code, _, error = fedpeft(*other, "--resume")
    assert code == 2 and "wire.up (eden4 and float32), there and here" in error


def test_config_says_what_a_budget_chose(fedpeft: Command) -> None:
    few = ("-s", "backbone=tiny", "-s", "method.d=8")
    code, printed, error = fedpeft("config", *few, "-s", "wire.budget=1,200 B")
    assert code == 0 and "wire.budget = '1,200 B' chose wire.up = " in error
    assert "chose" not in printed


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["federation.strategy=multikrum"], "so multikrum tolerates no malicious client"),
        (["federation.strategy=fedmedian", "federation.mixing=nnm"], "so nnm tolerates no"),
        (["wire.up=eden1", "wire.down=delta1"], " (66 of them the head), eden1 up and delta1 down"),
        (
            ["federation.mode=async", "federation.buffer=2", "devices.step_seconds=1"],
            "3 clients, 3 at a time, 2 replies a round",
        ),
        (
            ["adversary.fraction=0.34", "adversary.attack=backdoor"],
            "% of other texts into its target",
        ),
        (["representation=cls"], " · no export to peft\n"),
    ],
)
def test_a_run_says_how_it_is_set_up(
    simulated: Callable[..., str], settings: list[str], words: str
) -> None:
    assert words in simulated(*settings)


def test_a_strategy_with_its_number_set_gives_no_warning(simulated: Callable[..., str]) -> None:
    one = ("federation.clients=5", "federation.byzantine=1", "federation.strategy=krum")
    assert "warning" not in simulated(*one)
