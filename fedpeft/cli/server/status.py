"""``fedpeft server status``: show a server, its runs and its nodes."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedpeft.cli.options import AsJson, ServerState
from fedpeft.cli.printing import ago, plain_console, plain_table, print_json
from fedpeft.errors import UserError

if TYPE_CHECKING:
    from rich.table import Table

_WIDE = 100  # columns of the tables without a terminal
_SHOWN = 10  # latest runs; --json prints all
_RUN_COLUMNS = ("run", "state", "round", "score", "up", "down", "epsilon", "changed")
_NODE_COLUMNS = ("node", "id", "state", "client", "answered", "up", "down", "epsilon")
_TEXT = ("run", "node", "state", "changed")  # columns of text


def status(
    state: ServerState,
    as_json: AsJson = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="Only check that all parts run, for probes.")
    ] = False,
) -> None:
    """Show whether a server is up, its runs and its nodes; the exit code is 1 if it is down.

    Prints a table of runs and a table of nodes. A node's client number, the rounds it answered of
    those it was asked in or away from, bytes and epsilon belong to its latest run. "seen" is the
    last time that the node was online or that the server accepted an update from it.

    Example: fedpeft server status --state /var/lib/fedpeft
    """
    if quick:
        _print_quick(state, as_json)
        return
    from server.host.status import describe_server

    described = describe_server(state)
    if as_json:
        print_json(described)
    else:
        _print(described)
    if not described["up"]:
        sys.exit(1)


def _print_quick(state: Path, as_json: bool) -> None:
    """Print whether all parts of the server run; the exit code is 1 if not."""
    from server.host.health import ask_health, failing
    from server.remote.connection import CONNECTION, Connection

    file = state / CONNECTION
    if not file.is_file():
        raise UserError(f"no '{file}'; 'fedpeft server up --state {state}' creates it")
    health = ask_health(Connection.read(file))
    down = failing(health)
    if as_json:
        print(json.dumps({"up": not down, **health}))
    else:
        print(f"no answer: {', '.join(down)}" if down else "up")
    if down:
        sys.exit(1)


def _print(described: dict[str, Any]) -> None:
    console = plain_console(_WIDE)
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
            # A part of it may come from a node: remove control characters.
            reason = "".join(c if c.isprintable() else " " for c in run["reason"])
            console.print(f"{run['name']} failed: {reason}", soft_wrap=True)
    if described["nodes"]:
        console.print(_table(_NODE_COLUMNS, [_node_cells(node) for node in described["nodes"]]))
    else:
        console.print("no nodes; 'fedpeft server add-node NAME.pub' registers one")


def _headline(described: dict[str, Any]) -> str:
    since = f"since {described['since']} (pid {described['pid']})" if described["pid"] else ""
    if described["up"]:
        return f"up {since}".rstrip()
    if described["pid"]:
        return f"partly up {since}: no answer from {', '.join(described['failing'])}"
    return "down; 'fedpeft server up' starts it"


def _table(columns: tuple[str, ...], rows: list[list[str]]) -> Table:
    numbers = [column for column in columns if column not in _TEXT]
    table = plain_table(columns, right=numbers, wrapped=_TEXT)
    for row in rows:
        table.add_row(*row)
    return table


def _run_cells(run: dict[str, Any]) -> list[str]:
    return [
        run["name"],
        _state(run),
        f"{run['round']}/{run['rounds']}" if run["rounds"] else "-",  # its process loads
        _or_dash(run["score"], "{:.4f}"),
        *_sent(run["bytes"]),
        _or_dash(run["epsilon"], "{:.2f}"),
        ago(run["changed"]),
    ]


def _state(run: dict[str, Any]) -> str:
    if run["state"] == "running":
        return f"round {min(run['round'] + 1, run['rounds'])} of {run['rounds']}"
    return run["state"]


def _node_cells(node: dict[str, Any]) -> list[str]:
    rounds = node["rounds"]
    return [
        node["name"] or "(not in nodes.json)",
        str(node["node_id"]),
        _presence(node["state"], node["last_seen"]),
        _or_dash(node["client"], "{}"),
        "-" if rounds is None else f"{rounds} of {rounds + node['failed'] + node['away']}",
        *_sent(node["bytes"]),
        ", ".join(_spent(node["epsilon"])) or "-",
    ]


def _spent(epsilon: dict[str, float | None]) -> list[str]:
    """Return the epsilon of each unit, with the units' names if there are two."""
    from fedpeft.readable import readable_epsilon

    if len(epsilon) == 1:
        return [readable_epsilon(*epsilon.values())]
    return [f"{unit} {readable_epsilon(value)}" for unit, value in epsilon.items()]


def _sent(sizes: dict[str, int] | None) -> list[str]:
    from fedpeft.readable import readable_bytes

    return [readable_bytes(sizes[way]) if sizes else "-" for way in ("up", "down")]


def _or_dash(value: float | None, template: str) -> str:
    return "-" if value is None else template.format(value)


def _presence(state: str, last_seen: str | None) -> str:
    """Return "online", or the time a node was last seen; "unknown" means the SuperLink is down."""
    if state == "online":
        return state
    known = "seen" if state == "unknown" else state
    return f"{known} {ago(last_seen)}" if last_seen else "never seen"
