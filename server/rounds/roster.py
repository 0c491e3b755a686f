"""The clients of a deployment's run as its operator sees them: roster.json in the run's folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from fedpeft.errors import UserError
from fedpeft.files import write_json
from fedpeft.runs.folder import ROSTER
from fedpeft.wire.failures import Failure
from server.aggregation.updates import Update
from server.members.participants import Participants


@dataclass
class Entry:
    """A client of a run.

    Attributes:
        client: number of the client.
        node_id: Flower's id of its node.
        name: registered name of the node.
        examples: number of training examples.
        last_seen: time of the last update, ISO 8601 in UTC.
        rounds: number of rounds in which it succeeded.
        failed: number of rounds in which it failed.
        away: number of rounds in which its node was not connected, those before it came included.
        epsilon: its last report, by unit of privacy.
    """

    client: int
    node_id: int
    name: str
    examples: int
    last_seen: str = ""
    rounds: int = 0
    failed: int = 0
    away: int = 0
    epsilon: dict[str, float | None] = field(default_factory=dict)


def read_roster(folder: Path) -> dict[int, Entry]:
    """Return the entries of a run's roster by client; {} before the first round.

    Raises:
        UserError: roster.json is damaged.
    """
    path = folder / ROSTER
    if not path.exists():
        return {}
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))["nodes"]
        return {entry["client"]: Entry(**entry) for entry in entries}
    except (ValueError, TypeError, KeyError):
        raise UserError(f"'{path}' is damaged; start again in another run") from None


def write_roster(
    folder: Path,
    number: int,
    participants: Participants,
    updates: Mapping[int, Update],
    failed: Mapping[int, Failure],
) -> None:
    """Add the outcome of round ``number`` to the roster."""
    now, roster = datetime.now(UTC).isoformat(timespec="seconds"), read_roster(folder)
    for client, node in participants.clients.items():
        new = Entry(client, node.node_id, node.name, node.examples, away=number - 1)
        entry = roster.setdefault(client, new)
        entry.failed += client in failed
        if client in updates:
            entry.last_seen, entry.rounds = now, entry.rounds + 1
            entry.epsilon |= {s["unit"]: s["epsilon"] for s in updates[client].statements}
    for client in roster.keys() - participants.clients.keys():
        roster[client].away += 1
    write_json(folder / ROSTER, {"nodes": [asdict(roster[client]) for client in sorted(roster)]})
