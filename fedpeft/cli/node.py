"""``fedpeft node``: take part in federated training with the data of this machine."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from fedpeft.cli import node_options as options
from fedpeft.cli.options import AsJson, LogJson, OpenPage
from fedpeft.cli.printing import ago, print_json
from fedpeft.cli.privacy.ledger import ledger_totals
from fedpeft.errors import UserError

_MOST_EXAMPLES = 1_000_000_000

app = typer.Typer(no_args_is_help=True, help="Take part with the data of this machine.")


@app.command()
def up(
    superlink: options.Superlink,
    key: options.Key,
    ca: options.Authority,
    state: options.State,
    data: options.Data = None,
    task: options.Task = "custom",
    text: options.Text = "text",
    text_pair: options.TextPair = "",
    label: options.Label = "label",
    source: options.Source = "source",
    target: options.Target = "target",
    kind: options.Kind = "classes",
    labels: options.Labels = "",
    partition: options.Partition = None,
    max_epsilon: options.MaxEpsilon = None,
    delta: options.Delta = None,
    examples: options.Count = None,
    max_vector: options.MaxVector = 50_000_000,
    backbone: options.Backbones = None,
    roster: options.Roster = None,
    colluders: options.Colluders = 0,
    weights: options.Weights = "",
    sums: options.Sums = True,
    worker: options.Worker = True,
    wait: options.Wait = False,
    proxy: options.Proxy = "",
    proxy_login: options.ProxyLogin = None,
    log_json: LogJson = False,
) -> None:
    """Check key, certificate, data and backbones, then serve the server until stopped.

    Prints a log. Ctrl-C and SIGTERM end it with exit code 0; exit code 2 means an invalid option.

    Example: fedpeft node up --superlink fl.example.org:9092 --key site1 --ca ca.crt
    --data reviews.csv --label mood --labels negative,positive --max-epsilon 8 --examples 3000
    """
    from clients import node
    from clients.folder import NodeSettings
    from clients.proxy import Proxy

    through = Proxy.of(proxy, proxy_login)
    _check_limits(max_epsilon, delta, examples, roster, colluders)
    settings = NodeSettings(
        data=str(data or ""),
        partition=partition,
        max_epsilon=max_epsilon,
        allow=tuple(backbone or ()),
        examples=_number(examples or "exact"),
        delta=delta,
        max_vector=max_vector,
        key=str(key),
        roster=str(roster or ""),
        colluders=colluders,
        weights=weights,
        sums=sums,
        **_described(task, text, text_pair, label, source, target, kind, labels),
    )
    node.up(node.Node(superlink, key, ca, state, settings, worker, wait, through), log_json)


def _described(*given: str) -> dict[str, Any]:
    """Return the settings that describe the data: task, columns, kind, and labels as a tuple."""
    names = ("task", "text", "text_pair", "label", "source", "target", "kind")
    labels = tuple(name.strip() for name in given[-1].split(",")) if given[-1] else ()
    return dict(zip(names, given[:-1], strict=True)) | {"labels": labels}


def _check_limits(
    max_epsilon: float | None,
    delta: float | None,
    examples: str | None,
    roster: Path | None,
    colluders: int,
) -> None:
    """Raise UserError for options about privacy and sums that are wrong or need another one."""
    if colluders and not roster:
        raise UserError(f"--colluders {colluders}: is about sums with --roster, which is missing")
    if max_epsilon is None:
        if delta is not None:
            raise UserError(f"--delta {delta:g}: is the delta of --max-epsilon, which is missing")
        return
    if not 0 < max_epsilon < math.inf:
        raise UserError(f"--max-epsilon {max_epsilon:g}: expected a number above 0")
    if delta is not None and not 0 < delta < 1:
        raise UserError(f"--delta {delta:g}: expected a number between 0 and 1")
    if examples is None:
        raise UserError(
            "--examples is missing: with --max-epsilon give a number near that of your examples, "
            "which the server learns in its place, such as --examples 3000 (or exact, or rounded)"
        )


def _number(examples: str) -> str | int:
    """Return --examples as a number, if it is one."""
    if examples in ("exact", "rounded"):
        return examples
    if examples.isascii() and examples.isdecimal() and 1 <= int(examples) <= _MOST_EXAMPLES:
        return int(examples)
    raise UserError(
        f"--examples {examples}: expected exact, rounded or a number from 1 to {_MOST_EXAMPLES:,}"
    )


@app.command()
def status(
    state: options.ExistingState,
    quick: Annotated[
        bool, typer.Option("--quick", help="Omit the privacy spent, which takes seconds.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show whether a node is up, its last message and the privacy spent.

    The exit code is 1 if the node is down.

    Example: fedpeft node status --state /var/lib/fedpeft
    """
    from clients.status import describe_node

    described = {**describe_node(state), "privacy": None if quick else _spent(state)}
    if as_json:
        print_json(described)
    else:
        _print(described)
    if not described["up"]:
        sys.exit(1)


@app.command()
def watch(
    state: options.ExistingState,
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 = any free port.")] = 8322,
    open_: OpenPage = False,
) -> None:
    """Show the privacy that is left, and all that left this site, on a page of this machine.

    Prints the page's address, with a token; Ctrl-C ends it. The page only reads the files of the
    node, which may be up or down, as the same user.

    Example: fedpeft node watch --state /var/lib/fedpeft
    """
    from clients.page import NodePages
    from fedpeft.page.serve import LOOPBACK, serve_pages
    from simulations.watch.browser import open_page

    def ready(address: str) -> None:
        print(address, flush=True)
        if open_:
            open_page(address)

    try:
        serve_pages(NodePages(state), LOOPBACK, port, True, "fedpeft node watch", ready)
    except KeyboardInterrupt:  # how it ends
        print()


def _spent(state: Path) -> dict[str, Any]:
    """Return the privacy loss of each unit in the node's ledger."""
    from clients.folder import NodeFolder
    from fedpeft.privacy.ledger_store import read_ledger

    path = NodeFolder(state).ledger
    return ledger_totals(read_ledger(path), None) if path.exists() else {}


def _connection(tunnel: dict[str, Any] | None) -> str:
    if tunnel is None:
        return ", connecting"
    if tunnel["connected"]:
        return f", connected to the server since {tunnel['since']}"
    return f", NOT connected since {tunnel['since']}: {tunnel['problem']}"


def _print(described: dict[str, Any]) -> None:
    pid = described["pid"]
    since = f"since {described['since']} (pid {pid})" if pid else ""
    if described["up"]:
        print(f"up {since}")
    else:
        print(f"partly up {since}" if pid else "down; 'fedpeft node up' starts it")
    for name, child in described["children"].items() if pid else ():
        status = f"runs (pid {child['pid']})" if child["pid"] else "does not run"
        if name == "worker" and child["pid"] and described["worker"] == "away":
            status += ", but does not listen yet"
        if name == "tunnel" and child["pid"]:
            status += _connection(described["tunnel"])
        if name == "supernode" and described["silent"] is not None:
            status += f", but has not asked for work for {described['silent']:.0f} s"
        restarts = f"; restarts: {child['restarts']}" if child["restarts"] else ""
        print(f"{name} {status}{restarts}")
    if last := described["last_message"]:
        run = last.get("name") or last["run"]
        print(f"last message {ago(last['time'])}: {last['message']} (run {run})")
    if described["privacy"] == {}:
        print("no privacy was spent")
    for unit, total in (described["privacy"] or {}).items():
        bound = "no bound" if total["epsilon"] is None else f"epsilon <= {total['epsilon']:.4g}"
        print(f"spent per {unit}: {bound} at delta {total['delta']:.3g}")
