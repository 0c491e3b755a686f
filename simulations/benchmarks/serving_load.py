"""Latency and memory of ``fedpeft serve`` under load, while vectors are added and removed.

The server is a process of its own with thousands of SLaSh vectors; this process sends one text a
request. Each line of the table is a load: requests per second that arrive at random, or as many
clients as given, each of which sends its next request at once.

Example:
    python -m simulations.benchmarks.serving_load --glue ../shared/data/glue --seconds 600
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from fedpeft.page.ports import free_port
from simulations.benchmarks.common import Report, Row, arguments_of, record, script, slash_d
from simulations.benchmarks.parts.served_vectors import texts, vector_files
from simulations.benchmarks.parts.serving_load import Load, Target, command, load, percentile


@contextmanager
def server(options: argparse.Namespace, scratch: Path) -> Iterator[Target]:
    """Run a server in a process of its own while the context is open."""
    folder, operator, port = scratch / "vectors", scratch / "operator", free_port()
    folder.mkdir()
    settings = [
        *(f"backbone={options.backbone}", "task.name=sst2", "engine.device=cpu"),
        *("method.name=slash", f"method.d={options.d}"),
    ]
    for number, content in enumerate(vector_files(settings, options.vectors)):
        (folder / f"v{number}.safetensors").write_bytes(content)
    names = [f"v{number}" for number in range(options.vectors)]
    lines = texts(options.task, str(options.glue or ""), 872)
    given = ("--threads", str(options.threads), "--queue", "4096")
    cache = ("--cache-mb", str(options.cache_mb))
    with subprocess.Popen(
        command(folder, port, operator, *given, *cache),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            if "serving" not in process.stdout.readline():
                raise SystemExit("the server did not start")
            token = operator.read_text().strip()
            url = f"http://127.0.0.1:{port}"
            yield Target(url, process.pid, token, names, content, lines)
            process.terminate()
            if process.wait(60):
                raise SystemExit(f"the server ended with {process.returncode}")
        finally:
            process.kill()


def row_of(name: str, figures: Load, duration: float) -> Row:
    """Return the line of a load; errors are all statuses that are not expected."""
    expected = {"200", "removed", "add 201", "remove 200"}
    errors = sum(count for status, count in figures.statuses.items() if status not in expected)
    tenth = max(1, len(figures.memory) // 10)
    return {
        "load": name,
        "seconds": round(duration),
        "requests": len(figures.seconds),
        "requests/s": round(len(figures.seconds) / duration, 1),
        "p50 ms": percentile(figures.seconds, 50),
        "p99 ms": percentile(figures.seconds, 99),
        "errors": errors,
        "vectors added and removed": figures.changes,
        "MB, first tenth": round(median(figures.memory[:tenth])),
        "MB, last tenth": round(median(figures.memory[-tenth:])),
        "MB, most": round(max(figures.memory)),
    }


def main(arguments: Sequence[str] | None = None) -> Report:
    """Run the benchmark from its command line."""
    arguments = sys.argv[1:] if arguments is None else arguments
    options = _options(arguments)
    table: list[Row] = []
    raw: dict[str, object] = {}
    with tempfile.TemporaryDirectory() as scratch, server(options, Path(scratch)) as target:
        asyncio.run(load(target, 8, min(5.0, options.seconds)))  # warms up
        loads = [(f"{rate:g} requests/s", 64, rate) for rate in options.rates]
        loads += [(f"{count} clients", count, 0.0) for count in options.clients]
        for name, clients, rate in loads:
            start = time.perf_counter()
            figures = asyncio.run(load(target, clients, options.seconds, rate))
            table.append(row_of(name, figures, time.perf_counter() - start))
            raw[name] = {"statuses": dict(figures.statuses), "memory": figures.memory[::20]}
    names = ("backbone", "task", "d", "vectors", "threads", "cache_mb")
    report = Report({name: getattr(options, name) for name in names}, table, {}, raw)
    case = f"{options.backbone}, {options.cache_mb} MB of cache"
    record("serving_load", case, report, arguments, options.results)
    return report


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = arguments_of(__doc__, None)
    parser.add_argument("--backbone", default="minilm", help="minilm (default), tiny")
    parser.add_argument("--task", default="sst2", help="task of the texts (sst2)")
    parser.add_argument("--glue", type=Path, help="folder of GLUE files; default: download")
    parser.add_argument("--d", default="", help="SLaSh's d (minilm 1024, tiny max)")
    parser.add_argument("--vectors", type=int, default=10_000, help="task vectors (10000)")
    parser.add_argument("--seconds", type=float, default=60, help="seconds of each load (60)")
    parser.add_argument("--rates", type=float, nargs="*", default=[10], help="requests/s (10)")
    parser.add_argument("--clients", type=int, nargs="*", default=[32], help="clients (32)")
    parser.add_argument("--threads", type=int, default=0, help="torch threads; 0 = all cores (0)")
    parser.add_argument("--cache-mb", type=int, default=256, help="of realised vectors (256)")
    options = parser.parse_args(arguments)
    options.d = options.d or str(slash_d(options.backbone))
    return options


if __name__ == "__main__":
    script(main)
