"""Processes that die at a counted operation on files: at the same moment on every machine.

What a killed process leaves are its files, so operations on them are all moments that differ.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

_OPERATIONS = {"open", "os.rename", "os.remove", "os.truncate", "os.mkdir"}


def die_at(folder: str, rounds: int, operations: int = 0, parent: bool = False) -> None:
    """Kill this process as it begins an operation on a file.

    Args:
        folder: operations elsewhere do not count.
        rounds: the process first writes so many lines of ``rounds.jsonl``.
        operations: so many further operations are done.
        parent: kill the parent of this process instead.
    """
    written, left = 0, operations

    def watch(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal written, left
        if event not in _OPERATIONS or not str(arguments[0]).startswith(folder):
            return
        if written >= rounds:
            left -= 1
            if left == -1:
                os.kill(os.getppid() if parent else os.getpid(), signal.SIGKILL)
        lines = event == "open" and str(arguments[0]).endswith("rounds.jsonl")
        written += lines and arguments[1] == "a"

    sys.addaudithook(watch)


def dying_processes(at: Path, folder: Path, rounds: int, parent: bool = False) -> dict[str, str]:
    """Return the environment of Python processes that call ``die_at`` when they start.

    Args:
        at: new folder for the module that does it; the pids of the processes are in ``at/pids``.
        folder: see ``die_at``.
        rounds: see ``die_at``.
        parent: see ``die_at``.
    """
    at.mkdir()
    (at / "sitecustomize.py").write_text(
        "import os\nfrom dying import die_at\n"
        f"with open({str(at / 'pids')!r}, 'a') as file:\n    print(os.getpid(), file=file)\n"
        f"die_at({str(folder)!r}, {rounds}, parent={parent})\n"
    )
    path = [str(at), str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    return {"PYTHONPATH": os.pathsep.join(filter(None, path))}
