"""What a deployment's operator sees of each client of a run: roster.json in the run's folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from fedpeft.errors import UserError
from fedpeft.files import write_json
from server.nodes import Nodes
from server.round import Update
from server.runfolder import ROSTER


@dataclass
class Entry:
    """One client: its node, when it last answered (ISO 8601, UTC), its rounds, what it spent."""

    client: int
    node_id: int
    name: str
    examples: int
    last_seen: str = ""
    rounds: int = 0
    failed: int = 0
    epsilon: dict[str, float | None] = field(default_factory=dict)  # by unit, as it last said


@dataclass
class Roster:
    """The clients of a run, kept over a restart of the server; nothing in a simulation."""

    path: Path
    entries: dict[int, Entry] = field(default_factory=dict)  # by client

    @classmethod
    def of(cls, folder: Path) -> Roster:
        """Return the roster of a run's folder.

        Raises:
            UserError: its file is damaged.
        """
        path = folder / ROSTER
        if not path.exists():
            return cls(path)
        try:
            found = json.loads(path.read_text(encoding="utf-8"))["nodes"]
            return cls(path, {each["client"]: Entry(**each) for each in found})
        except (ValueError, TypeError, KeyError):
            raise UserError(f"'{path}' is damaged; start again in another run") from None

    @property
    def numbers(self) -> dict[int, int]:
        """Which client each node is, by node id."""
        return {entry.node_id: client for client, entry in self.entries.items()}

    def note(self, nodes: Nodes, good: Mapping[int, Update], failed: Mapping[int, str]) -> None:
        """Write down what became of a round's clients."""
        if nodes.registry is None:
            return
        now = datetime.now(UTC).isoformat(timespec="seconds")
        for client, node in nodes.clients.items():
            fresh = Entry(client, node.node_id, nodes.name(node.node_id), node.examples)
            entry = self.entries.setdefault(client, fresh)
            entry.failed += client in failed
            if client in good:
                said = {each["unit"]: each["epsilon"] for each in good[client].statements}
                entry.last_seen, entry.rounds = now, entry.rounds + 1
                entry.epsilon |= said
        entries = [asdict(self.entries[client]) for client in sorted(self.entries)]
        write_json(self.path, {"nodes": entries})
