"""Compare what a deployment's status says with its processes, once a second."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from deployment.loopback import Deployment
from deployment.node.status import describe_node
from deployment.operator.connection import CONNECTION, Connection
from deployment.server.health import ask_health, failing

#: Without one of these, a node does nothing useful. A worker that hangs shows in the run alone.
_NEEDED = {
    "node": ("deployment.tunnel.tunnel", "flower-supernode"),
    "server": ("deployment.gateway", "flower-superlink"),
}


class Watch:
    """A thread that asks during a ``with`` block.

    Args:
        made: the deployment.
        nodes: names of its nodes.
    """

    def __init__(self, made: Deployment, nodes: Sequence[str]):
        self._made, self._places = made, ("server", *nodes)
        self._since: dict[tuple[str, str], float] = {}  # begin of a wrong status
        self._longest: dict[str, float] = defaultdict(float)
        self._asked = 0
        self._said: dict[str, bool] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> Watch:
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

    def longest(self) -> dict[str, float | int]:
        """Return how often was asked, and the longest time of each kind of wrong answer."""
        return {"status asked": self._asked, **{k: round(v) for k, v in self._longest.items()}}

    def all_well(self) -> bool:
        """Return whether server and nodes say that all is well now."""
        return all(self._says(place) for place in self._places)

    def _watch(self) -> None:
        while not self._stop.wait(1.0):
            server = self._works("server", "server")
            for place in self._places:
                works = server and (place == "server" or self._works(place, "node"))
                says, now = self._says(place), time.monotonic()
                self._asked += 1
                who = "server" if place == "server" else "node"
                self._note(place, f"longest 'up' of a {who} that was not, s", says > works, now)
                self._note(place, f"longest 'down' of a {who} that was up, s", says < works, now)

    def _note(self, place: str, kind: str, wrong: bool, now: float) -> None:
        if not wrong:
            self._since.pop((place, kind), None)
            return
        seconds = now - self._since.setdefault((place, kind), now)
        self._longest[kind] = max(self._longest[kind], seconds)

    def _works(self, place: str, kind: str) -> bool:
        pids = [self._made.pids(place, program) for program in _NEEDED[kind]]
        return all(pids) and not any(_stopped(pid) for each in pids for pid in each)

    def _says(self, place: str) -> bool:
        if place != "server":
            node = describe_node(self._made.node(place))
            return bool(node["up"] and node["tunnel"] and node["tunnel"]["connected"])
        return not failing(ask_health(Connection.read(self._made.state / CONNECTION)))


def _stopped(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T"
    except OSError:
        return False
