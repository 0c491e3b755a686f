"""The options of ``fedpeft node``; paths are absolute, since the processes it starts read them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

_DATA, _LIMITS = "Data", "What the node allows"

Superlink = Annotated[str, typer.Option(metavar="HOST:PORT", help="Address of the server.")]
Key = Annotated[
    Path, typer.Option(resolve_path=True, help="This node's private key (fedpeft keys node).")
]
Authority = Annotated[
    Path, typer.Option(resolve_path=True, help="The ca.crt from the server's operator.")
]
State = Annotated[
    Path,
    typer.Option(resolve_path=True, help="The node's state folder (mode 0700), not inside --data."),
]
ExistingState = Annotated[Path, typer.Option("--state", help="The node's state folder.")]
Worker = Annotated[
    bool, typer.Option("--worker/--no-worker", help="Keep backbone and data in memory.")
]

Data = Annotated[
    Path | None,
    typer.Option(
        resolve_path=True,
        rich_help_panel=_DATA,
        help="This node's examples: a table file or a folder of them.",
    ),
]
Task = Annotated[
    str,
    typer.Option(
        rich_help_panel=_DATA,
        help="Task of --data: custom (described by the next options) or a known one such as sst2. "
        "Runs that name another task, column, kind or label are refused.",
    ),
]
Text = Annotated[str, typer.Option(rich_help_panel=_DATA, help="custom: text column.")]
TextPair = Annotated[str, typer.Option(rich_help_panel=_DATA, help="custom: second text column.")]
Label = Annotated[str, typer.Option(rich_help_panel=_DATA, help="custom: label column.")]
Kind = Annotated[
    Literal["classes", "score", "tags", "text"],
    typer.Option(rich_help_panel=_DATA, help="custom: kind of the labels; text: see --target."),
]
Source = Annotated[str, typer.Option(rich_help_panel=_DATA, help="--kind text: column to read.")]
Target = Annotated[str, typer.Option(rich_help_panel=_DATA, help="--kind text: column to write.")]
Labels = Annotated[
    str,
    typer.Option(
        rich_help_panel=_DATA,
        metavar="A,B,...",
        help="custom: names of the classes, in the order of the experiment. The server learns "
        "them: name what can occur, not what does.",
    ),
]
Partition = Annotated[
    int | None,
    typer.Option(min=0, rich_help_panel=_DATA, help="Use only this part of the data, for trials."),
]

Roster = Annotated[
    Path | None,
    typer.Option(
        resolve_path=True,
        rich_help_panel=_LIMITS,
        help="Public keys of the nodes that this one sums updates with, one in a line (their .pub "
        "files together, this node's too). Runs without federation.secure are then refused; "
        "without --roster, those with it.",
    ),
]

Sums = Annotated[
    bool,
    typer.Option(
        "--sums/--no-sums",
        rich_help_panel=_LIMITS,
        help="Whether to send sums of the features of each class, from which a head can start "
        "(head.start).",
    ),
]
Wait = Annotated[
    bool,
    typer.Option(
        "--wait",
        help="Wait while the server does not know the key, with a line each minute; default: end.",
    ),
]
Proxy = Annotated[
    str,
    typer.Option(
        metavar="URL",
        help="Connect through this HTTP proxy, http://HOST:PORT, by CONNECT; TLS stays end to end. "
        "https_proxy is ignored.",
    ),
]
ProxyLogin = Annotated[
    Path | None,
    typer.Option(
        resolve_path=True,
        help="File (mode 0600) with one line USER:PASSWORD for the proxy (Basic).",
    ),
]
Colluders = Annotated[
    int,
    typer.Option(
        min=0,
        rich_help_panel=_LIMITS,
        help="With --roster: refuse sums that protect from fewer clients that work together with "
        "the server (secure.colluders).",
    ),
]

MaxEpsilon = Annotated[
    float | None,
    typer.Option(
        rich_help_panel=_LIMITS,
        help="Privacy limit for every example, or for all data where noise protects whole clients, "
        "over all runs: refuse rounds that exceed this epsilon, runs without noise of this node, "
        "and every evaluation.",
    ),
]
Delta = Annotated[
    float | None,
    typer.Option(
        rich_help_panel=_LIMITS,
        help="Delta of --max-epsilon, below 1 / n for n examples; default: 1 / n^1.1.",
    ),
]
Count = Annotated[
    str | None,
    typer.Option(
        "--examples",
        metavar="exact|rounded|N",
        rich_help_panel=_LIMITS,
        help="Number of examples that the server learns; required with --max-epsilon, where a "
        "number N keeps the true one private. Otherwise default: exact.",
    ),
]
MaxVector = Annotated[
    int,
    typer.Option(
        min=1,
        rich_help_panel=_LIMITS,
        help="Largest task vector, in numbers; full fine-tuning needs the backbone's size.",
    ),
]
Weights = Annotated[
    Literal["", "float32", "bfloat16", "int8", "int4"],
    typer.Option(
        rich_help_panel=_LIMITS,
        help="Hold the frozen weights in this form, to save memory; default: that of the run "
        "(engine.weights). Runs without federation.mixed_weights refuse a node with another form.",
    ),
]
Backbones = Annotated[
    list[str] | None,
    typer.Option(
        "--backbone",
        rich_help_panel=_LIMITS,
        help="Load this backbone at the start and allow no others; repeat for several. "
        "Default: minilm and tiny, loaded when a run needs them.",
    ),
]
