"""The folder of a study: its file, the folders of its runs, failures, and results.

``study.toml`` is the study as it was last run, ``asked.json`` its file and the overrides of the
command line, ``choices.json`` what planning chose for its runs. ``trials`` and ``cells`` hold run
folders named by labels and settings, so a cell whose settings change is another cell. ``failed``
holds the reasons of failures, ``damaged`` holds runs that could not be read, and ``best.json`` is
the result of the search.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from fedpeft.errors import UserError
from fedpeft.files import check_folder, read_object, write_atomic, write_json
from fedpeft.locks import locked
from fedpeft.runs.folder import RESULT, RunFolder
from fedpeft.runs.vectorfile import EXPERIMENT
from simulations.study.cells import Cell
from simulations.study.choices import Choices
from simulations.study.file import parse
from simulations.study.plan import Plan
from simulations.study.search import Best, Key
from simulations.study.table import Finished, rows_of

STUDY, ASKED, LOCK = "study.toml", "asked.json", "study.lock"
CHOICES = "choices.json"
BEST = "best.json"
LOG = "workers.log"  # output of the processes that run the cells
State = Literal["finished", "running", "unfinished", "failed", "waiting"]


class Damaged(Exception):
    """A finished run whose files cannot be read; the message names the file."""


@dataclass(frozen=True)
class StudyFolder:
    """An open study folder."""

    path: Path

    @staticmethod
    def is_at(path: Path) -> bool:
        """Return whether a folder is a study's, made by ``create``.

        A study.toml alone does not make it one: users also keep their study files beside runs.
        """
        return (path / STUDY).is_file() and (path / ASKED).is_file()

    @classmethod
    def create(
        cls,
        path: Path,
        text: str,
        resume: bool,
        file: str = STUDY,
        overrides: Sequence[str] = (),
        choices: Choices | None = None,
    ) -> StudyFolder:
        """Create the folder of a study, or open it to resume.

        Args:
            path: of the folder.
            text: content of study.toml.
            resume: whether the folder must already hold the study.
            file: path of the study file.
            overrides: key=value of the command line; when resuming, empty keeps the old ones.
            choices: of the study's plan, see ``choices``.

        Raises:
            UserError: the folder holds other files, holds a study without ``resume``, holds none
                with ``resume``, or cannot be written.
        """
        check_folder(path)
        there = cls.is_at(path)
        if resume and not there:
            raise UserError(f"nothing to resume in '{path}': it holds no {STUDY}")
        if there and not resume:
            raise UserError(f"'{path}' holds a study; add --resume or choose another --out")
        # A kill while the folder was created may leave these files.
        files = (CHOICES, ASKED, STUDY)
        leftovers = {LOCK, CHOICES, ASKED, *(f".{name}.tmp" for name in files)}
        used = path.is_dir() and {entry.name for entry in path.iterdir()} - leftovers
        if used and not there:
            raise UserError(f"'{path}' is not empty and holds no study; choose another --out")
        folder = cls(path)
        try:
            path.mkdir(parents=True, exist_ok=True)
            with folder.locked():
                if choices:
                    folder.keep(choices)
                if overrides or not there:
                    write_json(path / ASKED, {"file": file, "set": [*overrides]})
                write_atomic(path / STUDY, text)
        except OSError as error:
            raise UserError(f"--out '{path}': cannot be written ({error.strerror})") from None
        return folder

    @classmethod
    def open(cls, path: Path) -> StudyFolder:
        """Open the folder of a study to read it.

        Raises:
            UserError: it holds no study.
        """
        if not cls.is_at(path):
            raise UserError(
                f"'{path}' holds no study ({STUDY}); expected a folder that `fedpeft study run` "
                f"wrote"
            )
        return cls(path)

    def plan(self) -> Plan:
        """Return the plan of the study as it was last run.

        Raises:
            UserError: study.toml or asked.json cannot be read or is wrong.
        """
        try:
            study = parse((self.path / STUDY).read_text(encoding="utf-8"))
            return Plan(study, tuple(self.asked()["set"]), self.choices())
        except (UserError, UnicodeDecodeError) as error:
            raise UserError(f"{self.path / STUDY}: {error}") from None

    def choices(self) -> Choices:
        """Return the choices of a study that was run; one of an earlier version has none.

        Raises:
            UserError: choices.json is damaged.
        """
        path = self.path / CHOICES
        if not path.exists():
            return Choices(chooses=False)
        if known := read_object(path):
            return Choices(known)
        raise UserError(f"'{path}' is damaged; choose another --out")

    def keep(self, choices: Choices) -> None:
        """Store the choices of the study's plan."""
        if choices.chooses and choices.known != read_object(self.path / CHOICES):
            write_json(self.path / CHOICES, choices.known)

    def command(self) -> str:
        """Return the command that started the study."""
        asked = self.asked()
        changes = [part for change in asked["set"] for part in ("-s", change)]
        return shlex.join(["fedpeft", "study", "run", asked["file"], *changes])

    def asked(self) -> dict[str, Any]:
        """Return the study's ``file`` and the overrides of the command line (``set``).

        Raises:
            UserError: asked.json is missing or damaged.
        """
        path = self.path / ASKED
        try:
            asked = json.loads(path.read_text(encoding="utf-8"))
            return {"file": str(asked["file"]), "set": [str(change) for change in asked["set"]]}
        except (OSError, ValueError, KeyError, TypeError):
            raise UserError(f"'{path}' is missing or damaged; choose another --out") from None

    def locked(self) -> AbstractContextManager[None]:
        """Lock the study against other processes; the lock of a killed process is released."""
        return locked(self.path / LOCK, f"'{self.path}' is in use by another process")

    def run_of(self, cell: Cell) -> RunFolder:
        """Return the run folder of a cell or trial; it need not exist."""
        kind = "trials" if cell.experiment.task.validation else "cells"
        return RunFolder(self.path / kind / cell.name)

    def read(self, cell: Cell) -> Finished | None:
        """Return the results of a cell; None if it has not ended.

        Raises:
            Damaged: a file cannot be read or belongs to another run.
        """
        folder = self.run_of(cell)
        path = folder.path / RESULT
        if not path.exists():
            return None
        try:
            result = json.loads(path.read_text(encoding="utf-8"))
            same = result["digests"]["experiment"] == cell.experiment.digest
            finished = Finished(result, folder.rounds())
            rows_of(cell, finished)  # raises if the table's values are missing
            _ = result["score"], result["versions"], result["digests"]["backbone"]
        except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
            raise Damaged(f"{path}: {type(error).__name__}: {error}") from None
        except UserError as error:
            raise Damaged(str(error).partition("; start again")[0]) from None
        if not same:
            raise Damaged(f"{path}: the result of another run")
        if len(finished.rounds) != result["rounds"]:
            raise Damaged(f"{path}: {len(finished.rounds)} of {result['rounds']} rounds")
        return finished

    def state(self, cell: Cell) -> State:
        """Return the state of a cell according to its files."""
        folder = self.run_of(cell)
        if (folder.path / RESULT).exists():
            return "finished"
        if folder.in_use():
            return "running"
        if self.failure(cell):
            return "failed"
        return "unfinished" if (folder.path / EXPERIMENT).exists() else "waiting"

    def set_aside(self, cell: Cell) -> Path:
        """Move the folder of a cell away, so that the cell runs again; return its new path.

        Raises:
            UserError: it holds privacy ledgers, which a new run would start from zero.
        """
        source = self.run_of(cell).path
        if (source / "privacy").exists():
            raise UserError(
                f"its privacy ledgers have charges, and a new run would spend again on the same "
                f"examples; if it may, move '{source}' away"
            )
        target = self.path / "damaged" / source.name
        target.parent.mkdir(exist_ok=True)
        number = 1
        while target.exists():
            number += 1
            target = target.with_name(f"{source.name}.{number}")
        source.replace(target)
        return target

    def failure(self, cell: Cell) -> str:
        """Return the reason why a cell failed, in one line; empty if it did not."""
        path = self._failed(cell)
        return path.read_text(encoding="utf-8").partition("\n")[0] if path.exists() else ""

    def note_failure(self, cell: Cell, reason: str, detail: str) -> None:
        """Write the reason why a cell failed: one line, then the details."""
        self._failed(cell).parent.mkdir(exist_ok=True)
        write_atomic(self._failed(cell), f"{reason}\n{detail}")

    def forget_failure(self, cell: Cell) -> None:
        """Delete the reason of an earlier failure."""
        self._failed(cell).unlink(missing_ok=True)

    def others(self, cells: Sequence[Cell]) -> list[str]:
        """Return the names of the runs under ``cells`` that do not belong to these cells."""
        known = {cell.name for cell in cells}
        runs = (self.path / "cells").glob("*/") if (self.path / "cells").exists() else ()
        return sorted(run.name for run in runs if run.name not in known)

    def save_best(self, by: Sequence[str], best: dict[Key, Best]) -> None:
        """Write the best settings of a search."""
        rows = [
            {"axes": dict(zip(by, key, strict=True)), **asdict(settings)}
            for key, settings in best.items()
        ]
        write_json(self.path / BEST, rows)

    def _failed(self, cell: Cell) -> Path:
        return self.path / "failed" / f"{cell.name}.txt"
