"""What clients have said of their spending: a privacy ledger only grows."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fedpeft.config import Experiment
from server.round import Update

STEPS = "privacy.steps"  # in the checkpoint


class Spending:
    """Remembers how many steps each client has told of, over a restart of the server, too.

    A client that tells of fewer has lost its ledger, or has gone back to a copy: what it says of
    epsilon is then too little, and its update is refused.
    """

    def __init__(self, steps: np.ndarray) -> None:
        self._steps = steps  # [clients]

    @classmethod
    def restored(cls, experiment: Experiment, state: Mapping[str, np.ndarray]) -> Spending:
        """Return what ``state`` gave, or that nobody has told of anything."""
        nothing = np.zeros(experiment.federation.clients, dtype=np.int64)
        return cls(state.get(STEPS, nothing).copy())

    def state(self) -> dict[str, np.ndarray]:
        """Return what a resumed run has to know; nothing where no client keeps a ledger."""
        return {STEPS: self._steps} if self._steps.any() else {}

    def believed(self, updates: Mapping[int, Update], failed: dict[int, str]) -> dict[int, Update]:
        """Return the updates of clients that told of no less than before; others have failed."""
        good = {}
        for client, update in updates.items():
            told = sum(int(said["steps"]) for said in update.statements)
            if told < self._steps[client]:
                failed[client] = (
                    f"refused: its privacy ledger went back from {self._steps[client]} steps to "
                    f"{told}"
                )
                continue
            self._steps[client] = told
            good[client] = update
        return good
