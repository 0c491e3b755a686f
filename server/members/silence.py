"""Clients that do not answer are asked more and more rarely.

Each question to a client that hangs delays the round by the whole timeout.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from fedpeft.wire.failures import Failure, FailureKind

#: Questions in a row without a reply until a client rests for 2 rounds, then 4, 8, ...
PATIENCE = 3


@dataclass
class Silence:
    """Clients that did not answer one kind of message.

    Attributes:
        count: questions in a row without a reply, by client.
        last: the latest round without a reply, by client.
    """

    count: dict[int, int] = field(default_factory=dict)
    last: dict[int, int] = field(default_factory=dict)

    def hear(self, number: int, asked: Iterable[int], failed: Mapping[int, Failure]) -> list[int]:
        """Count who did not answer in round ``number``; return those that are to rest.

        Args:
            number: of the round.
            asked: clients that were sent a message.
            failed: failures, by client.
        """
        for client in asked:
            if client in failed and failed[client].kind is FailureKind.SILENT:
                self.count[client] = self.count.get(client, 0) + 1
                self.last[client] = number
            else:
                self.count.pop(client, None)
        return [client for client in asked if self.count.get(client, 0) >= PATIENCE]

    def rests(self, client: int, number: int) -> bool:
        """Return whether a client is not to be asked in round ``number``."""
        excess = self.count.get(client, 0) - PATIENCE
        return excess >= 0 and number <= self.last[client] + 2 ** (excess + 1)
