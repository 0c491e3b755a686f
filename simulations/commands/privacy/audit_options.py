"""The options of ``fedpeft privacy audit``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

AttackedExperiment = Annotated[
    Path | None,
    typer.Argument(help="Experiment file (TOML); default: a quick experiment on tiny."),
]
Canaries = Annotated[
    int | None,
    typer.Option(help="Number of canaries; default: 200, but at most two thirds of the examples."),
]
Rounds = Annotated[
    int | None,
    typer.Option(
        min=1, help="Number of rounds to attack; default: 50, for clients those of the run."
    ),
]
Guesses = Annotated[
    int | None,
    typer.Option(
        help="Number of guesses, half of them 'in'; default: half the canaries. Do not choose "
        "it by the result: that voids the confidence."
    ),
]
Confidence = Annotated[float, typer.Option(help="Confidence of the lower bound, in (0, 1).")]
Inversion = Annotated[
    bool | None,
    typer.Option(
        help="Also recover texts from single updates; default: if the dev texts have at most "
        "1,000 different tokens."
    ),
]
Unit = Annotated[
    Literal["example", "client"] | None,
    typer.Option(
        help="What to attack; default: client if privacy.unit is client, otherwise example."
    ),
]
Trials = Annotated[
    int | None,
    typer.Option(
        min=2, help="client: canary clients in all runs together; default: 20,000, or more."
    ),
]
