"""The page of a node: the privacy that is left, and all that left the site.

Everything comes from the files in the node's state folder, which are only read.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from clients.budget import Budget
from clients.folder import NodeFolder, NodeSettings
from clients.status import describe_node
from clients.traffic import recorded
from fedpeft.errors import UserError
from fedpeft.files import read_object
from fedpeft.page.app import Feed
from fedpeft.page.snapshots import Snapshots
from fedpeft.readable import task_title
from fedpeft.version import __version__

_INTERVAL = 1.0  # seconds between two reads of the node's files
_MESSAGES = 200  # the latest ones
_RUNS = 50
Line = dict[str, Any]


class NodePages:
    """The source of the page, see ``fedpeft.page.app.Source``.

    Raises:
        UserError: not the state folder of a node, or this user may not read it.
    """

    def __init__(self, state: Path):
        describe_node(state)
        self._folder = NodeFolder(state.resolve())
        self._budget = Budget(self._folder)
        self._feed = Snapshots(self._read, _INTERVAL)
        self._lines: tuple[object, list[Line]] = None, []  # with the signature of the files
        self._about: dict[str, str] = {}  # label of an experiment -> task and method

    def home(self) -> tuple[str, list[str]]:
        """Return the only page."""
        return "node", []

    def feed(self, view: str, names: Sequence[str]) -> Feed:
        """Return the data of the page; raise KeyError for any other."""
        if view != "node":
            raise KeyError(view)
        return self._feed

    def _read(self) -> dict[str, Any]:
        described, problems = describe_node(self._folder.path), []
        privacy: list[dict[str, Any]] | None = []
        title, sums = "Node", None
        try:
            settings = NodeSettings.read(self._folder.path)
            title = f"Node {Path(settings.key).name}".strip()
            sums = settings.sends_sums
            privacy, problem = self._budget.latest(settings)
            problems += [problem] if problem else []
        except UserError as error:
            problems.append(str(error))
        lines = self._recorded()
        children = [{"name": name, **child} for name, child in described["children"].items()]
        return {
            "title": title,
            "problems": problems,
            "node": {
                **{name: described[name] for name in ("up", "since", "tunnel")},
                "version": __version__,
                "sums": sums,
                "total": {**_sums(lines), "since": str(lines[0]["time"]) if lines else ""},
            },
            "children": children,
            "privacy": privacy,
            "runs": self._runs(lines),
            "messages": [*reversed(lines[-_MESSAGES:])],
        }

    def _recorded(self) -> list[Line]:
        """Return the lines about messages, read again only if the files have changed."""
        stats = []
        for path in (self._folder.old_messages, self._folder.messages):
            try:
                status = path.stat()
                stats.append((status.st_ino, status.st_size))
            except OSError:
                stats.append((0, 0))
        if self._lines[0] != stats:
            self._lines = stats, [line for line in recorded(self._folder) if _is_whole(line)]
        return self._lines[1]

    def _runs(self, lines: Iterable[Line]) -> list[dict[str, Any]]:
        """Return the sums of each run, the latest one first."""
        runs: dict[str, list[Line]] = {}
        for line in lines:
            runs.setdefault(line["run"], []).append(line)
        latest = sorted(runs.items(), key=lambda run: run[1][-1]["time"], reverse=True)
        return [
            {
                "run": name,
                "name": next(filter(None, (line.get("name") for line in reversed(part))), ""),
                "about": next(filter(None, map(self._about_of, reversed(part))), ""),
                **_sums(part),
                "first": part[0]["time"],
                "last": part[-1]["time"],
            }
            for name, part in latest[:_RUNS]
        ]

    def _about_of(self, line: Line) -> str:
        """Return task and method of the experiment that a message names, or ""."""
        label = str(line.get("label", ""))
        if label and label not in self._about:
            kept = read_object(self._folder.experiments / f"{Path(label).name}.json")
            self._about[label] = _described(str(kept.get("toml", "")))
        return self._about.get(label, "")


def _described(toml: str) -> str:
    try:
        settings = tomllib.loads(toml)
        return f"{task_title(settings['task'])}, {settings['method']['name']}"
    except (ValueError, KeyError, TypeError):
        return ""


def _sums(lines: Sequence[Line]) -> dict[str, int]:
    trained = {
        (line["run"], line["round"])
        for line in lines
        if line["kind"] == "train" and line["round"] and "error" not in line
    }
    sums = {way: sum(line[way] for line in lines) for way in ("up", "down", "payload")}
    return {"messages": len(lines), "rounds": len(trained), **sums}


def _is_whole(line: Line) -> bool:
    """Return whether a line has all that the page needs; a full disk may have cut it off."""
    counts = all(type(line.get(name)) is int for name in ("up", "down", "payload"))
    return counts and all(isinstance(line.get(name), str) for name in ("time", "run", "kind"))
