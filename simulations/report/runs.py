"""Write the report of one run, or of several compared, as one HTML file."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from fedpeft.errors import UserError
from fedpeft.files import write_atomic
from fedpeft.page.app import MOST
from fedpeft.page.render import page
from fedpeft.page.run.feed import run_data
from fedpeft.page.run.run import RunView
from fedpeft.page.run.state import is_run
from simulations.report.page import PAGE
from simulations.watch.source import more_of


def page_of(paths: Sequence[Path], out: Path | None = None) -> Path:
    """Return the file of the report of runs.

    Args:
        paths: run folders.
        out: the file; None = report.html in the folder of a single run.

    Raises:
        UserError: a folder holds no run, there are too many, or the file has no name.
    """
    _require_runs(paths)
    if len(paths) > MOST:
        raise UserError(f"{len(paths)} runs: a report compares at most {MOST}")
    if out is None and len(paths) > 1:
        raise UserError("--out is missing: name the file of a report of several runs")
    target = out or paths[0] / PAGE
    if target.is_dir():
        raise UserError(f"--out {target}: is a folder; expected a file")
    return target


def write_runs_report(paths: Sequence[Path], out: Path | None = None) -> tuple[Path, list[str]]:
    """Write the report of runs, finished or not.

    Args:
        paths: run folders.
        out: see ``page_of``.

    Returns:
        The path of the page, and a line for each damaged file or line that it leaves out.

    Raises:
        UserError: see ``page_of``; or the file cannot be written.
    """
    target = page_of(paths, out)
    views = [RunView(path, name, more_of) for path, name in zip(paths, _names(paths), strict=True)]
    data = run_data(views)
    text = page({**data, "view": "runs", "live": False, "cursor": ""})
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(target, text)
    except OSError as error:
        raise UserError(f"--out {target}: cannot be written ({error.strerror})") from None
    left_out = [
        f"{run['name']}: {line}"
        for run in data["runs"]
        for line in (*run["head"]["problems"], *run["damaged"])
    ]
    return target, left_out


def _require_runs(paths: Sequence[Path]) -> None:
    """Raise UserError if a folder holds no run."""
    for path in paths:
        if not is_run(path):
            within = sorted(str(each) for each in path.glob("*/") if is_run(each))
            such = f", such as '{within[0]}'" if within else ""
            raise UserError(f"'{path}' holds no run (experiment.toml); expected run folders{such}")


def _names(paths: Sequence[Path]) -> list[str]:
    """Return a different name for each run: the last parts of its path that tell it apart."""
    resolved = [path.resolve() for path in paths]
    if len(resolved) == 1:
        return [resolved[0].name]
    common = Path(os.path.commonpath([path.parent for path in resolved]))
    names = [str(path.relative_to(common)) for path in resolved]
    for at, name in enumerate(names):
        if same := names[:at].count(name):
            names[at] = f"{name} ({same + 1})"
    return names
