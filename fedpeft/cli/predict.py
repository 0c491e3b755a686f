"""``fedpeft predict``: what a finished run says of texts."""

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

from fedpeft.errors import UserError
from fedpeft.files import write_atomic

if TYPE_CHECKING:
    from fedpeft.predicting import Prediction

_FORMATS = (".tsv", ".csv", ".jsonl")


def predict(
    run: Annotated[Path, typer.Argument(help="Folder of a finished run, or a vector's file.")],
    file: Annotated[Path, typer.Argument(help="Texts: .tsv, .csv, .jsonl or .parquet.")],
    out: Annotated[
        Path | None, typer.Option(help="A new .tsv, .csv or .jsonl file; none = print TSV.")
    ] = None,
    text: Annotated[
        str, typer.Option(help="Column of the texts; default: the task's own, or 'text'.")
    ] = "",
    text_pair: Annotated[
        str, typer.Option(help="Column of second texts; default: the task's own, or 'text_pair'.")
    ] = "",
) -> None:
    """Predict labels, scores or tags for the texts of a file, row by row.

    Labels come with all probabilities; tags with their own, in JSONL.

    Example: fedpeft predict runs/first new.tsv --out predicted.jsonl
    """
    if out is not None:
        _check_out(out)
    with _progress() as report:
        from fedpeft.predicting import predict, read_texts
        from fedpeft.trained import Trained

        trained = Trained.read(run)
        examples = read_texts(trained, file, text, text_pair)
        found = predict(trained, examples, lambda done: report(done, len(examples)))
    silent = sum(each.value.count(None) for each in found if isinstance(each.value, list))
    if silent:
        print(
            f"{silent} words have no tag (null): cut off at task.max_length = "
            f"{trained.experiment.task.max_length} tokens, or no token of their own",
            file=sys.stderr,
        )
    if out is None:
        sys.stdout.write(as_table(found, trained.labels, tabs=True))
    else:
        _write(out, found, trained.labels)
        print(f"written: {out} ({len(found)} rows)")


def as_table(found: Sequence[Prediction], labels: Sequence[str], tabs: bool) -> str:
    """Return predictions as TSV or CSV with a header, a line each.

    A TSV file has no quoting, as GLUE's, so tabs and line ends in labels become blanks. Tags
    stand between blanks, ``null`` where nothing was predicted.
    """
    chances = list(labels) if found and isinstance(found[0].probabilities, dict) else []
    rows = [["prediction", *(f"p({label})" for label in chances)]]
    for each in found:
        shares = each.probabilities if isinstance(each.probabilities, dict) else {}
        rows.append([_cell(each.value), *(f"{shares[label]:.6g}" for label in chances)])
    if tabs:
        return "".join("\t".join(" ".join(c.split()) for c in row) + "\n" for row in rows)
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def as_lines(found: Sequence[Prediction]) -> str:
    """Return predictions as JSONL: ``{"prediction": ..., "probabilities": {label: ...}}``.

    For tags both are lists, an item a word.
    """
    lines = []
    for each in found:
        line: dict[str, Any] = {"prediction": each.value}
        if each.probabilities is not None:
            line["probabilities"] = each.probabilities
        lines.append(json.dumps(line, ensure_ascii=False, allow_nan=False) + "\n")
    return "".join(lines)


def _cell(value: str | float | list[str | None]) -> str:
    if isinstance(value, list):
        return " ".join("null" if tag is None else tag for tag in value)
    return value if isinstance(value, str) else f"{value:.6g}"


def _check_out(out: Path) -> None:
    """Raise UserError for a file that cannot be written, before anything is loaded."""
    if out.suffix not in _FORMATS:
        raise UserError(f"--out {out}: unknown kind of file; valid: {', '.join(_FORMATS)}")
    if out.exists():
        raise UserError(f"--out {out}: is there already; choose another")
    if not out.parent.is_dir():
        raise UserError(f"--out {out}: no folder '{out.parent}'; make it first")


def _write(out: Path, found: Sequence[Prediction], labels: Sequence[str]) -> None:
    lines, tabs = out.suffix == ".jsonl", out.suffix == ".tsv"
    try:
        write_atomic(out, as_lines(found) if lines else as_table(found, labels, tabs))
    except OSError as error:
        raise UserError(f"--out {out}: cannot be written ({error.strerror})") from None


@contextmanager
def _progress() -> Iterator[Callable[[int, int], None]]:
    """Show on stderr how far it is, if a person is looking; it is gone afterwards."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("loading", total=None)

        def report(done: int, total: int) -> None:
            bar.update(task, description="predicting", completed=done, total=total)

        yield report
