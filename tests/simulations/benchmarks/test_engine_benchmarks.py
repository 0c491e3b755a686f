import argparse
import json

import numpy as np
import pytest

from fedpeft.config import Experiment
from simulations.benchmarks import common, engines, memory, methods, overhead

SMALL = ["--clients", "2", "--examples", "12", "--rounds", "2"]


def assert_recorded(report, folder, name, case, columns):
    """The table has these columns, all positive, and the files hold it with what produced it."""
    assert all([*row] == columns for row in report.table)
    names = ("figure", "method", "deviation")
    numbers = [value for row in report.table for key, value in row.items() if key not in names]
    assert all(number > 0 for number in numbers)
    kept = json.loads((folder / f"{name}.json").read_text())[case]
    assert kept["table"] == report.table
    assert kept["command"].startswith(f"python -m simulations.benchmarks.{name} ")
    assert kept["machine"]["cpu"] and kept["machine"]["cores"] > 0
    assert kept["versions"]["fedpeft"] and kept["raw"]
    page = (folder / f"{name}.md").read_text()
    assert f"## {case}" in page and f"| {' | '.join(columns)} |" in page


def test_overhead_agrees_with_the_engine_and_is_recorded(tmp_path):
    options = ["--backbone", "tiny", "--threads", "1", "--repeats", "2", "--results", str(tmp_path)]
    (report,) = overhead.main([*SMALL, *options])
    columns = ["figure", "engine", "bare loop", "ratio", "least", "largest"]
    assert_recorded(report, tmp_path, "overhead", "tiny, synthetic/sentiment", columns)
    figures = ["wall s", "CPU s", "wall s, with the cache"]
    assert [row["figure"] for row in report.table] == figures
    assert report.facts[common.APART] < common.CLOSE
    assert all(row["least"] <= row["ratio"] <= row["largest"] for row in report.table)


def small_experiment(*overrides):
    options = argparse.Namespace(clients=2, examples=12, rounds=2, threads=1, glue=None)
    return Experiment.load(overhead.experiment_of("tiny", options).to_toml(), overrides)


@pytest.mark.parametrize("representation", ["mean", "cls", "mask"])
def test_the_bare_loop_reads_every_representation(representation):
    report = overhead.measure(small_experiment(f"representation={representation}"), 1)
    assert report.facts[common.APART] < common.CLOSE


def test_a_bare_loop_that_trains_something_else_is_refused(monkeypatch):
    train = overhead.BareLoop.train
    monkeypatch.setattr(
        overhead.BareLoop, "train", lambda self, i, start, n: train(self, 0, start, n)
    )
    with pytest.raises(SystemExit, match="apart from the engine"):
        overhead.measure(small_experiment(), 1)


def test_compare_takes_ratios_of_pairs_not_of_medians():
    row = common.compare("wall s", ("a", "b"), [1, 2, 30], [1, 1, 10])
    assert row == {"figure": "wall s", "a": 2, "b": 1, "ratio": 2, "least": 1, "largest": 3}


def test_both_sides_are_measured_in_turns():
    calls = []
    ones, others = common.alternate(lambda: calls.append("A"), lambda: calls.append("B"), 3)
    assert calls == ["A", "B"] * 3 and len(ones) == len(others) == 3


def test_difference_is_relative_to_the_update():
    start = np.full(4, 100.0)
    assert common.difference(start + 1.5, start + 1, start) == pytest.approx(0.5)


def test_a_second_run_of_a_case_replaces_it_and_keeps_the_others(tmp_path):
    for case, number in (("one", 1.0), ("two", 2.0), ("one", 3.0)):
        report = common.Report({}, [{"figure": case, "s": number}], {}, {})
        common.record("overhead", case, report, ["--threads", "1"], tmp_path)
    kept = json.loads((tmp_path / "overhead.json").read_text())
    assert {case: report["table"][0]["s"] for case, report in kept.items()} == {"one": 3, "two": 2}
    assert kept["one"]["command"] == "python -m simulations.benchmarks.overhead --threads 1"


def test_memory_of_one_simulation(capsys):
    memory.measure_process(["tiny", "2", "20"])
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found["peak"] >= found["loaded"] > found["backbone"] > 0


def test_slope_of_memory_is_for_100_clients():
    assert memory.slope({100: 500.0, 200: 503.0, 400: 509.0}) == pytest.approx(3)


@pytest.mark.slow
def test_memory_is_recorded(tmp_path):
    options = ["--sizes", "2", "3", "--examples", "120", "--backbone", "tiny", "--repeats", "1"]
    clients, backbone = memory.main([*options, "--results", str(tmp_path)])
    columns = ["clients", "loaded MB", "peak MB", "least", "largest", "ratio"]
    assert_recorded(clients, tmp_path, "memory", "further clients, tiny", columns)
    assert_recorded(backbone, tmp_path, "memory", "one backbone, tiny", columns)
    assert [row["clients"] for row in clients.table] == [2, 3]
    assert [row["clients"] for row in backbone.table] == [memory.FEW, memory.MANY]
    assert np.isfinite(clients.facts["MB for 100 further clients"])


@pytest.mark.slow
def test_memory_does_not_start_from_the_parents_peak():
    """As getrusage's does on Linux: this process is made larger than the child will be."""
    ballast = np.ones(100_000_000)
    (found,) = memory.in_processes("tiny", [2], 20, 1)[2]
    assert found["peak"] < ballast.nbytes / 1e6


@pytest.mark.slow
def test_engines_are_recorded(tmp_path):
    pytest.importorskip("ray")
    options = ["--backbone", "tiny", "--workers", "1", "--repeats", "1"]
    (report,) = engines.main([*SMALL, *options, "--results", str(tmp_path)])
    columns = ["figure", "ray", "local", "ratio", "least", "largest"]
    assert_recorded(report, tmp_path, "engines", "tiny", columns)
    assert [row["figure"] for row in report.table] == [*engines.FIGURES]
    assert report.facts[common.APART] < common.CLOSE


@pytest.mark.parametrize("module", [overhead, engines, memory])
def test_help_shows_the_example(module, capsys):
    with pytest.raises(SystemExit) as stopped:
        module.main(["--help"])
    assert stopped.value.code == 0
    assert f"python -m {module.__name__}" in capsys.readouterr().out


def test_one_round_has_no_ordinary_round():
    with pytest.raises(SystemExit):
        engines.main(["--rounds", "1"])


@pytest.mark.slow
def test_methods_are_compared_and_finished_runs_are_kept(tmp_path):
    """Each run is a process of its own; a second call only reads what the first one left."""
    options = ["--backbone", "tiny", "--task", "synthetic/sentiment", "--methods", "lora", "full"]
    sizes = ["--examples", "40", "--epochs", "1", "--seeds", "2", "--repeats", "1"]
    folders = ["--work", str(tmp_path / "work"), "--results", str(tmp_path)]
    report = methods.main([*options, *sizes, *folders])
    columns = [*report.table[0]]
    assert_recorded(report, tmp_path, "methods", "tiny, synthetic/sentiment", columns)
    lora, full = report.table
    assert (lora["parameters"], full["parameters"]) == (256, 31_808)
    assert full["memory of full"] == 1
    times = {kept: kept.stat().st_mtime_ns for kept in (tmp_path / "work").iterdir()}
    assert methods.main([*options, *sizes, *folders]).table == report.table
    assert times == {kept: kept.stat().st_mtime_ns for kept in (tmp_path / "work").iterdir()}


def test_a_kept_run_of_other_settings_is_done_again(tmp_path, monkeypatch):
    monkeypatch.setattr(methods, "source_digest", lambda: "here")
    kept = tmp_path / "lora-memory.json"
    shared = ["backbone=tiny", "task.name=synthetic/sentiment", "method.name=lora"]
    few = [*shared, "task.train_limit=40"]
    first = methods.in_process("memory_process", few, kept)
    assert first["peak"] > 0 and first["source"] == "here"
    changed = {"arguments": ["memory_process", *few], "result": {"peak": 1.0}}
    kept.write_text(json.dumps(changed))
    assert methods.in_process("memory_process", few, kept) == {"peak": 1.0}
    more = [*shared, "task.train_limit=60"]
    assert methods.in_process("memory_process", more, kept)["peak"] > 1
