"""Follows a run by the files of its folder: works for every engine and for a deployment."""

from __future__ import annotations

import threading
from collections.abc import Callable

from fedpeft.runs.folder import RunFolder
from fedpeft.runs.records import RoundLine

_INTERVAL = 0.25  # seconds between looks


class Follower:
    """Calls ``look`` with a run's rounds every 0.25 s while the context is open, and at its end.

    All calls come from one thread, which ends with the context.
    """

    def __init__(self, folder: RunFolder, look: Callable[[list[RoundLine]], None]):
        self._folder, self._look = folder, look
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)

    def __enter__(self) -> Follower:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _follow(self) -> None:
        stopping = False
        while True:
            self._look(self._folder.rounds())
            if stopping:
                return
            stopping = self._stop.wait(_INTERVAL)
