"""What nodes' privacy ledgers hold against what a server has been told, watched during a run."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

import numpy as np
from safetensors import safe_open

from clients.state import ledger_path
from fedpeft.privacy.ledger import read_ledger
from server.runfolder import CHECKPOINT
from server.spending import STEPS

_PAUSE = 0.1  # seconds between two looks


def steps_held(state: Path) -> int:
    """Return the steps that a node's ledger holds; 0 while there is none."""
    path = ledger_path(state)
    if not path.exists():
        return 0
    return sum(charge.mechanism.steps for charge in read_ledger(path).charges)


def steps_told(run: Path, clients: int) -> list[int]:
    """Return the steps that each client has told the server of, as they stand in the checkpoint."""
    if not (run / CHECKPOINT).exists():
        return [0] * clients
    with safe_open(run / CHECKPOINT, framework="numpy") as file:
        found: np.ndarray = file.get_tensor(STEPS)
    return [int(steps) for steps in found]


class LedgerWatch:
    """Compares them again and again in a thread, between ``with`` and its end."""

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
        """Fail if a ledger was ever behind what was told, or has ever become shorter."""
        if self._error:
            raise self._error
        for client, pairs in self.seen.items():
            assert len(pairs) > 10, "nobody has looked"
            held = [each for _, each in pairs]
            assert held == sorted(held), f"client {client}'s ledger fell back: {held}"
            assert all(told <= each for told, each in pairs), f"client {client}: {pairs}"

    def _watch(self) -> None:
        try:
            while not self._stop.wait(_PAUSE):
                told = steps_told(self.run, len(self.nodes))  # before the ledger, which may grow
                for client, state in self.nodes.items():
                    self.seen[client].append((told[client], steps_held(state)))
        except Exception as error:
            self._error = error
