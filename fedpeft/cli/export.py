"""``fedpeft export``: write a finished run for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from fedpeft.cli.options import FinishedRun
from fedpeft.cli.printing import plain_console


def export(
    run: FinishedRun,
    kind: Annotated[
        Literal["hf", "peft", "onnx", "sentence-transformers", "vector"],
        typer.Option(
            "--format",
            help="hf: a plain transformers model | peft: a peft adapter (lora, vera, uni_lora) | "
            "onnx: a model for onnxruntime, with the task vector as an input | "
            "sentence-transformers: the tuned encoder of texts, without the head | "
            "vector: the task vector with its description, in one file.",
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="New folder, or new file for a vector; default: RUN/export-FORMAT."),
    ] = None,
) -> None:
    """Write a finished run as a transformers model, a peft adapter, an ONNX model or a vector file.

    Prints the path of the export.

    Example: fedpeft export runs/first --format hf --out models/first
    """
    from fedpeft.export import check_target, default_target, export

    target = out or default_target(run, kind)
    check_target(target, kind)
    console = plain_console()
    with console.status("loading the run"):
        from transformers.utils import logging

        from fedpeft.runs.trained import Trained

        logging.disable_progress_bar()
        export(Trained.read(run), kind, target)
    console.print(f"written: {target}", soft_wrap=True)
