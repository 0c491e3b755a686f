"""The runs of a server as an operator sees them: progress, score, bytes and nodes."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fedpeft.errors import UserError
from fedpeft.vectorfile import EXPERIMENT
from server.byte_ledger import bytes_of, total_bytes
from server.deployed import ENDED, RUNS, starting_runs
from server.records import WAYS, ByteLine, RoundLine, kinds_of, of_kind
from server.runfolder import RESULT, ROSTER, ROUNDS, RunFolder

#: Files from which ``read_run`` reads.
RUN_FILES = (EXPERIMENT, ROUNDS, RESULT, ENDED, ROSTER)


@dataclass(frozen=True)
class Run:
    """The content of a run's folder.

    Attributes:
        name: the folder's name.
        state: "starting" (its process loads), "finished", "failed", "stopped" (by its operator or
            with the server; resumable), "unfinished" (running or resumable), or "damaged".
        reason: the server's reason if the run failed.
        changed: when the folder last changed, in seconds since 1970.
        rounds: the number of rounds of the whole run.
        last: the last line of rounds.jsonl; None before the first round.
        score: the last measured score.
        bytes: bytes of all messages, ``{"train" | "evaluate" | "handshake": {"up", "down"}}``.
        nodes: entries of roster.json: client, node_id, name, last_seen, epsilon, ...
    """

    name: str
    state: str
    reason: str = ""
    changed: float = 0.0
    rounds: int = 0
    last: RoundLine | None = None
    score: float | None = None
    bytes: dict[str, dict[str, int]] = field(default_factory=dict)
    nodes: Sequence[dict[str, Any]] = ()


def run_folders(state: Path) -> list[Path]:
    """Return the folders of a server's runs, the last changed one at the end."""
    if not (state / RUNS).is_dir():
        return []
    folders = [f for f in (state / RUNS).iterdir() if (f / EXPERIMENT).is_file()]
    return sorted(folders, key=lambda folder: (folder.stat().st_mtime, folder.name))


def with_starting(state: Path, runs: dict[Path, Run]) -> dict[Path, Run]:
    """Return runs, then those that are starting, which may have no folder yet."""
    runs = dict(runs)
    for name, begun in starting_runs(state).items():
        before = runs.pop(state / RUNS / name, Run(name, ""))
        runs[state / RUNS / name] = replace(before, state="starting", reason="", changed=begun)
    return runs


def is_over(folder: Path) -> bool:
    """Return whether a run has ended, successfully or not."""
    return (folder / RESULT).exists() or (folder / ENDED).exists()


def read_run(folder: Path) -> Run:
    """Read a run's folder; the state is "damaged" if it cannot be read."""
    try:
        changed = folder.stat().st_mtime
        settings = tomllib.loads((folder / EXPERIMENT).read_text(encoding="utf-8"))
        rounds = int(settings["federation"]["rounds"])
        ended = _json(folder / ENDED, {"ok": True, "reason": ""})
        nodes = _json(folder / ROSTER, {"nodes": []})["nodes"]
        lines = RunFolder(folder).rounds()
        last = lines[-1] if lines else None
        scores = [line["score"] for line in lines if line["score"] is not None]
        score = scores[-1] if scores else None
        sent, reason = _sent(RunFolder(folder).begun(), lines), str(ended["reason"])
        state = _state(folder, ended)
        return Run(folder.name, state, reason, changed, rounds, last, score, sent, nodes)
    except (OSError, ValueError, KeyError, TypeError, UserError):
        return Run(folder.name, "damaged")


def _state(folder: Path, ended: dict[str, Any]) -> str:
    if ended.get("stopped"):
        return "stopped"
    if not ended["ok"]:
        return "failed"
    return "finished" if (folder / RESULT).exists() else "unfinished"


def sent_by_client(folder: Path) -> dict[int, dict[str, int]]:
    """Return the bytes of all messages to and from each client: ``{client: {"up", "down"}}``.

    Raises:
        UserError: bytes.jsonl is damaged.
    """
    totals: dict[int, dict[str, int]] = {}
    for line in RunFolder(folder).sent():
        sums = totals.setdefault(line["client"], {"up": 0, "down": 0})
        for way in WAYS:
            sums[way] += line[way]["message"] if way in line else 0
    return totals


def _sent(begun: Sequence[ByteLine], lines: Sequence[RoundLine]) -> dict[str, dict[str, int]]:
    total = total_bytes([bytes_of(begun), *(line["bytes"] for line in lines)])
    return {
        kind: {way: of_kind(total, kind)[way]["message"] for way in WAYS}
        for kind in kinds_of(total)
    }


def _json(path: Path, absent: dict[str, Any]) -> dict[str, Any]:
    if not path.exists():
        return absent
    content = json.loads(path.read_text(encoding="utf-8"))
    return content if isinstance(content, dict) else {}
