"""``fedpeft node``: take part in federated training with the data of this machine."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from fedpeft.cli.options import AsJson
from fedpeft.errors import UserError

app = typer.Typer(no_args_is_help=True, help="Take part with the data of this machine.")


@app.callback()
def node() -> None:
    """Take part with the data of this machine."""


@app.command()
def up(
    superlink: Annotated[str, typer.Option(metavar="HOST:PORT", help="The server.")],
    key: Annotated[Path, typer.Option(help="This node's private key (fedpeft keys node).")],
    ca: Annotated[Path, typer.Option(help="The ca.crt that the server's operator hands out.")],
    state: Annotated[
        Path, typer.Option(help="Folder that the node keeps (mode 0700), not in --data.")
    ],
    data: Annotated[
        Path | None, typer.Option(help="This node's examples: a table file, or a folder of them.")
    ] = None,
    partition: Annotated[
        int | None, typer.Option(min=0, help="For trials: take only this part of the data.")
    ] = None,
    max_epsilon: Annotated[
        float | None,
        typer.Option(
            help="Refuse what would tell more of any example than this epsilon, over all runs: "
            "rounds that spend more, runs without privacy.unit = 'example', every evaluation."
        ),
    ] = None,
    backbone: Annotated[
        list[str] | None,
        typer.Option(
            help="Load this backbone now (more than once: these), and no other ever; "
            "without it: minilm and tiny, when a run asks for them."
        ),
    ] = None,
    worker: Annotated[
        bool, typer.Option("--worker/--no-worker", help="Keep backbone and data loaded.")
    ] = True,
    log_json: Annotated[bool, typer.Option("--log-json", help="Print the log as JSON.")] = False,
) -> None:
    """Check key, certificate, data and backbones, then serve the server until stopped.

    Ctrl-C and SIGTERM end it, with exit code 0; 2 means a mistake in what it was told.

    Example: fedpeft node up --superlink fl.example.org:9092 --key site1 --ca ca.crt
    --data reviews.csv --state /var/lib/fedpeft
    """
    from clients import node
    from clients.state import NodeSettings

    if max_epsilon is not None and not max_epsilon > 0:
        raise UserError(f"--max-epsilon {max_epsilon:g}: expected a number above 0")
    settings = NodeSettings(
        str(data.resolve()) if data else "", partition, max_epsilon, tuple(backbone or ())
    )
    described = node.Node(superlink, key.resolve(), ca.resolve(), state.resolve(), settings, worker)
    node.up(described, log_json)


@app.command()
def status(
    state: Annotated[Path, typer.Option(help="The folder given to 'fedpeft node up'.")],
    quick: Annotated[
        bool, typer.Option("--quick", help="Leave out the privacy, which takes seconds to add up.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show whether a node is up, its last message, and the privacy spent; exit code 1 if down.

    Example: fedpeft node status --state /var/lib/fedpeft
    """
    from clients.status import describe_node

    described = {**describe_node(state), "privacy": None if quick else _spent(state)}
    if as_json:
        print(json.dumps(described, indent=2, allow_nan=False))
    else:
        _print(described)
    if not described["up"]:
        sys.exit(1)  # the answer itself, no error to explain


def _spent(state: Path) -> dict[str, Any]:
    """Return what each unit's charges in the node's ledger compose to."""
    from clients.state import ledger_path
    from fedpeft.cli.privacy.ledger import describe_ledger
    from fedpeft.privacy.ledgerfile import read_ledger

    path = ledger_path(state)
    if not path.exists():
        return {}
    spent: dict[str, Any] = describe_ledger(path, read_ledger(path), None)["spent"]
    return spent


def _print(described: dict[str, Any]) -> None:
    pid = described["pid"]
    since = f"since {described['since']} (pid {pid})" if pid else ""
    if described["up"]:
        print(f"up {since}")
    else:
        print(f"not all of it runs, {since}" if pid else "down; 'fedpeft node up' starts it")
    for name, child in described["children"].items() if pid else ():
        doing = f"runs (pid {child['pid']})" if child["pid"] else "does not run"
        if name == "worker" and child["pid"] and described["worker"] == "away":
            doing += ", but does not listen yet"
        restarts = f"; restarts: {child['restarts']}" if child["restarts"] else ""
        print(f"{name} {doing}{restarts}")
    if last := described["last_message"]:
        ago = datetime.now(UTC) - datetime.fromisoformat(last["time"])
        print(
            f"last message {ago.total_seconds():.0f} s ago: {last['message']} (run {last['run']})"
        )
    if described["privacy"] == {}:
        print("no privacy was spent")
    for unit, spent in (described["privacy"] or {}).items():
        bound = "no bound" if spent["epsilon"] is None else f"epsilon <= {spent['epsilon']:.4g}"
        print(f"spent per {unit}: {bound} at delta {spent['delta']:.3g}")
