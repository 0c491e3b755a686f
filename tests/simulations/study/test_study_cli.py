"""`fedpeft study` as a user runs it: killed and run again, a user's own file, wrong input."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from small_studies import BASE, GRID

from fedpeft.cli import main
from simulations.processes import alive, descendants

CLI = [sys.executable, "-c", "from fedpeft.cli import main; main()", "study"]


def study(*arguments: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*CLI, *map(str, arguments)], capture_output=True, text=True, cwd=cwd)


@pytest.mark.slow
def test_killed_at_any_point_and_run_again_it_gives_the_same_table(tmp_path: Path) -> None:
    """Kills after different times; the workers die with the study, and nothing is lost."""
    file = tmp_path / "grid.toml"
    file.write_text(
        GRID.replace("rounds = 2", "rounds = 150") + "[search]\nover.local.lr = [0.01, 0.1]\n"
        "set.federation.rounds = 40\n"
    )
    whole = study("run", file, "--out", tmp_path / "whole", "--jobs", 2)
    assert whole.returncode == 0, whole.stderr
    out, resume = tmp_path / "out", []

    def rounds_done() -> int:
        return sum(path.read_bytes().count(b"\n") for path in out.rglob("rounds.jsonl"))

    for more in (1, 30, 60, 200):
        process = subprocess.Popen(
            [*CLI, "run", str(file), "--out", str(out), "--jobs", "2", *resume],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        wanted = rounds_done() + more
        while process.poll() is None and rounds_done() < wanted:
            time.sleep(0.02)
        workers = descendants(process.pid)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL and workers
        resume = ["--resume"]
        until = time.monotonic() + 10
        while any(map(alive, workers)) and time.monotonic() < until:
            time.sleep(0.05)
        assert not any(map(alive, workers))
    last = study("run", file, "--out", out, "--jobs", 1, "--resume")
    assert last.returncode == 0, last.stderr
    for name in ("table.csv", "table.parquet", "best.json"):
        assert (out / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


@pytest.mark.slow
def test_interrupted_it_says_so_and_leaves_no_process(tmp_path: Path) -> None:
    file = tmp_path / "grid.toml"
    file.write_text(GRID.replace("rounds = 2", "rounds = 100000"))
    process = subprocess.Popen(
        [*CLI, "run", str(file), "--out", str(tmp_path / "out")],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    until = time.monotonic() + 60
    while not [*tmp_path.glob("out/cells/*/rounds.jsonl")] and time.monotonic() < until:
        time.sleep(0.1)
    workers = descendants(process.pid)
    assert workers
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 130
    again = f"fedpeft study run {file} --out {tmp_path / 'out'} --jobs 1 --resume"
    assert said == f"interrupted; what is finished stays; `{again}` goes on\n"
    assert not any(map(alive, workers))
    found = study("status", tmp_path / "out", "--json")
    assert json.loads(found.stdout)["cells"] == {"unfinished": 1, "waiting": 3}


@pytest.mark.slow
def test_the_readmes_ten_lines_and_a_table_of_ones_own_make_a_study_and_a_report(
    tmp_path: Path,
) -> None:
    readme = (Path(__file__).parents[3] / "README.md").read_text(encoding="utf-8")
    text = readme.split("```toml\ntitle")[1].split("```")[0]
    assert len(text.splitlines()) <= 10
    (tmp_path / "reviews.toml").write_text(f"title{text}")
    rows = [f'"a {word} day, number {n}",{word}' for n in range(30) for word in ("fine", "bad")]
    (tmp_path / "reviews.csv").write_text("\n".join(["text,label", *rows]) + "\n")
    few = ["-s", "federation.rounds=2", "-s", "engine.threads=1"]
    done = study("run", "reviews.toml", *few, "--jobs", 2, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "[8/8]" in done.stdout and "all done" in done.stdout
    assert "slash: accuracy " in done.stdout and "over 2 seeds" in done.stdout
    folder = tmp_path / "runs" / "studies" / "reviews"
    drawn = subprocess.run([*CLI[:-1], "report", str(folder)], capture_output=True, text=True)
    assert drawn.returncode == 0, drawn.stderr
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert "Which method for my reviews?" in page and "bitfit" in page
    assert "number 7" not in page  # nobody's text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[axes]\nlocal.rate = [1]", "unknown key 'local.rate'; did you mean 'local.lr'"),
        ("[axes]\nseed = []", "axes.seed = []: an empty axis leaves no cells"),
        ('[axes]\na = [{ label = "x", seed = 1 }, { label = "y", seed = 1 }]', "the same settings"),
        ("", "no cells: expected [axes]"),
    ],
)
def test_wrong_input_is_one_line_with_exit_code_2_and_writes_nothing(
    text: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "s.toml").write_text(text)
    with pytest.raises(SystemExit) as ended:
        main(["study", "run", str(tmp_path / "s.toml"), "--out", str(tmp_path / "out")])
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {tmp_path}/s.toml: ") and said in line
    assert not (tmp_path / "out").exists()


def test_a_search_without_one_and_a_folder_that_is_no_study_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "s.toml").write_text(BASE + "[axes]\nseed = [0]\nmethod.d = [4]")
    for command, said in [
        (["search", str(tmp_path / "s.toml")], "has no [search]; `fedpeft study run` runs"),
        (["status", str(tmp_path)], "holds no study (study.toml)"),
        (["run", str(tmp_path / "none.toml")], "no study file"),
        (["run", str(tmp_path / "s.toml"), "--out", str(tmp_path)], "is not empty and holds no"),
    ]:
        with pytest.raises(SystemExit) as ended:
            main(["study", *command])
        assert ended.value.code == 2
        assert said in capsys.readouterr().err


@pytest.mark.slow
def test_a_failed_cell_ends_the_command_with_exit_code_1(tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text(
        BASE + '[axes]\nmethod.d = [4, 100000]\nmethod.name = ["slash"]'
    )
    done = study("run", tmp_path / "s.toml", "--out", tmp_path / "out")
    assert done.returncode == 1
    assert "failed: method.d = 100000: slash shifts" in done.stdout
    assert done.stderr.startswith("stopped: without a result: 1 of the study's runs; try --resume")
    assert (tmp_path / "out" / "table.csv").exists()
