"""``fedpeft config``: print the complete experiment."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedpeft.cli.options import Overrides
from fedpeft.config import Experiment


def config(
    experiment: Annotated[
        Path | None, typer.Argument(help="Experiment file (TOML); none = the defaults.")
    ] = None,
    overrides: Overrides = None,
) -> None:
    """Print the complete experiment as TOML, with a comment on every key.

    Example: fedpeft config -s method.name=lora > experiment.toml
    """
    print(
        Experiment.read(experiment, overrides or ()).to_toml(comments=True, derived=False), end=""
    )
