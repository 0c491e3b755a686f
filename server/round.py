"""One round: what the server asks, whom, and which replies it believes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from fedpeft.runtime import Runtime
from fedpeft.vector import encode
from server.exchange import exchange, printable
from server.ledger import ByteLedger
from server.nodes import Node
from server.runfolder import RunFolder

Checked = TypeVar("Checked")


@dataclass(frozen=True)
class Round:
    """One round, counted from 1, and what it has sent so far."""

    number: int
    grid: Grid
    runtime: Runtime
    folder: RunFolder
    ledger: ByteLedger
    name: str = ""  # of the run, to the nodes of a deployment

    def ask(
        self, kind: str, vector: np.ndarray, clients: Mapping[int, Node]
    ) -> tuple[dict[int, Message], dict[int, str]]:
        """Send the task vector to clients; return their replies, and why others gave none."""
        experiment = self.runtime.experiment
        named = {"run": self.name} if self.name else {}
        content = RecordDict(
            {
                "arrays": ArrayRecord({"vector": Array(encode(vector, experiment.wire.codec))}),
                "config": ConfigRecord(
                    {"experiment": self.runtime.digest, "round": self.number, **named}
                ),
            }
        )
        return exchange(
            self.grid,
            kind,
            lambda client: content,
            {client: node.node_id for client, node in clients.items()},
            self.ledger,
            experiment.federation.timeout,
            lambda done, total: self.folder.report(
                phase=kind, round=self.number, done=done, total=total
            ),
        )


@dataclass(frozen=True)
class Update:
    """A client's checked reply.

    Attributes:
        vector: the task vector [P] it trained.
        loss: its mean training loss; None with privacy.
        statements: what it has spent, one of each unit that it protects itself.
    """

    vector: np.ndarray
    loss: float | None
    statements: list[dict[str, Any]]


def check_all(
    replies: Mapping[int, Message], failed: dict[int, str], check: Callable[[Message], Checked]
) -> dict[int, Checked]:
    """Return what ``check`` makes of the replies; a client it refuses goes to ``failed``."""
    good = {}
    for client, reply in replies.items():
        try:
            good[client] = check(reply)
        except ValueError as error:
            failed[client] = printable(f"refused: {error}")
        except Exception as error:  # a reply may hold anything
            failed[client] = printable(f"refused: {type(error).__name__}: {error}")
    return good
