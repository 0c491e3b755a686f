"""A load on ``fedpeft serve`` in a process of its own: clients, and vectors that come and go."""

from __future__ import annotations

import asyncio
import resource
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np

_MEGABYTE = 1 << 20


@dataclass
class Load:
    """The figures of a load.

    Attributes:
        seconds: durations of successful requests.
        statuses: number of responses by status; "removed" = 404 for a vector that is gone.
        memory: MB of the server's process, sampled over time.
        changes: vectors added or removed.
    """

    seconds: list[float] = field(default_factory=list)
    statuses: Counter[str] = field(default_factory=Counter)
    memory: list[float] = field(default_factory=list)
    changes: int = 0


@dataclass(frozen=True)
class Target:
    """The server under load.

    Attributes:
        url: its address.
        process: its process id.
        operator: the operator's token.
        vectors: names that are always served.
        guest: content of the file of vectors that come and go.
        lines: the texts.
    """

    url: str
    process: int
    operator: str
    vectors: Sequence[str]
    guest: bytes
    lines: Sequence[str]


async def load(target: Target, clients: int, duration: float, rate: float = 0.0) -> Load:
    """Send requests of one text for ``duration`` seconds.

    Args:
        target: the server.
        clients: number of clients.
        duration: seconds.
        rate: requests per second of all clients together, which arrive at random (Poisson) and do
            not wait for each other; 0 = each client sends its next request at once.
    """
    figures, end = Load(), time.perf_counter() + duration
    limits = httpx.Limits(max_connections=clients, max_keepalive_connections=clients)
    options: dict[str, Any] = {"base_url": target.url, "trust_env": False, "timeout": 60}
    async with httpx.AsyncClient(limits=limits, **options) as http:
        if rate:
            work = [_arrivals(http, target, figures, end, rate)]
        else:
            work = [_client(http, target, figures, end, number) for number in range(clients)]
        await asyncio.gather(*work, _changes(http, target, figures, end))
    return figures


async def _client(
    http: httpx.AsyncClient, target: Target, figures: Load, end: float, number: int
) -> None:
    draw = np.random.default_rng(number)
    while time.perf_counter() < end:
        await _ask(http, target, figures, draw)


async def _arrivals(
    http: httpx.AsyncClient, target: Target, figures: Load, end: float, rate: float
) -> None:
    draw, running = np.random.default_rng(0), set[asyncio.Task[None]]()
    due = time.perf_counter()
    while (due := due + draw.exponential(1 / rate)) < end:
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        task = asyncio.create_task(_ask(http, target, figures, draw))
        running.add(task)
        task.add_done_callback(running.discard)
    await asyncio.gather(*running)


async def _ask(
    http: httpx.AsyncClient, target: Target, figures: Load, draw: np.random.Generator
) -> None:
    """Send one text; one in fifty asks for a vector that comes and goes."""
    guest = draw.random() < 0.02
    name = f"guest{draw.integers(4)}" if guest else target.vectors[_place(draw, target.vectors)]
    line = target.lines[_place(draw, target.lines)]
    start = time.perf_counter()
    response = await http.post("/predict", json={"inputs": [{"vector": name, "text": line}]})
    if response.status_code == 200:
        figures.seconds.append(time.perf_counter() - start)
    gone = guest and response.status_code == 404
    figures.statuses["removed" if gone else str(response.status_code)] += 1


def _place(draw: np.random.Generator, values: Sequence[str]) -> int:
    return int(draw.integers(len(values)))


async def _changes(http: httpx.AsyncClient, target: Target, figures: Load, end: float) -> None:
    """Add and remove vectors four times a second, and sample the server's memory."""
    headers = {"Authorization": f"Bearer {target.operator}"}
    turn = 0
    while time.perf_counter() < end:
        name = f"/vectors/guest{turn % 4}"
        response = await http.put(name, content=target.guest, headers=headers)
        figures.statuses[f"add {response.status_code}"] += 1
        await asyncio.sleep(0.25)
        response = await http.delete(name, headers=headers)
        figures.statuses[f"remove {response.status_code}"] += 1
        figures.memory.append(memory_of(target.process))
        figures.changes, turn = figures.changes + 2, turn + 1


def memory_of(process: int) -> float:
    """Return the resident memory of a process in MB."""
    pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    return pages * resource.getpagesize() / _MEGABYTE


def command(folder: Path, port: int, operator: Path, *options: str) -> list[str]:
    """Return the command of a server for all vectors in a folder."""
    code = "from fedpeft.cli.app import main; main()"
    where = ["--port", str(port), "--operator-token", str(operator)]
    return [sys.executable, "-c", code, "serve", str(folder), *where, *options]


def percentile(seconds: Sequence[float], share: float) -> float:
    """Return a percentile of durations in milliseconds."""
    return round(float(np.percentile(seconds, share)) * 1000, 1)
