"""Compare nodes' privacy ledgers with the steps reported to the server during a run."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

import numpy as np
from safetensors import safe_open

from clients.folder import NodeFolder
from fedpeft.privacy.ledger import read_ledger
from fedpeft.runs.checkpoints import CHECKPOINT
from server.aggregation.updates import STEPS

_PAUSE = 0.1  # seconds between two looks


def steps_held(state: Path) -> int:
    """Return the steps charged to a node's ledger; 0 if there is no ledger yet."""
    path = NodeFolder(state).ledger
    if not path.exists():
        return 0
    return sum(charge.mechanism.steps for charge in read_ledger(path).charges)


def steps_reported(run: Path, clients: int) -> list[int]:
    """Return the steps that each client has reported to the server, from the checkpoint."""
    if not (run / CHECKPOINT).exists():
        return [0] * clients
    with safe_open(run / CHECKPOINT, framework="numpy") as file:
        steps: np.ndarray = file.get_tensor(STEPS)
    return [int(count) for count in steps]


class LedgerWatch:
    """Compare them repeatedly in a thread during a ``with`` block."""

    def __init__(self, run: Path, nodes: Mapping[int, Path]):
        self.run, self.nodes = run, nodes  # the run's folder; client -> state folder
        self.seen: dict[int, list[tuple[int, int]]] = {client: [] for client in nodes}
        self._stop = threading.Event()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> LedgerWatch:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join()

    def check(self) -> None:
        """Fail if a ledger ever held less than was reported, or ever became shorter."""
        if self._error:
            raise self._error
        for client, pairs in self.seen.items():
            assert pairs, "nobody has looked"
            held = [ledger for _, ledger in pairs]
            assert held == sorted(held), f"client {client}'s ledger fell back: {held}"
            behind = [pair for pair in pairs if pair[0] > pair[1]]
            assert not behind, f"client {client}: {behind}"

    def _watch(self) -> None:
        try:
            ended = False
            while not ended:
                ended = self._stop.wait(_PAUSE)  # and once more at the end
                # Before the ledger, which may grow.
                reported = steps_reported(self.run, len(self.nodes))
                for client, state in self.nodes.items():
                    self.seen[client].append((reported[client], steps_held(state)))
        except Exception as error:
            self._error = error
