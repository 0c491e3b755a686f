"""Find the runs and studies below some folders."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fedpeft.errors import UserError
from fedpeft.page.run.state import is_run
from simulations.study.folder import STUDY, StudyFolder

_DEPTH = 4  # folders within folders that are searched


@dataclass
class Found:
    """Runs and studies: name on the page -> folder."""

    runs: dict[str, Path] = field(default_factory=dict)
    studies: dict[str, Path] = field(default_factory=dict)


def find(paths: Sequence[Path]) -> Found:
    """Return the runs and studies in some folders and up to four levels below them.

    The runs of a study belong to it and are not listed again. Names are paths below the given
    folder, with the folder's name in front if several are given.

    Raises:
        UserError: a folder is missing, or holds neither a run nor a study.
    """
    found = Found()
    for path in paths:
        if not path.is_dir():
            raise UserError(f"'{path}': no such folder; expected a folder of runs or studies")
        before = len(found.runs) + len(found.studies)
        for folder, relative in _below(path, "", _DEPTH):
            front = path.resolve().name
            name = "/".join(
                filter(None, [front if len(paths) > 1 or not relative else "", relative])
            )
            kind = found.runs if is_run(folder) else found.studies
            kind[_unused(name, found)] = folder
        if len(found.runs) + len(found.studies) == before:
            raise UserError(
                f"'{path}' holds no run (experiment.toml) and no study ({STUDY}); expected a "
                f"folder that `fedpeft simulate` or `fedpeft study run` wrote, or one above it"
            )
    return found


def _below(folder: Path, relative: str, depth: int) -> Iterator[tuple[Path, str]]:
    if is_run(folder) or StudyFolder.is_at(folder):
        yield folder, relative
        return
    if not depth:
        return
    try:
        names = sorted(
            entry.name for entry in os.scandir(folder) if entry.is_dir() and entry.name[0] != "."
        )
    except OSError:  # not ours to read
        return
    for name in names:
        yield from _below(folder / name, f"{relative}/{name}".lstrip("/"), depth - 1)


def _unused(name: str, found: Found) -> str:
    unused, number = name, 1
    while unused in found.runs or unused in found.studies:
        number += 1
        unused = f"{name} ({number})"
    return unused
