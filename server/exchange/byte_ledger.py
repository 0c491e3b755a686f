"""The byte ledger: bytes sent to and received from each client in a round, as measured."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from flwr.app import Message

from fedpeft.runs.records import (
    WAYS,
    ByteLine,
    Kind,
    RunBytes,
    Sizes,
    Way,
    Wire,
    WireLine,
    kinds_of,
    no_bytes,
    of_kind,
)
from fedpeft.wire.messages import RECORD, payload_bytes
from server.flower import message_bytes


def vector_bytes(message: Message) -> int:
    """Return the bytes of the encoded vector a message carries, 0 if it carries none."""
    return payload_bytes(message.content.get(RECORD)) if message.has_content() else 0


@dataclass
class ByteLedger:
    """Bytes of one round.

    Attributes:
        entries: by kind of message, client and direction.
        refused: handshakes with nodes whose client is unknown, by node id and direction.
        wire: bytes on the network by client; None in a simulation.
    """

    entries: dict[tuple[Kind, int, Way], Sizes] = field(default_factory=dict)
    refused: dict[tuple[int, Way], Sizes] = field(default_factory=dict)
    wire: dict[int, Wire] | None = None

    def add(self, kind: Kind, client: int, way: Way, message: Message) -> None:
        """Count one message to (down) or from (up) a client."""
        sizes = self.entries.setdefault((kind, client, way), _zero())
        sizes["payload"] += vector_bytes(message)
        sizes["message"] += message_bytes(message)

    def add_handshakes(self, by_node: ByteLedger, clients: Mapping[int, int]) -> None:
        """Count handshakes that were measured by node id instead of client.

        Args:
            by_node: a ledger with node ids in place of clients.
            clients: node id -> client, without the nodes whose client is unknown.
        """
        for (_, node, way), sizes in by_node.entries.items():
            if node in clients:
                total = self.entries.setdefault(("handshake", clients[node], way), _zero())
            else:
                total = self.refused.setdefault((node, way), _zero())
            _add(total, sizes)

    def round_bytes(self) -> RunBytes:
        """Return the bytes of all clients together."""
        total = _nothing()
        for (kind, _, way), sizes in self._all():
            _add(of_kind(total, kind)[way], sizes)
        if self.wire is not None:
            total["wire"] = _sum(self.wire.values())
        return total

    def lines(self, number: int) -> list[ByteLine | WireLine]:
        """Return the lines of bytes.jsonl of a round, ordered by kind and client."""
        lines: dict[tuple[Kind, int], ByteLine] = {}
        for (kind, client, way), sizes in sorted(self._all()):
            line: ByteLine = {"round": number, "client": client, "kind": kind}
            lines.setdefault((kind, client), line)[way] = sizes
        on_wire: list[WireLine] = [
            {"round": number, "client": client, "kind": "wire", **ways}
            for client, ways in (self.wire or {}).items()
        ]
        return [*lines.values(), *on_wire]

    def _all(self) -> Iterator[tuple[tuple[Kind, int, Way], Sizes]]:
        """Yield all entries as in bytes.jsonl: refused nodes are clients -1, -2, ..."""
        yield from self.entries.items()
        nodes = sorted({node for node, _ in self.refused})
        clients = {node: -1 - place for place, node in enumerate(nodes)}
        for (node, way), sizes in self.refused.items():
            yield ("handshake", clients[node], way), sizes


def bytes_of(lines: Iterable[ByteLine]) -> RunBytes:
    """Return the bytes of lines of bytes.jsonl."""
    total = _nothing()
    for line in lines:
        for way in WAYS:
            if way in line:
                _add(of_kind(total, line["kind"])[way], line[way])
    return total


def total_bytes(sizes: Iterable[RunBytes]) -> RunBytes:
    """Return the sum of the bytes of all rounds."""
    total, on_wire = _nothing(), []
    for each in sizes:
        for kind in kinds_of(each):
            for way in WAYS:
                _add(of_kind(total, kind)[way], of_kind(each, kind)[way])
        if wire := each.get("wire"):  # rounds of fedpeft 0.1 have none
            on_wire.append(wire)
    total["wire"] = _sum(on_wire) if on_wire else None
    return total


def _sum(wires: Iterable[Wire]) -> Wire:
    total: Wire = {"down": 0, "up": 0}
    for wire in wires:
        for way in WAYS:
            total[way] += wire[way]
    return total


def _nothing() -> RunBytes:
    return {**no_bytes(), "evaluate": no_bytes(), "handshake": no_bytes(), "wire": None}


def _zero() -> Sizes:
    return {"payload": 0, "message": 0}


def _add(total: Sizes, sizes: Sizes) -> None:
    total["payload"] += sizes["payload"]
    total["message"] += sizes["message"]
