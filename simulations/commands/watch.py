"""``fedpeft watch``: a live page of runs and studies."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedpeft.cli.options import OpenPage

if TYPE_CHECKING:
    from simulations.watch.source import Folders


def watch(
    folders: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[FOLDER]...",
            help="Folders of runs and studies, or folders above them; default: runs.",
            show_default=False,
        ),
    ] = None,
    host: Annotated[
        str, typer.Option(help="Address to listen at; any but loopback needs a token.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 = any free port.")] = 8321,
    token: Annotated[
        bool,
        typer.Option("--token", help="Need a token at loopback, too: on a machine with others."),
    ] = False,
    open_: OpenPage = False,
) -> None:
    """Show runs and studies, finished and running, on a page of this machine.

    Prints the page's address; Ctrl-C ends it. The page needs no network and writes nothing. From
    another machine: `ssh -L 8321:127.0.0.1:8321 HOST`, then open the same address there.

    Example: fedpeft watch runs
    """
    from simulations.watch.browser import open_page
    from simulations.watch.serve import serve

    def ready(address: str, source: Folders) -> None:
        runs, studies = source.counts
        counts = f"{runs} run{'s' * (runs != 1)}, {studies} stud{'ies' if studies != 1 else 'y'}"
        print(f"{counts}: {address}", flush=True)
        if open_:
            open_page(address)

    try:
        serve(folders or [Path("runs")], host, port, token, ready)
    except KeyboardInterrupt:  # how it ends
        print()
