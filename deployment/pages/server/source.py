"""The pages of a deployed server: the overview, and the runs in its state folder."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from starlette.applications import Starlette

from deployment.hosting.processes import Supervisor
from deployment.operator.page import PATH, act_token, page_token
from deployment.pages.server.control import Control, run_folder
from deployment.pages.server.overview import Overview
from deployment.server.folder import ServerFolder
from deployment.server.presence import Presence
from fedpeft.page.app import Feed, page_app
from fedpeft.page.guard import Access
from fedpeft.page.run.feed import RunsFeed
from fedpeft.page.run.run import RunView
from fedpeft.page.snapshots import Snapshots
from server.deployed import RUNS

_INTERVAL = 1.0  # seconds between two reads of the server's files
_KEPT = 24  # runs that are kept in memory after they were shown


def server_pages(
    state: ServerFolder,
    supervisor: Supervisor,
    presence: Presence,
    stopping: Callable[[], bool],
) -> Starlette:
    """Return the pages of a server as an ASGI application, to be mounted at ``PATH``.

    Args:
        state: the server's folder.
        supervisor: of the server's processes.
        presence: Flower's view of the nodes.
        stopping: returns whether the server is stopping.
    """
    connection = state.connection()
    access = Access(
        token=page_token(connection),
        cookie=f"fedpeft-{state.ports['operations']}",
        path=PATH.rstrip("/"),
        command="fedpeft server watch",
        act=act_token(connection),
    )
    control = Control(state.path / RUNS, connection)
    return page_app(Pages(state, supervisor, presence), access, stopping, control.act)


class Pages:
    """The source of the pages, see ``fedpeft.page.app.Source``."""

    def __init__(self, state: ServerFolder, supervisor: Supervisor, presence: Presence):
        self._runs = state.path / RUNS
        self._overview = Snapshots(Overview(state, supervisor, presence).read, _INTERVAL)
        self._views: dict[Path, RunView] = {}
        self._lock = threading.Lock()

    def home(self) -> tuple[str, list[str]]:
        """Return the overview."""
        return "server", []

    def feed(self, view: str, names: Sequence[str]) -> Feed:
        """Return the data of a page.

        Raises:
            KeyError: no such page or run.
        """
        if view == "server":
            return self._overview
        if view != "runs":
            raise KeyError(view)
        return RunsFeed([self._view(name) for name in dict.fromkeys(names)])

    def _view(self, name: str) -> RunView:
        path = run_folder(self._runs, name)
        with self._lock:
            if path not in self._views:
                while len(self._views) >= _KEPT:
                    del self._views[next(iter(self._views))]
                self._views[path] = RunView(path, name)
            return self._views[path]
