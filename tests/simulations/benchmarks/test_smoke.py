"""Each benchmark runs on a tiny case and records its tables."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path

import pytest

TINY = ["--backbone", "tiny"]
FEW = ["--clients", "2", "--examples", "12", "--rounds", "2"]
FAST = {
    "codecs": [*TINY, *FEW, "--sizes", "100"],
    "cohorts": [*TINY, "--clients", "3", "--texts", "8", "--batch", "4", "--sizes", "1", "2", "3"],
    "overhead": [*TINY, *FEW, "--threads", "1"],
    "passes": ["--size", "tiny", "--tokens", "4", "8", "--most", "64"],
    "privacy": [*TINY, "--batch", "6", "--parts", "time", "--methods", "linear"],
    "robust": ["--clients", "30", "--size", "20"],
    "robust_prefix": [
        *(*TINY, "--task", "synthetic/sentiment", "--examples", "60", "--held-out", "10"),
        *("--texts", "12", "--steps", "1", "--seeds", "2", "--epochs", "1"),
    ],
    "scaling": ["--sizes", "3", "--vectors", "16"],
    "serving": [
        *(*TINY, "--task", "synthetic/sentiment", "--d", "12", "--vectors", "20"),
        *("--texts", "16", "--batch", "8", "--threads", "1"),
    ],
}
#: Each takes several seconds, many of them to start processes of their own.
SLOW = {
    "aggregation": ["--clients", "40"],
    "attacks": [
        *("--rounds", "1", "--rules", "mean, no limit", "--attacks", "scaling"),
        *("--attackers", "5", "--scratch", "attacks"),
    ],
    "autocast": [*TINY, "--examples", "16", "--methods", "bitfit"],
    "clipping": ["--rounds", "1", "--partitions", "iid", "--scratch", "clipping"],
    "crowd": ["--sizes", "30", "--asked", "3"],
    "engines": [*TINY, *FEW, "--workers", "1"],
    "heads": [
        *("--backbone", "tiny", "--tasks", "intents", "--heads", "rank 24 and labels"),
        *("--rounds", "1", "--scratch", "heads"),
    ],
    "memory": [*TINY, "--sizes", "2", "3", "--examples", "120"],
    "methods": [
        *TINY,
        *("--task", "synthetic/sentiment", "--methods", "lora", "full"),
        *("--examples", "40", "--epochs", "1", "--seeds", "1"),
    ],
    "noised": ["--bits", "4", "--size", "100", "--repeats", "1"],
    "orchestration": [*TINY, "--rounds", "1", "--examples", "40"],
    "peers": [*TINY, *FEW],
    "projections": [*TINY, "--d", "48", "--groups", "2", "--batch", "2", "--tokens", "8"],
    "roofline": [*TINY, "--method", "bitfit", "full", "--examples", "16", "--batch", "8"],
    "secure": ["--clients", "5", "--rounds", "1", "--lost"],
    "serving_load": [
        *(*TINY, "--task", "synthetic/sentiment", "--d", "12", "--vectors", "20"),
        *("--seconds", "3", "--rates", "20", "--clients", "4", "--threads", "1"),
    ],
    "starts": [
        *(*TINY, "-s", "task.train_limit=60", "-s", "task.eval_limit=20", "--scratch", "starts"),
    ],
    "startup": TINY,
    "weights": [
        *("--backbones", "tiny", "--batch", "2", "--tokens", "8", "--steps", "1"),
        *("--examples", "16", "--rounds", "1"),
    ],
    "text_steps": ["--small", "--batch", "2"],
    "table5": [
        *("--sizes", "tiny", "--methods", "slash"),
        *("--batch", "2", "--tokens", "8", "--threads", "1"),
    ],
    "unmasking": ["--clients", "20", "--size", "10"],
}
#: These measure nothing twice.
ONCE = ("crowd", "noised", "robust_prefix", "secure", "serving_load", "unmasking")
#: These have tests of their own, or need a compiler, a task's files, a deployment or hours.
NOT_RUN = (
    *("bits", "campaign", "compiling", "constant", "d90", "deployment", "fleet", "private_scores"),
    *("reach", "upper_half"),
)
CASES = [
    *FAST.items(),
    *(pytest.param(*case, marks=pytest.mark.long, id=case[0]) for case in SLOW.items()),
]


@pytest.mark.parametrize(("name", "options"), CASES)
def test_benchmark_records_its_tables(
    name: str, options: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name in ("engines", "peers"):
        pytest.importorskip("ray")
    monkeypatch.chdir(tmp_path)  # some keep finished runs in the working directory
    main = import_module(f"simulations.benchmarks.{name}").main
    repeats = [] if name in ONCE else ["--repeats", "1"]
    main([*options, *repeats, "--results", str(tmp_path)])
    cases = json.loads((tmp_path / f"{name}.json").read_text())
    assert cases and all(case["table"] and case["raw"] for case in cases.values())
    page = (tmp_path / f"{name}.md").read_text()
    assert all(f"## {title}" in page for title in cases)


@pytest.mark.parametrize("name", NOT_RUN)
def test_benchmark_explains_its_options(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        import_module(f"simulations.benchmarks.{name}").main(["--help"])
    assert f"python -m simulations.benchmarks.{name}" in capsys.readouterr().out


def test_every_benchmark_has_a_smoke_test() -> None:
    folder = Path(__file__).parents[3] / "simulations" / "benchmarks"
    scripts = {path.stem for path in folder.glob("*.py")} - {"__init__", "common"}
    assert scripts == {*FAST, *SLOW, *NOT_RUN}
