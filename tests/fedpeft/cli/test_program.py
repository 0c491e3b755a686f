"""The installed program: Ctrl-C at any moment ends it with one line and exit code 130."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
#: A process that gets Ctrl-C in ``interrupt``, as if it were typed at that moment.
_PREPARED = """
import atexit, os, signal, sys
signal.signal(signal.SIGINT, signal.{handler})

def interrupt():
    os.kill(os.getpid(), signal.SIGINT)

class Importing:
    def find_spec(self, name, path, target=None):
        if name == {module!r}:
            {at_import}

class Late:
    def __del__(self, kill=os.kill, pid=os.getpid(), number=signal.SIGINT):
        kill(pid, number)

sys.meta_path.insert(0, Importing())
late = {late}
"""


def program(*arguments: str, **prepared: str) -> subprocess.CompletedProcess[str]:
    """Run the program of pyproject.toml in a process prepared by ``_PREPARED``."""
    entry = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]["fedpeft"]
    module, _, function = entry.partition(":")
    defaults = {"handler": "default_int_handler", "module": "typer", "at_import": "0", "late": "0"}
    code = _PREPARED.format(**(defaults | prepared))
    code += f"from {module} import {function}\nsys.exit({function}())"
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.mark.parametrize(
    "moment", ["interrupt()", "atexit.register(interrupt)"], ids=["start", "end"]
)
def test_ctrl_c_while_it_starts_or_ends_is_one_line(moment: str) -> None:
    done = program("--version", at_import=moment)
    assert (done.returncode, done.stderr) == (130, "interrupted\n")
    assert done.stdout.startswith("fedpeft ") == ("atexit" in moment)


def test_nothing_is_left_to_interrupt_after_the_last_moment() -> None:
    done = program("--version", late="Late()")
    assert (done.returncode, done.stderr) == (0, "") and done.stdout.startswith("fedpeft ")


def test_a_program_that_ignores_ctrl_c_goes_on() -> None:
    """As a shell starts it in the background."""
    done = program("--version", at_import="interrupt()", handler="SIG_IGN")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(("arguments", "code"), [(["--nonsense"], 2), (["tasks"], 0)])
def test_exit_codes_are_kept(arguments: list[str], code: int) -> None:
    done = program(*arguments)
    assert done.returncode == code and done.stderr.count("\n") == (code > 0)


@pytest.mark.slow
def test_ctrl_c_while_plots_are_drawn_says_that_the_run_is_complete(
    fedpeft: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    out = tmp_path / "run"
    small = ("backbone=tiny", "task.train_limit=60", "task.eval_limit=20", "method.d=8")
    short = ("federation.clients=2", "federation.rounds=1", "engine.threads=1")
    options = [part for one in (*small, *short) for part in ("-s", one)]
    drawing = {"module": "matplotlib.figure", "at_import": "interrupt()"}
    done = program("simulate", *options, "--out", str(out), **drawing)
    again = f"fedpeft simulate --out {out} --resume"
    said = f"interrupted; the run is complete; {again} draws its plots\n"
    assert (done.returncode, done.stderr) == (130, said)
    assert done.stdout.endswith(f"results: {out}\n") and not (out / "plots" / "curves.png").exists()
    assert fedpeft(*again.split()[1:])[0] == 0
    assert (out / "plots" / "curves.png").exists()
