"""Seconds of a command and all processes it starts, including daemons (Linux).

A small process runs the command and adopts orphaned processes (PR_SET_CHILD_SUBREAPER) such as
Ray's daemons, so all stay in one process tree. Five times per second it reads the CPU seconds of
each process from /proc, and finally sums the last readings. ``RUSAGE_CHILDREN`` would miss children
that were not waited for. The last fifth of a second of a process is missed: 2 % less than the
kernel's accounting (cpuacct) for a simulation on Ray.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_ADOPT = 36  # PR_SET_CHILD_SUBREAPER, from linux/prctl.h
_LOOK = 0.2  # seconds between two readings
_LINGER = 20.0  # seconds for daemons to exit after the command
_PARENT, _TIMES = 1, slice(11, 13)  # in /proc/PID/stat behind the name: ppid; utime and stime
_START = 19  # likewise, starttime: pids are reused


@dataclass(frozen=True)
class Usage:
    """Wall-clock seconds of a command, CPU seconds of all its processes, and its output."""

    wall: float
    cpu: float
    output: str


def usage_of(command: Sequence[str], environment: Mapping[str, str]) -> Usage:
    """Run a command and measure it.

    Args:
        command: what to run.
        environment: added to that of this process.

    Raises:
        RuntimeError: it failed; the message holds the end of what it printed.
    """
    watcher = [sys.executable, "-m", "simulations.benchmarks.parts.usage", *command]
    done = subprocess.run(
        watcher, capture_output=True, text=True, env={**os.environ, **environment}
    )
    *lines, last = done.stdout.splitlines() or [""]
    output = "\n".join(lines) + done.stderr
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)[:200]}: {output[-2000:]}")
    return Usage(**json.loads(last), output=output)


def readings() -> dict[tuple[int, str], tuple[int, float]]:
    """Return (pid, start) -> (parent's pid, CPU seconds so far) of all running processes."""
    processes = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has exited
            fields = path.read_text().rpartition(")")[2].split()
            ticks = sum(map(int, fields[_TIMES]))
            key = int(path.parent.name), fields[_START]
            processes[key] = int(fields[_PARENT]), ticks / os.sysconf("SC_CLK_TCK")
    return processes


def below(pid: int) -> dict[tuple[int, str], float]:
    """Return the CPU seconds so far of all descendants of a process."""
    descendants: dict[tuple[int, str], float] = {}
    everything, parents = readings(), {pid}
    while parents:
        children = {
            key: seconds for key, (parent, seconds) in everything.items() if parent in parents
        }
        descendants |= children
        parents = {number for number, _ in children}
    return descendants


def watch(command: Sequence[str]) -> int:
    """Run a command to its end and print its seconds as JSON; return its exit code."""
    if ctypes.CDLL(None, use_errno=True).prctl(_ADOPT, 1, 0, 0, 0):
        raise OSError("this system does not let a process adopt others")
    seconds: dict[tuple[int, str], float] = {}
    began = time.perf_counter()
    process = subprocess.Popen(command)
    wall, code = 0.0, None
    while code is None:
        with suppress(subprocess.TimeoutExpired):
            code = process.wait(_LOOK)
            wall = time.perf_counter() - began
        seconds |= below(os.getpid())
    deadline = time.perf_counter() + _LINGER
    while left := _adopted():
        seconds |= below(os.getpid())
        if time.perf_counter() > deadline:
            for pid in left:
                os.kill(pid, signal.SIGKILL)
        time.sleep(_LOOK)
    print(json.dumps({"wall": wall, "cpu": sum(seconds.values())}))
    return code


def _adopted() -> list[int]:
    """Return the adopted processes that still run; reap the others."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    return [pid for pid, _ in below(os.getpid())]


if __name__ == "__main__":
    sys.exit(watch(sys.argv[1:]))
