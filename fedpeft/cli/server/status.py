"""``fedpeft server status``: is it up, how far are the runs, what do the nodes do."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedpeft.cli.options import AsJson
from fedpeft.cli.server.options import State
from fedpeft.errors import UserError

if TYPE_CHECKING:
    from rich.table import Table

_WIDE = 100  # columns where there is no terminal to fit
_SHOWN = 10  # runs; --json has all
_RUN_COLUMNS = ("run", "state", "round", "score", "up", "down", "epsilon", "changed")
_NODE_COLUMNS = ("node", "id", "state", "client", "rounds", "up", "down", "epsilon")
_LEFT = ("run", "node", "state", "changed")  # columns of words


def status(
    state: State,
    as_json: AsJson = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="Only whether all parts run: for probes, in a second.")
    ] = False,
) -> None:
    """Show whether a server is up, its runs, and its nodes; exit code 1 if it is down.

    A node's client number, rounds (of those it was asked for), bytes and epsilon are those of the
    latest run it was in. "seen" is when it was last online, or its last update was taken.

    Example: fedpeft server status --state /var/lib/fedpeft
    """
    if quick:
        _print_quick(state, as_json)
        return
    from server.host.status import describe_server

    described = describe_server(state)
    if as_json:
        print(json.dumps(described, indent=2, allow_nan=False))
    else:
        _print(described)
    if not described["up"]:
        sys.exit(1)  # the answer itself, no error to explain


def _print_quick(state: Path, as_json: bool) -> None:
    """Print what the server says of its parts; exit code 1 unless all run."""
    from server.host.health import ask_health
    from server.remote.connection import CONNECTION, Connection

    file = state / CONNECTION
    if not file.is_file():
        raise UserError(f"no '{file}'; 'fedpeft server up --state {state}' makes it")
    health = ask_health(Connection.read(file))
    down = [name for name, child in health.get("children", {}).items() if not child["pid"]]
    down += [] if health.get("superlink") else ["the SuperLink does not answer"]
    if as_json:
        print(json.dumps({"up": not down, **health}))
    else:
        print(f"down: {', '.join(down)}" if down else "up")
    if down:
        sys.exit(1)


def _print(described: dict[str, Any]) -> None:
    from rich.console import Console

    console = Console(markup=False, highlight=False)
    if not console.is_terminal:
        console = Console(markup=False, highlight=False, width=_WIDE)
    ports = described["ports"]
    console.print(_headline(described), soft_wrap=True)
    console.print(
        f"nodes at {described['host']}:{ports['public']}; on loopback control at "
        f"{ports['control']}, operations at {ports['operations']}"
    )
    runs = described["runs"][-_SHOWN:]
    if runs:
        console.print(_table(_RUN_COLUMNS, [_run_cells(run) for run in runs]))
    for run in runs:
        if run["state"] == "failed":
            # A node may have said a part of it: nothing that could steer a terminal.
            reason = "".join(c if c.isprintable() else " " for c in run["reason"])
            console.print(f"{run['name']} failed: {reason}", soft_wrap=True)
    if described["nodes"]:
        console.print(_table(_NODE_COLUMNS, [_node_cells(node) for node in described["nodes"]]))
    else:
        console.print("no nodes; 'fedpeft server add-node NAME.pub' lets one in")


def _headline(described: dict[str, Any]) -> str:
    since = f"since {described['since']} (pid {described['pid']})" if described["pid"] else ""
    if described["up"]:
        return f"up {since}".rstrip()
    if described["pid"]:
        return f"'fedpeft server up' runs {since}, but the SuperLink does not answer"
    return "down; 'fedpeft server up' starts it"


def _table(columns: tuple[str, ...], rows: list[list[str]]) -> Table:
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0))
    for column in columns:
        table.add_column(
            column,
            justify="left" if column in _LEFT else "right",
            no_wrap=column not in _LEFT,
            overflow="fold",
        )
    for row in rows:
        table.add_row(*row)
    return table


def _run_cells(run: dict[str, Any]) -> list[str]:
    return [
        run["name"],
        run["state"],
        f"{run['round']}/{run['rounds']}",
        _or_none(run["score"], "{:.4f}"),
        *_sent(run["bytes"]),
        _or_none(run["epsilon"], "{:.2f}"),
        _ago(run["changed"]),
    ]


def _node_cells(node: dict[str, Any]) -> list[str]:
    asked = (node["rounds"] or 0) + (node["failed"] or 0)
    return [
        node["name"] or "(not in nodes.json)",
        str(node["node_id"]),
        _presence(node["state"], node["last_seen"]),
        _or_none(node["client"], "{}"),
        _or_none(node["rounds"], "{}" + (f" of {asked}" if node["failed"] else "")),
        *_sent(node["bytes"]),
        ", ".join(_spent(node["epsilon"])) or "-",
    ]


def _spent(epsilon: dict[str, float | None]) -> list[str]:
    """Return what was spent, each unit by its name where there are two."""
    from simulations.display import readable_epsilon

    if len(epsilon) == 1:
        return [readable_epsilon(*epsilon.values())]
    return [f"{unit} {readable_epsilon(value)}" for unit, value in epsilon.items()]


def _sent(bytes: dict[str, int] | None) -> list[str]:
    from simulations.display import readable_bytes

    return [readable_bytes(bytes[way]) if bytes else "-" for way in ("up", "down")]


def _or_none(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)


def _presence(state: str, last_seen: str | None) -> str:
    """Return "online", or when a node was there last; unknown is what no SuperLink says."""
    if state == "online":
        return state
    known = "seen" if state == "unknown" else state
    return f"{known} {_ago(last_seen)}" if last_seen else "never seen"


def _ago(time: str) -> str:
    """Return how long ago an ISO 8601 time was: ``12 s ago``, ``3 h ago``."""
    seconds = max(0.0, (datetime.now(UTC) - datetime.fromisoformat(time)).total_seconds())
    for length, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit} ago"
    return f"{seconds:.0f} s ago"
