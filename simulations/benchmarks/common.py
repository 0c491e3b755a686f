"""Shared parts of the benchmarks: alternating timing, ratios, machine data, and result files.

``results/NAME.json`` holds the report of each case of a benchmark (such as a backbone) with its
command, machine and versions; ``results/NAME.md`` shows the same as tables.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

import numpy as np

from fedpeft.errors import UserError
from fedpeft.files import write_atomic, write_json

RESULTS = Path(__file__).parent / "results"
APART = "difference of the final vectors, relative to the update"
CLOSE = 1e-3  # largest value if both sides trained the same
PACKAGES = ("fedpeft", "flwr", "torch", "transformers", "numpy", "ray")

Row = dict[str, Any]
ResultT = TypeVar("ResultT")


@dataclass(frozen=True)
class Timing:
    """Wall-clock seconds of one call, and CPU seconds of all its threads."""

    wall: float
    cpu: float


@dataclass(frozen=True)
class Report:
    """One case of a benchmark: settings, table, single facts, and all measurements."""

    settings: dict[str, Any]
    table: list[Row]
    facts: dict[str, Any]
    raw: dict[str, Any]


def positive(text: str) -> int:
    """Return the value of an option that is a whole number of at least 1."""
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text}: expected a whole number of at least 1")
    return int(text)


def arguments_of(doc: str | None, repeats: int | None = 5) -> argparse.ArgumentParser:
    """Return a parser with the options of every benchmark.

    Args:
        doc: the script's docstring.
        repeats: default of ``--repeats``; None for a benchmark that measures nothing twice.
    """
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    if repeats is not None:
        text = f"measurements of each side, or seeds ({repeats})"
        parser.add_argument("--repeats", type=positive, default=repeats, help=text)
    parser.add_argument(
        "--results", type=Path, default=RESULTS, help="folder of the JSON and Markdown files"
    )
    return parser


def script(main: Callable[[], object]) -> None:
    """Run a benchmark as a command; a UserError becomes one line and exit code 2."""
    try:
        main()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)


def timed(call: Callable[[], ResultT]) -> tuple[Timing, ResultT]:
    """Call once; return its timing and its result."""
    wall, cpu = time.perf_counter(), time.process_time()
    result = call()
    return Timing(time.perf_counter() - wall, time.process_time() - cpu), result


def child(code: str, *arguments: str) -> list[str]:
    """Return the command of a fresh Python process that runs ``code``."""
    return [sys.executable, "-c", code, *arguments]


def child_json(code: str, *arguments: str) -> Any:
    """Return the value of the last line, JSON, that ``code`` prints in a fresh Python process.

    Raises:
        RuntimeError: the process failed.
    """
    done = subprocess.run(child(code, *arguments), capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(arguments)}: {done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def alternate(
    one: Callable[[], ResultT], other: Callable[[], ResultT], repeats: int
) -> tuple[list[ResultT], list[ResultT]]:
    """Call both alternately, so that changes of the machine's load affect both."""
    pairs = [(one(), other()) for _ in range(repeats)]
    return [first for first, _ in pairs], [second for _, second in pairs]


def compare(
    figure: str, names: tuple[str, str], above: Sequence[float], below: Sequence[float]
) -> Row:
    """Return a row of the table: both medians, and the median, least and largest ratio of pairs."""
    ratios = [a / b for a, b in zip(above, below, strict=True)]
    return {
        "figure": figure,
        names[0]: round(median(above), 4),
        names[1]: round(median(below), 4),
        "ratio": round(median(ratios), 4),
        "least": round(min(ratios), 4),
        "largest": round(max(ratios), 4),
    }


def difference(actual: np.ndarray, expected: np.ndarray, start: np.ndarray) -> float:
    """Return the distance of two task vectors relative to the update from ``start``."""
    return float(np.linalg.norm(actual - expected) / np.linalg.norm(expected - start))


def record(name: str, case: str, report: Report, arguments: Sequence[str], folder: Path) -> None:
    """Print a report and write it to the benchmark's files, replacing that of the same case."""
    path = folder / f"{name}.json"
    cases = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    cases[case] = {
        "command": shlex.join(["python", "-m", f"simulations.benchmarks.{name}", *arguments]),
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "machine": machine(),
        "versions": versions(),
        **asdict(report),
    }
    folder.mkdir(parents=True, exist_ok=True)
    write_json(path, cases)
    write_atomic(folder / f"{name}.md", markdown(name, cases))
    print(markdown(name, {case: cases[case]}))


def machine() -> dict[str, Any]:
    """Return data of the machine; the load shows whether other programs were running."""
    return {
        "cpu": _cpu_model(),
        **_gpu_model(),
        "cores": os.cpu_count(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "system": platform.platform(),
        "load": [round(load, 2) for load in os.getloadavg()],  # of 1, 5 and 15 minutes, at the end
    }


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that are installed."""
    installed = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            installed[package] = version(package)
        except PackageNotFoundError:
            continue
    return installed


def markdown(name: str, cases: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the cases of a benchmark as Markdown."""
    parts = [f"# {name}"]
    for case, report in cases.items():
        parts += [f"## {case}", _table(report["table"]), _list(report["facts"])]
        about = {
            "command": f"`{report['command']}`",
            "date": report["date"],
            "machine": _line(report["machine"]),
            "versions": _line(report["versions"]),
            "settings": _line(report["settings"]),
        }
        parts.append(_list(about))
    return "\n\n".join(parts) + "\n"


def _table(rows: Sequence[Row]) -> str:
    lines = [[*rows[0]], ["---"] * len(rows[0]), *([*row.values()] for row in rows)]
    return "\n".join(f"| {' | '.join(map(_cell, line))} |" for line in lines)


def _cell(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _list(values: Mapping[str, Any]) -> str:
    return "\n".join(f"- {key}: {_cell(value)}" for key, value in values.items())


def _line(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} {_cell(value)}" for key, value in values.items())


def _cpu_model() -> str:
    path = Path("/proc/cpuinfo")
    if path.exists():
        for line in path.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _gpu_model() -> dict[str, str]:
    """Return the GPU that a benchmark with torch could use, if there is one."""
    torch = sys.modules.get("torch")
    return {"gpu": torch.cuda.get_device_name()} if torch and torch.cuda.is_available() else {}


def slash_d(backbone: str) -> str:
    """Return the d of the experiments: 1,024, or all that SLaSh shifts on the small ``tiny``."""
    return "max" if backbone == "tiny" else "1024"
