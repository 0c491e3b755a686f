"""Options that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

Overrides = Annotated[
    list[str] | None,
    typer.Option("-s", "--set", metavar="KEY=VALUE", help="Set one key, e.g. -s local.lr=3e-3."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for other programs.")]
