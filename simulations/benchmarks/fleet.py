"""Many nodes on this machine: CPU and memory of the server's gateway and of Flower's SuperLink.

A node has a tunnel of its own, and sends the requests of a SuperNode from a thread of this process,
see parts/light_node.py. The nodes share the cores with the server, so seconds a round say little
about a server of its own; CPU seconds and memory do.

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
from pathlib import Path
from statistics import median

from clients.folder import NodeSettings
from deployment.loopback import Deployment, deployment
from simulations.benchmarks.common import Report, Row, arguments_of, record, script
from simulations.benchmarks.deployment import settings_of
from simulations.benchmarks.parts.light_node import LightNode

PARTS = {"gateway": "deployment.gateway", "SuperLink": "flower-superlink"}
LABELS = ("negative", "positive")
IDLE = 60.0  # seconds
_TICK = os.sysconf("SC_CLK_TCK")


def main(arguments: Sequence[str] | None = None) -> Report:
    """Run the benchmark from its command line."""
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = arguments_of(__doc__, None)
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
    nodes = start_nodes(made, [f"n{number}" for number in range(options.nodes)])
    time.sleep(20)  # they activate themselves
    before, began = cpu(pids), time.monotonic()
    time.sleep(IDLE)
    waiting = share(before, cpu(pids), time.monotonic() - began)
    settings = [*settings_of("tiny", options.rounds), f"federation.clients={options.nodes}"]
    began, after_first = time.monotonic(), dict[str, float]()
    largest = {part: memory(pid) for part, pid in pids.items()}
    process = made.submit("trial", settings)
    while process.poll() is None:
        largest = {part: max(largest[part], memory(pid)) for part, pid in pids.items()}
        after_first = after_first or (cpu(pids) if made.rounds("trial") else {})
        time.sleep(0.1)
    seconds, after = time.monotonic() - began, cpu(pids)
    made.finish("trial")
    ended = sum(node.ended for node in nodes)
    for node in nodes:
        node.tunnel.terminate()
        if node.failed:
            raise node.failed
    rounds = made.rounds("trial")
    used = {part: (after[part] - after_first[part]) / (len(rounds) - 1) for part in PARTS}
    table: list[Row] = [
        {
            "process": part,
            "MB before nodes": round(empty[part], 1),
            "largest MB": round(largest[part], 1),
            "CPU of a core, waiting": f"{waiting[part]:.1%}",
            "CPU s a round": round(used[part], 3),
            "CPU ms a client and round": round(1000 * used[part] / options.nodes, 2),
        }
        for part in PARTS
    ]
    facts = {
        "a round": "mean of all but the first, with the evaluation at the end",
        "the run": f"{len(rounds)} rounds in {seconds:.0f} s with its start and end, "
        f"median {median(line['seconds'] for line in rounds):.1f} s a round",
        "clients that failed": sum(len(line["failed"]) for line in rounds),
        "nodes that ended before the run": ended,
    }
    about = {"nodes": options.nodes, "rounds": options.rounds, "backbone": "tiny"}
    return Report(about, table, facts, {"rounds": [line["seconds"] for line in rounds]})


def start_nodes(made: Deployment, names: Sequence[str]) -> list[LightNode]:
    """Start nodes that hold 40 examples each."""
    data = made.folder / "data.tsv"
    lines = [f"film {number}\t{LABELS[number % 2]}" for number in range(40)]
    data.write_text("\n".join(["text\tlabel", *lines]) + "\n", encoding="utf-8")
    settings = NodeSettings(str(data), labels=LABELS, allow=("tiny",))
    nodes = []
    for name in names:
        made.add_node(name)
        made.node(name).mkdir(mode=0o700)
        key, ca = made.keys / name, made.keys / "ca.crt"
        nodes.append(LightNode(made.node(name), settings, key, ca, made.port))
    return nodes


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
