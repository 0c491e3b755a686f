"""Many nodes on this machine: CPU and memory of the server's gateway and of Flower's SuperLink.

Every node is a real one (tunnel, SuperNode, superexec), but one resident worker answers for all, as
50 workers with PyTorch need more memory than this machine has. The nodes share the cores with the
server, so seconds a round say nothing about a server of its own; CPU seconds and memory do.

Example:
    python -m simulations.benchmarks.fleet --nodes 50 --rounds 20
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median

from clients.folder import NodeFolder
from simulations.benchmarks.common import Report, Row, arguments_of, record, script
from simulations.benchmarks.deployment import DATA, settings_of
from simulations.loopback import Deployment, deployment, until

PARTS = {"gateway": "server.host.gateway", "SuperLink": "flower-superlink"}
IDLE = 60.0  # seconds
_STARTED_AT_ONCE = 3  # nodes
_TICK = os.sysconf("SC_CLK_TCK")


def main(arguments: Sequence[str] | None = None) -> Report:
    """Run the benchmark from its command line."""
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = arguments_of(__doc__)
    parser.add_argument("--nodes", type=int, default=50, help="number of nodes (50)")
    parser.add_argument("--rounds", type=int, default=20, help="rounds of the run (20)")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as home, deployment(Path(home)) as made:
        report = measure(made, options)
    record("fleet", f"{options.nodes} nodes", report, arguments, options.results)
    return report


def measure(made: Deployment, options: argparse.Namespace) -> Report:
    """Start the nodes, wait with them, and run an experiment in which all take part."""
    pids = {part: made.pids("server", program)[0] for part, program in PARTS.items()}
    empty = {part: memory(pid) for part, pid in pids.items()}
    start_nodes(made, [f"n{number}" for number in range(options.nodes)])
    time.sleep(10)  # they activate themselves
    before, began = cpu(pids), time.monotonic()
    time.sleep(IDLE)
    waiting = share(before, cpu(pids), time.monotonic() - began)
    settings = [*settings_of("tiny", options.rounds), f"federation.clients={options.nodes}"]
    before, began = cpu(pids), time.monotonic()
    largest = {part: memory(pid) for part, pid in pids.items()}
    process = made.submit("trial", settings)
    while process.poll() is None:
        largest = {part: max(largest[part], memory(pid)) for part, pid in pids.items()}
        time.sleep(0.5)
    seconds, after = time.monotonic() - began, cpu(pids)
    made.finish("trial")
    rounds = made.rounds("trial")
    table: list[Row] = [
        {
            "process": part,
            "MB before nodes": round(empty[part], 1),
            "largest MB": round(largest[part], 1),
            "CPU of a core, waiting": f"{waiting[part]:.1%}",
            "CPU s a round": round((after[part] - before[part]) / len(rounds), 3),
            "CPU ms a client and round": round(
                1000 * (after[part] - before[part]) / len(rounds) / options.nodes, 2
            ),
        }
        for part in PARTS
    ]
    facts = {
        "the run": f"{len(rounds)} rounds in {seconds:.0f} s with start and evaluation, "
        f"median {median(line['seconds'] for line in rounds):.1f} s a round",
        "clients that failed": sum(len(line["failed"]) for line in rounds),
    }
    about = {"nodes": options.nodes, "rounds": options.rounds, "backbone": "tiny"}
    return Report(about, table, facts, {"rounds": [line["seconds"] for line in rounds]})


def start_nodes(made: Deployment, names: Sequence[str]) -> None:
    """Start the nodes; the first one's worker answers for all."""
    data = made.folder / "data.tsv"
    lines = [
        f"{'good' if k % 2 else 'bad'} film {k}\t{('negative', 'positive')[k % 2]}"
        for k in range(40)
    ]
    data.write_text("\n".join(["text\tlabel", *lines]) + "\n", encoding="utf-8")
    options = (*DATA, str(data), "--backbone", "tiny")

    def start(name: str) -> None:
        made.add_node(name)
        made.start_node(name, *options, *(() if name == names[0] else ("--no-worker",)))

    start(names[0])
    worker = NodeFolder(made.node(names[0])).socket
    until(worker.exists, "the worker")
    with ThreadPoolExecutor(_STARTED_AT_ONCE) as pool:
        list(pool.map(start, names[1:]))
    for name in names[1:]:
        NodeFolder(made.node(name)).socket.symlink_to(worker)


def cpu(pids: Mapping[str, int]) -> dict[str, float]:
    """Return the CPU seconds that each process has used."""
    seconds = {}
    for part, pid in pids.items():
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        seconds[part] = (int(fields[11]) + int(fields[12])) / _TICK
    return seconds


def share(
    before: Mapping[str, float], after: Mapping[str, float], seconds: float
) -> dict[str, float]:
    """Return the share of a core that each process has used."""
    return {part: (after[part] - before[part]) / seconds for part in before}


def memory(pid: int) -> float:
    """Return a process's resident memory in MB."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1000


if __name__ == "__main__":
    script(main)
