"""The participants of a run: members with privacy budget that answer what they are asked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from fedpeft.privacy.ledger import BudgetSpent
from fedpeft.runs.records import Kind
from fedpeft.wire.failures import Failure
from server.members.members import Members
from server.members.silence import PATIENCE, Silence


@dataclass
class Participants(Members):
    """Members of a run, and which of them to ask.

    Attributes:
        spent: clients without privacy budget for another round.
        silence: clients without replies, by kind of message.
    """

    spent: set[int] = field(default_factory=set)
    silence: dict[Kind, Silence] = field(
        default_factory=lambda: {"train": Silence(), "evaluate": Silence()}
    )

    @property
    def with_budget(self) -> np.ndarray:
        """The clients that can still be asked to train, in order, int64 [n]."""
        return np.setdiff1d(self.known, [*self.spent], assume_unique=True)

    def to_train(self, number: int) -> np.ndarray:
        """Return the clients that can be asked to train in round ``number``, in order, int64 [n].

        Those that did not reply in recent rounds are left out, unless the others are too few.
        """
        clients = self.with_budget
        awake = np.setdiff1d(clients, self._resting(number), assume_unique=True)
        return awake if len(awake) >= self.experiment.federation.min_success else clients

    def to_evaluate(self, number: int) -> list[int]:
        """Return the clients to ask in round ``number``, after its training, to evaluate."""
        silent = {c for c, last in self.silence["train"].last.items() if last == number}
        silent.update(self._resting(number))
        clients = self.known.tolist()
        return [client for client in clients if client not in silent] or clients

    def hear(
        self, kind: Kind, number: int, asked: Iterable[int], failed: Mapping[int, Failure]
    ) -> None:
        """Count the clients that did not reply, and note once those that are asked more rarely."""
        for client in self.silence[kind].hear(number, asked, failed):
            node = self.clients.get(client)  # None: it has left since it was asked
            name = f" ({node.name})" if node and node.name else ""
            self.note(
                f"client {client}{name} sent no reply to {PATIENCE} {kind} messages in a row; it "
                f"is asked again after growing pauses"
            )

    def _resting(self, number: int) -> list[int]:
        """Return the clients that are not to be asked in round ``number``."""
        heard = self.silence["train"], self.silence["evaluate"]
        return [*{c for each in heard for c in each.count if each.rests(c, number)}]

    def require_budget(self) -> None:
        """Raise BudgetSpent if too few clients have privacy budget left for a round."""
        needed, left = self.experiment.federation.min_success, len(self.with_budget)
        if left < needed and self.spent:
            raise BudgetSpent(
                f"{left} clients have privacy budget left, federation.min_success is {needed}"
            )

    def retire(self, clients: Iterable[int]) -> None:
        """Never ask these clients to train again, because their privacy budget is spent."""
        self.spent.update(clients)
