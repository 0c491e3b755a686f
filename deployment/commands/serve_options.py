"""The options of ``fedpeft serve``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Runs = Annotated[
    list[str],
    typer.Argument(
        metavar="[NAME=]RUN...",
        help="Run folders, vector files, or folders of them, all of one backbone. NAME is the "
        "name in requests; default: the folder's or file's name.",
    ),
]
Host = Annotated[
    str, typer.Option(help="IP address to listen on; other than loopback: needs TLS and token.")
]
Port = Annotated[int, typer.Option(min=1, max=65535, help="Port to listen on.")]
Keys = Annotated[
    Path | None,
    typer.Option(help="Folder of ca.crt, server.crt and server.key (fedpeft keys): use TLS."),
]
Token = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="File of the token for requests; made if missing."),
]
OperatorToken = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="File of the token that adds and removes vectors; made if missing."
    ),
]
Batch = Annotated[int, typer.Option(min=1, max=1024, help="Most texts in a batch.")]
Delay = Annotated[
    float,
    typer.Option(min=0, max=1000, metavar="MS", help="Wait of an idle server for more texts."),
]
Queue = Annotated[int, typer.Option(min=1, help="Most texts that wait; further requests get 503.")]
Rate = Annotated[
    float, typer.Option(min=0, help="Most texts per second of an address; 0 = no limit.")
]
MaxCharacters = Annotated[int, typer.Option(min=1, help="Most characters of a text.")]
MaxVectors = Annotated[int, typer.Option(min=1, help="Most vectors.")]
CacheMegabytes = Annotated[
    int, typer.Option(min=0, help="Memory for vectors in the form that a pass needs.")
]
Threads = Annotated[int, typer.Option(min=0, help="Torch threads; 0 = all cores.")]
