"""The byte ledger: what was really sent, for each client and round, up and down."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from flwr.app import Array, Message

from server.flower import message_bytes
from server.numbers import numbers

Sizes = dict[str, int]  # {"payload", "message"} in bytes
KINDS = ("train", "evaluate", "handshake")


def payload_bytes(message: Message) -> int:
    """Return the bytes of the task vector a message carries, 0 if it carries none."""
    if not message.has_content():
        return 0
    records = message.content.array_records.values()
    return sum(_array_bytes(array) for record in records for array in record.values())


def _array_bytes(array: Array) -> int:
    try:
        return numbers(array).nbytes
    except Exception:  # a client may send anything; the reply is refused later
        return len(array.data)


@dataclass
class ByteLedger:
    """The bytes of one round, measured message by message.

    A client below 0 is a node that was refused before its client was known.
    """

    entries: dict[tuple[str, int, str], Sizes] = field(default_factory=dict)

    def add(self, kind: str, client: int, direction: str, message: Message) -> None:
        """Count one message of ``kind`` to or from a client; direction is up or down."""
        sizes = self.entries.setdefault((kind, client, direction), {"payload": 0, "message": 0})
        sizes["payload"] += payload_bytes(message)
        sizes["message"] += message_bytes(message)

    def round_bytes(self) -> dict[str, Any]:
        """Return ``{"down", "up"}`` of training, and the other kinds under their own names."""
        sums = {kind: {"down": _zero(), "up": _zero()} for kind in KINDS}
        for (kind, _, direction), sizes in self.entries.items():
            _add(sums[kind][direction], sizes)
        return {**sums["train"], "evaluate": sums["evaluate"], "handshake": sums["handshake"]}

    def lines(self, round: int) -> list[str]:
        """Return one JSON line for each client and kind, for the ledger file."""
        merged: dict[tuple[str, int], dict[str, Any]] = defaultdict(dict)
        for (kind, client, direction), sizes in sorted(self.entries.items()):
            merged[kind, client][direction] = sizes
        return [
            json.dumps({"round": round, "client": client, "kind": kind, **directions})
            for (kind, client), directions in merged.items()
        ]


def total_bytes(rounds: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Sum the ``bytes`` of all lines of rounds.jsonl."""
    total = ByteLedger().round_bytes()
    for line in rounds:
        _add_tree(total, line["bytes"])
    return total


def _zero() -> Sizes:
    return {"payload": 0, "message": 0}


def _add(total: Sizes, sizes: Sizes) -> None:
    for name in total:
        total[name] += sizes[name]


def _add_tree(total: dict[str, Any], other: dict[str, Any]) -> None:
    for key, value in other.items():
        if isinstance(value, dict):
            _add_tree(total[key], value)
        else:
            total[key] += value
