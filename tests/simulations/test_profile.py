"""``fedpeft simulate --profile`` on a real run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedpeft.cli.app import command_line
from simulations.profile import TRACED

SETTINGS = [
    "backbone=tiny",
    "method.d=16",
    "task.train_limit=64",
    "task.eval_limit=16",
    "federation.clients=2",
    "federation.rounds=2",
    "local.batch_size=4",
    "engine.cohort=1",
    "engine.threads=1",
    "output.plots=false",
]


def simulate(out: Path, *settings: str, options: tuple[str, ...] = ("--profile",)) -> str:
    chosen = [part for item in (*SETTINGS, *settings) for part in ("-s", item)]
    done = CliRunner().invoke(command_line(), ["simulate", *chosen, "--out", str(out), *options])
    assert done.exit_code == 0, done.output
    return done.output


@pytest.mark.parametrize(
    ("settings", "phases"),
    [
        (["method.layers=1"], {"data", "below", "forward", "backward", "optimiser"}),
        (
            ["privacy.unit=example", "privacy.noise_multiplier=1", "privacy.reproducible=true"],
            {"data", "forward", "backward", "optimiser", "DP"},
        ),
    ],
)
def test_a_profile_says_where_the_time_went(
    tmp_path: Path, settings: list[str], phases: set[str]
) -> None:
    printed = simulate(tmp_path / "run", *settings)
    written = json.loads((tmp_path / "run" / "profile.json").read_text())
    assert set(written["seconds"]) == phases | {"serialisation", "evaluation", "rest"}
    assert all(item > 0 for item in written["seconds"].values())
    assert sum(written["seconds"].values()) == pytest.approx(written["whole"])
    assert sum(written["shares"].values()) == pytest.approx(1, abs=0.01)
    assert all(f"\n{name} " in printed for name in written["seconds"])


def test_the_trace_holds_some_steps_and_the_result_is_the_same(tmp_path: Path) -> None:
    simulate(tmp_path / "profiled")
    simulate(tmp_path / "plain", options=())
    digests = [
        json.loads((tmp_path / name / "result.json").read_text())["digests"]["vector"]
        for name in ("profiled", "plain")
    ]
    assert digests[0] == digests[1]
    events = json.loads((tmp_path / "profiled" / "trace.json").read_text())["traceEvents"]
    steps = {item["name"] for item in events if str(item.get("name")).startswith("ProfilerStep")}
    assert len(steps) == TRACED
    assert any(item.get("name") == "aten::addmm" for item in events)
    assert not (tmp_path / "plain" / "profile.json").exists()


def test_other_processes_cannot_be_profiled(tmp_path: Path) -> None:
    arguments = ["simulate", "-s", "engine.kind=ray", "--profile", "--out", str(tmp_path / "run")]
    done = CliRunner().invoke(command_line(), arguments)
    assert done.exit_code != 0
    assert not (tmp_path / "run").exists()
