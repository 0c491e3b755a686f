"""`fedpeft study` as a user runs it: killed and run again, a user's own file, wrong input."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from dying import dying_processes
from small_studies import BASE, GRID

from deployment.processes import alive, descendants
from fedpeft.cli.app import main

CLI = [sys.executable, "-c", "from fedpeft.cli.app import main; main()", "study"]
PATIENCE = 300.0  # seconds, on a machine of any speed


def wait_until(reached: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not reached():
        assert time.monotonic() < end, f"not reached within {PATIENCE:g} s"
        time.sleep(0.05)


def study(*arguments: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*CLI, *map(str, arguments)], capture_output=True, text=True, cwd=cwd)


@pytest.mark.long
def test_a_study_killed_at_any_point_and_resumed_has_the_same_table(tmp_path: Path) -> None:
    """Kills after some rounds; the workers die with the study, and nothing is lost."""
    file = tmp_path / "grid.toml"
    file.write_text(
        GRID.replace("rounds = 2", "rounds = 12") + "[search]\nover.local.lr = [0.01, 0.1]\n"
        "set.federation.rounds = 6\n"
    )
    whole = study("run", file, "--out", tmp_path / "whole", "--jobs", 2)
    assert whole.returncode == 0, whole.stderr
    out, resume = tmp_path / "out", []
    # All together fewer than the rounds of half of the study: each worker counts its own.
    for rounds in (1, 4, 8):
        at = tmp_path / f"kill-{rounds}"
        dying = dying_processes(at, out, rounds, parent=True)
        done = subprocess.run(
            [*CLI, "run", str(file), "--out", str(out), "--jobs", "2", *resume],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=os.environ | dying,
        )
        assert done.returncode == -signal.SIGKILL
        processes = [int(pid) for pid in (at / "pids").read_text().split()]
        assert len(processes) > 1  # the study, and workers that have started
        wait_until(lambda pids=processes: not any(map(alive, pids)))  # type: ignore[misc]
        resume = ["--resume"]
    last = study("run", file, "--out", out, "--jobs", 1, "--resume")
    assert last.returncode == 0, last.stderr
    for name in ("table.csv", "table.parquet", "best.json"):
        assert (out / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


@pytest.mark.long
def test_an_interrupted_study_says_so_and_leaves_no_process(tmp_path: Path) -> None:
    file = tmp_path / "grid.toml"
    file.write_text(GRID.replace("rounds = 2", "rounds = 100000"))
    process = subprocess.Popen(
        [*CLI, "run", str(file), "--out", str(tmp_path / "out")],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    wait_until(lambda: bool([*tmp_path.glob("out/cells/*/rounds.jsonl")]))
    workers = descendants(process.pid)
    assert workers
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    again = f"fedpeft study run {file} --out {tmp_path / 'out'} --jobs 1 --resume"
    assert said == f"interrupted; finished runs are kept; `{again}` continues\n"
    wait_until(lambda: not any(map(alive, workers)))
    described = study("status", tmp_path / "out", "--json")
    assert json.loads(described.stdout)["cells"] == {"unfinished": 1, "waiting": 3}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[axes]\nlocal.rate = [1]", "unknown key 'local.rate'; valid: local."),
        ("[axes]\nseed = []", "axes.seed = []: an empty axis leaves no cells"),
        ('[axes]\na = [{ label = "x", seed = 1 }, { label = "y", seed = 1 }]', "the same settings"),
        ("", "no cells: expected [axes]"),
        ("[axes]\nmethod.d = [4, 100000]", "cell with method.d '100000': method.d = 100000: slash"),
        ('[axes]\nbackbone = ["tiny", "./none"]', "backbone './none': no such folder"),
        ('[axes]\ntask.name = ["synthetic/sentiment", "ssst2"]', "unknown task"),
        ('base.task.path = "none"\n[axes]\ntask.name = ["rte"]', "no file for task 'rte'"),
        ('base.task.path = "none"\n[axes]\ntask.name = ["conll2003"]', "no file for task"),
        (
            'base.task = { name = "custom", train = "none.csv" }\n[axes]\nseed = [0]',
            "cell with seed '0': task.train = 'none.csv': no such file; the path is relative to",
        ),
        (
            'base.task.name = "synthetic/similarity"\n[axes]\npartition.kind = ["dirichlet"]',
            "partition.kind = 'dirichlet' needs classes",
        ),
        ("[axes]\ntask.max_length = [99, 999]", "task.max_length = 999: 'tiny' reads at most 130"),
        (
            "[axes]\nseed = [0]\n[search]\nover.method.d = [4, 100000]",
            "cell with trial 'd=100000': method.d = 100000: slash",
        ),
    ],
)
def test_wrong_input_is_one_line_with_exit_code_2_and_writes_nothing(
    text: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "s.toml").write_text(text)
    arguments = ["study", "run", str(tmp_path / "s.toml"), "--out", str(tmp_path / "out")]
    arguments += [] if "backbone" in text else ["-sbackbone=tiny"]
    arguments += [] if "method" in text else ["-smethod.name=linear"]
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {tmp_path}/s.toml: ") and said in line
    assert not (tmp_path / "out").exists()


def test_a_missing_search_section_and_a_folder_without_a_study_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "s.toml").write_text(BASE + "[axes]\nseed = [0]\nmethod.d = [4]")
    for command, said in [
        (["search", str(tmp_path / "s.toml")], "no [search]; use `fedpeft study run`"),
        (["status", str(tmp_path)], "holds no study (study.toml)"),
        (["run", str(tmp_path / "none.toml")], "no study file"),
        (["run", str(tmp_path / "s.toml"), "--out", str(tmp_path)], "is not empty and holds no"),
        (
            ["run", str(tmp_path / "s.toml"), "--out", str(tmp_path / "s.toml")],
            "s.toml': is a file; expected a folder",
        ),
    ]:
        with pytest.raises(SystemExit) as ended:
            main(["study", *command])
        assert ended.value.code == 2
        assert said in capsys.readouterr().err


@pytest.mark.long
def test_a_finished_study_can_be_resumed_without_its_data(tmp_path: Path) -> None:
    data = tmp_path / "data.csv"
    data.write_text("text,label\n" + "good,1\nbad,0\n" * 30)
    file = tmp_path / "s.toml"
    file.write_text(
        BASE + f'method.name = "linear"\ntask.name = "custom"\ntask.train = "{data}"\n'
        "[axes]\nseed = [0]"
    )
    main(["study", "run", str(file), "--out", str(tmp_path / "out")])
    data.unlink()
    main(["study", "run", str(file), "--out", str(tmp_path / "out"), "--resume"])


@pytest.mark.slow
def test_a_failed_cell_ends_the_command_with_exit_code_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "s.toml").write_text(
        BASE + 'method.name = "linear"\n[axes]\nfederation.clients = [3, 61]'
    )
    with pytest.raises(SystemExit) as ended:
        main(["study", "run", str(tmp_path / "s.toml"), "--out", str(tmp_path / "out")])
    assert ended.value.code == 1
    out, err = capsys.readouterr()
    assert "failed: federation.clients = 61 with partition.min_examples" in out
    assert err == ("stopped: 1 runs of the study have no result; correct the causes above first\n")
    assert (tmp_path / "out" / "table.csv").exists()
