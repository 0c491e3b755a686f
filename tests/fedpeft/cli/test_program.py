"""The installed program: Ctrl-C at any moment ends it with one line and exit code 130."""

from __future__ import annotations

import subprocess
import sys
import tomllib
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
        if name == 'typer':
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
    defaults = {"handler": "default_int_handler", "at_import": "pass", "late": "None"}
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
