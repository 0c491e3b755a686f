"""Prometheus metrics of a server: its processes, its nodes, and its current runs.

All numbers come from the files of the runs and from the supervisor at the time of a scrape. No
counts are kept here, so they survive a restart of the server.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from deployment.hosting.processes import Supervisor
from deployment.operator.connection import Connection
from deployment.server.health import superlink_answers
from deployment.server.presence import ONLINE, Presence, last_seen
from deployment.server.runs import RUN_FILES, Run, is_over, read_run, run_folders
from fedpeft.errors import UserError
from fedpeft.page.run.state import signature
from server.members.registry import registered_nodes

if TYPE_CHECKING:
    from prometheus_client.core import Metric

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_RUNS = 10  # at most; a run has about 15 time series
# Name (after fedpeft_run_), key in the line of the last round, help.
_OF_LAST_ROUND: tuple[tuple[str, Literal["clients", "epsilon", "seconds"], str], ...] = (
    ("clients", "clients", "Clients whose updates the last round accepted."),
    ("epsilon", "epsilon", "Privacy spent: the largest epsilon of any client so far."),
    ("round_seconds", "seconds", "Duration of the last round in seconds."),
)


class Metrics:
    """A collector of a server's metrics with its own registry."""

    def __init__(self, state: Path, connection: Connection, supervisor: Supervisor):
        from prometheus_client import CollectorRegistry

        self.state, self.connection, self.supervisor = state, connection, supervisor
        self.presence = Presence(connection)
        self._read: dict[Path, tuple[object, Run]] = {}  # with the files' signature
        self.registry = CollectorRegistry(auto_describe=False)
        self.registry.register(self)

    def text(self) -> bytes:
        """Return all metrics in Prometheus's text format."""
        from prometheus_client import generate_latest

        return generate_latest(self.registry)

    def collect(self) -> Iterator[Metric]:
        """Yield the current metrics; called by the registry."""
        from prometheus_client.core import GaugeMetricFamily

        up = superlink_answers(self.connection)
        yield GaugeMetricFamily("fedpeft_up", "Whether the SuperLink answers (1 or 0).", value=up)
        yield from self._children()
        runs = self._runs()
        yield from _nodes(self.state, runs, self.presence.known() if up else {})
        yield from _of_runs(runs)
        yield _sent(runs)

    def _runs(self) -> list[Run]:
        """Return the watched runs; read only those whose files have changed."""
        current: dict[Path, tuple[object, Run]] = {}
        for folder in watched_runs(self.state):
            now = signature(folder, RUN_FILES)
            before, run = self._read.get(folder, (None, None))
            current[folder] = (now, run if run and before == now else read_run(folder))
        self._read = current  # replaced as a whole: scrapes may overlap
        return [run for _, run in current.values()]

    def _children(self) -> Iterator[Metric]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        up = GaugeMetricFamily(
            "fedpeft_child_up",
            "Whether a process of the server answers (1 or 0).",
            labels=["child"],
        )
        restarts = CounterMetricFamily(
            "fedpeft_child_restarts", "Restarts of a process of the server.", labels=["child"]
        )
        for name, child in self.supervisor.children().items():
            up.add_metric([name], child["answers"])
            restarts.add_metric([name], child["restarts"])
        yield from (up, restarts)


def watched_runs(state: Path) -> list[Path]:
    """Return the folders of the latest run and of all runs that have not ended, at most ten."""
    folders = run_folders(state)
    unfinished = [folder for folder in folders[:-1] if not is_over(folder)]
    return [*unfinished, *folders[-1:]][-_RUNS:]


def _nodes(
    state: Path, runs: list[Run], flower: Mapping[int, Mapping[str, Any]]
) -> Iterator[Metric]:
    """Yield how many nodes are registered, which are online, and when they were last seen.

    ``flower`` holds Flower's entries by node id; a node without an entry has no gauge.
    """
    from prometheus_client.core import GaugeMetricFamily

    try:
        nodes = registered_nodes(state)
    except UserError:  # commands report it; the other metrics are still correct
        return
    yield GaugeMetricFamily(
        "fedpeft_registered_nodes", "Nodes whose keys are registered.", value=len(nodes)
    )
    online = GaugeMetricFamily(
        "fedpeft_node_online",
        "Whether the SuperLink sees a node online (1 or 0), asked about once a minute.",
        labels=["node"],
    )
    ago = GaugeMetricFamily(
        "fedpeft_node_last_seen_seconds",
        "Seconds since a node was last seen: 0 if it is online, otherwise since it left or since "
        "its last update in one of these runs, whichever is later.",
        labels=["node"],
    )
    trained = {n["node_id"]: n["last_seen"] for run in runs for n in run.nodes if n["last_seen"]}
    for node in nodes:
        entry = flower.get(node.node_id, {})
        if entry:
            online.add_metric([node.name], entry["status"] == ONLINE)
        if seen := last_seen(entry, trained.get(node.node_id, "")):
            ago.add_metric([node.name], seconds_since(seen))
    yield from (online, ago)


def seconds_since(time: str) -> float:
    """Return the seconds since an ISO 8601 time, at least 0; a time without a zone is UTC."""
    then = datetime.fromisoformat(time)
    then = then if then.tzinfo else then.replace(tzinfo=UTC)
    return max(0.0, (datetime.now(UTC) - then).total_seconds())


def _of_runs(runs: list[Run]) -> Iterator[Metric]:
    """Yield the gauges of the runs: rounds, the last round, and the score."""
    from prometheus_client.core import GaugeMetricFamily

    def gauge(name: str, text: str, values: Sequence[float | None]) -> Metric:
        family = GaugeMetricFamily(f"fedpeft_run_{name}", text, labels=["run"])
        for run, value in zip(runs, values, strict=True):
            if value is not None:
                family.add_metric([run.name], value)
        return family

    runs = [run for run in runs if run.state != "damaged"]
    for name, key, text in _OF_LAST_ROUND:
        yield gauge(name, text, [run.last[key] if run.last else None for run in runs])
    yield gauge("round", "Rounds done.", [run.last["round"] if run.last else 0 for run in runs])
    yield gauge("rounds_wanted", "Rounds of the whole run.", [run.rounds for run in runs])
    failed = [len(run.last["failed"]) if run.last else None for run in runs]
    yield gauge("failed_clients", "Clients that failed in the last round.", failed)
    yield gauge("score", "The last measured score, in the task's metric.", [r.score for r in runs])


def _sent(runs: list[Run]) -> Metric:
    from prometheus_client.core import CounterMetricFamily

    family = CounterMetricFamily(
        "fedpeft_run_bytes",
        "Bytes of a run's messages, by kind (train, evaluate, handshake); up is to the server.",
        labels=["run", "kind", "direction"],
    )
    for run in runs:
        for kind, ways in run.bytes.items():
            for way, count in ways.items():
                family.add_metric([run.name, kind, way], count)
    return family
