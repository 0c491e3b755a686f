"""``fedpeft predict``: predict with a finished run."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedpeft.cli.options import FinishedRun
from fedpeft.errors import UserError
from fedpeft.files import write_atomic

if TYPE_CHECKING:
    from fedpeft.predicting import Prediction

_FORMATS = (".tsv", ".csv", ".jsonl", ".parquet")


def predict(
    run: FinishedRun,
    file: Annotated[Path, typer.Argument(help="Texts: .tsv, .csv, .jsonl or .parquet.")],
    out: Annotated[
        Path | None,
        typer.Option(help="New .tsv, .csv, .jsonl or .parquet file; default: print TSV."),
    ] = None,
    text: Annotated[
        str, typer.Option(help="Column of the texts; default: the task's column, or 'text'.")
    ] = "",
    text_pair: Annotated[
        str,
        typer.Option(help="Column of second texts; default: the task's column, or 'text_pair'."),
    ] = "",
) -> None:
    """Predict a label, score or tags, or write a text, for each row of a file of texts.

    Prints one row per text, or writes them to --out. Rows include the probabilities of all labels;
    for tags, JSONL and Parquet include the probability of each tag.

    Example: fedpeft predict runs/first new.tsv --out predicted.jsonl
    """
    if out is not None:
        _check_out(out)
    with _progress() as report:
        from fedpeft.predicting import caveats_of, predict, read_texts
        from fedpeft.tasks.caveats import cut_remarks
        from fedpeft.trained import Trained

        trained = Trained.read(run)
        examples = read_texts(trained, file, text, text_pair)
        predictions = predict(trained, examples, lambda done: report(done, len(examples)))
    found = caveats_of(predictions)
    for remark in cut_remarks(found, trained.experiment, len(predictions)):
        print(remark, file=sys.stderr)
    if out is None:
        sys.stdout.write(as_table(predictions, trained.labels, tabs=True))
    else:
        _write(out, predictions, trained.labels)
        print(f"written: {out} ({len(predictions)} rows)")


def as_table(predictions: Sequence[Prediction], labels: Sequence[str], tabs: bool) -> str:
    """Return predictions as TSV or CSV with a header and one line per text.

    TSV has no quoting, as in GLUE's files, so tabs and line breaks in labels become spaces. Tags
    are separated by spaces; ``null`` is a missing tag.
    """
    first = predictions[0].probabilities if predictions else None
    listed = list(labels) if isinstance(first, dict) else []
    rows = [["prediction", *(f"p({label})" for label in listed)]]
    for prediction in predictions:
        chances = prediction.probabilities if isinstance(prediction.probabilities, dict) else {}
        rows.append([_cell(prediction.value), *(f"{chances[label]:.6g}" for label in listed)])
    if tabs:
        return "".join("\t".join(" ".join(c.split()) for c in row) + "\n" for row in rows)
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def as_lines(predictions: Sequence[Prediction]) -> str:
    """Return predictions as JSONL: ``{"prediction": ..., "probabilities": {label: ...}}``.

    For tags, both are lists with one item per word.
    """
    lines = []
    for prediction in predictions:
        line: dict[str, Any] = {"prediction": prediction.value}
        if prediction.probabilities is not None:
            line["probabilities"] = prediction.probabilities
        lines.append(json.dumps(line, ensure_ascii=False, allow_nan=False) + "\n")
    return "".join(lines)


def _cell(value: str | float | list[str | None]) -> str:
    if isinstance(value, list):
        return " ".join("null" if tag is None else tag for tag in value)
    return value if isinstance(value, str) else f"{value:.6g}"


def _check_out(out: Path) -> None:
    """Raise UserError for a file that cannot be written."""
    if out.suffix not in _FORMATS:
        raise UserError(f"--out {out}: unknown file type; valid: {', '.join(_FORMATS)}")
    if out.exists():
        raise UserError(f"--out {out}: the file exists already; choose another")
    above = next(folder for folder in out.parents if folder.exists())  # missing ones are created
    if not above.is_dir():
        raise UserError(f"--out {out}: cannot be written ('{above}' is a file)")


def _write(out: Path, predictions: Sequence[Prediction], labels: Sequence[str]) -> None:
    content: str | bytes
    if out.suffix == ".parquet":
        from fedpeft.predicting import frame_of
        from fedpeft.tasks.frames import parquet_of

        content = parquet_of(frame_of(predictions, labels), str(out))
    elif out.suffix == ".jsonl":
        content = as_lines(predictions)
    else:
        content = as_table(predictions, labels, tabs=out.suffix == ".tsv")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(out, content)
    except OSError as error:
        raise UserError(f"--out {out}: cannot be written ({error.strerror})") from None


@contextmanager
def _progress() -> Iterator[Callable[[int, int], None]]:
    """Show the progress on stderr if it is a terminal."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("loading", total=None)

        def report(done: int, total: int) -> None:
            bar.update(task, description="predicting", completed=done, total=total)

        yield report
