"""``fedpeft export``: a finished run for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer


def export(
    run: Annotated[Path, typer.Argument(help="Folder of a finished run, or a vector's file.")],
    kind: Annotated[
        Literal["hf", "peft", "vector"],
        typer.Option(
            "--format",
            help="hf: a plain transformers model | peft: an adapter (lora, vera, uni_lora) | "
            "vector: the trained numbers, in one file that says what they belong to.",
        ),
    ],
    out: Annotated[
        Path | None, typer.Option(help="Folder, or file of a vector; default RUN/export-FORMAT.")
    ] = None,
) -> None:
    """Write a run as a transformers model, a peft adapter, or a vector's file.

    Example: fedpeft export runs/first --format hf --out models/first
    """
    from rich.console import Console

    console = Console(highlight=False, markup=False)
    with console.status("loading the run"):
        from transformers.utils import logging

        from fedpeft.export import check_target, default_target, export
        from fedpeft.trained import Trained

        logging.disable_progress_bar()  # of files that take no time
        target = out or default_target(run, kind)
        check_target(target, kind)
        export(Trained.read(run), kind, target)
    console.print(f"written: {target}", soft_wrap=True)
