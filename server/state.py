"""The state of a run between two rounds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from flwr.app import Message

from fedpeft.runs.checkpoints import Checkpoint
from server.exchange.wire_bytes import WireMeter
from server.members.nodes import Node
from server.members.participants import Participants
from server.privacy.central_privacy import CentralPrivacy


@dataclass(frozen=True)
class Flight:
    """A training request that waits for its reply.

    Attributes:
        client: that trains.
        number: of the round it started in.
        started: seconds on the run's clock.
        node: of the client when it was asked; it may have left since.
        reply: that has arrived together with others, and is not taken yet.
    """

    client: int
    number: int
    started: float
    node: Node
    reply: Message | None = None


@dataclass(kw_only=True)
class ServerState(Checkpoint):
    """State of a run between two rounds: its checkpoint, and values that are not stored in it.

    Attributes:
        privacy: ``epsilon`` and ``privacy`` of all rounds so far, see ``so_far``.
        participants: the clients that take part, and their nodes.
        wire: the count of bytes on the network.
        central: the server's noise and ledger; None if the server adds no noise.
        flights: asynchronous requests that wait, by the ids of their messages; None in a process
            that has not sent them.
        ended: reason why no further round is possible; empty otherwise.
    """

    privacy: dict[str, Any]
    participants: Participants
    wire: WireMeter
    central: CentralPrivacy | None = None
    ended: str = ""
    flights: dict[str, Flight] | None = None
