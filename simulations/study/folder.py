"""The folder of a study: its file, the folders of its runs, why some failed, what came out.

``study.toml`` is the study as it was last run, ``asked.json`` its file and what the command line
changed. ``trials`` and ``cells`` hold run folders, named by
labels and settings, so a cell whose settings change is another cell. ``failed`` says why runs did
not end, ``damaged`` keeps what could not be read, and ``best.json`` is the search's outcome.
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
from fedpeft.files import write_atomic, write_json
from fedpeft.locks import locked
from fedpeft.vectorfile import EXPERIMENT
from server.runfolder import RESULT, RunFolder
from simulations.study.cells import Cell
from simulations.study.file import parse
from simulations.study.plan import Plan
from simulations.study.search import Best, Key
from simulations.study.table import Finished, rows_of

STUDY, ASKED, LOCK = "study.toml", "asked.json", "study.lock"
BEST = "best.json"
LOG = "workers.log"  # what the processes of the study's runs printed
State = Literal["finished", "running", "unfinished", "failed", "waiting"]


class Damaged(Exception):
    """A finished run whose files cannot be read; the message names the file."""


@dataclass(frozen=True)
class StudyFolder:
    """A study's folder, opened."""

    path: Path

    @classmethod
    def create(
        cls, path: Path, text: str, resume: bool, file: str = STUDY, overrides: Sequence[str] = ()
    ) -> StudyFolder:
        """Make the folder of a study, or open it to go on.

        Args:
            path: of the folder.
            text: becomes its study.toml.
            resume: whether it holds the study already.
            file: where the text is from.
            overrides: key=value of the command line; of one that goes on, if there are any.

        Raises:
            UserError: the folder holds other files, a study and ``resume`` is not asked for, or
                none and it is; it cannot be written.
        """
        there = (path / STUDY).is_file()
        if resume and not there:
            raise UserError(f"nothing to resume in '{path}': it holds no {STUDY}")
        if there and not resume:
            raise UserError(f"'{path}' holds a study; add --resume or choose another --out")
        # What a kill in the middle of making the folder leaves is not in the way.
        own = {LOCK, ASKED, f".{ASKED}.tmp", f".{STUDY}.tmp"}
        used = path.is_dir() and {each.name for each in path.iterdir()} - own
        if not there and (used or (path.exists() and not path.is_dir())):
            raise UserError(f"'{path}' is not empty and holds no study; choose another --out")
        folder = cls(path)
        try:
            path.mkdir(parents=True, exist_ok=True)
            with folder.locked():
                if overrides or not there:
                    write_json(path / ASKED, {"file": file, "set": [*overrides]})
                write_atomic(path / STUDY, text)
        except OSError as error:
            raise UserError(f"--out '{path}': cannot be written ({error.strerror})") from None
        return folder

    @classmethod
    def open(cls, path: Path) -> StudyFolder:
        """Open the folder of a study to look at it.

        Raises:
            UserError: it holds no study.
        """
        if not (path / STUDY).is_file():
            raise UserError(f"'{path}' holds no study ({STUDY}); expected a folder of study run")
        return cls(path)

    def plan(self) -> Plan:
        """Return the plan of the study as it was last run.

        Raises:
            UserError: its file, or what was asked, cannot be read or is wrong.
        """
        try:
            study = parse((self.path / STUDY).read_text(encoding="utf-8"))
            return Plan(study, tuple(self.asked()["set"]))
        except (UserError, UnicodeDecodeError) as error:
            raise UserError(f"{self.path / STUDY}: {error}") from None

    def command(self) -> str:
        """Return the command that ran the study first."""
        asked = self.asked()
        changes = [part for each in asked["set"] for part in ("-s", each)]
        return shlex.join(["fedpeft", "study", "run", asked["file"], *changes])

    def asked(self) -> dict[str, Any]:
        """Return the study's ``file``, and what the command line ``set``.

        Raises:
            UserError: asked.json is damaged.
        """
        path = self.path / ASKED
        if not path.exists():
            return {"file": STUDY, "set": []}
        try:
            asked = json.loads(path.read_text(encoding="utf-8"))
            return {"file": str(asked["file"]), "set": [str(each) for each in asked["set"]]}
        except (ValueError, KeyError, TypeError):
            raise UserError(f"'{path}' is damaged; choose another --out") from None

    def locked(self) -> AbstractContextManager[None]:
        """Keep other processes from running this study; a killed one lets go."""
        return locked(self.path / LOCK, f"'{self.path}' is in use by another process")

    def run_of(self, cell: Cell) -> RunFolder:
        """Return the run folder of a cell or trial; it need not be there."""
        kind = "trials" if cell.experiment.task.validation else "cells"
        return RunFolder(self.path / kind / cell.name)

    def read(self, cell: Cell) -> Finished | None:
        """Return the results of a cell, None if it has not ended.

        Raises:
            Damaged: a file of it cannot be read, or is not of this cell.
        """
        folder = self.run_of(cell)
        path = folder.path / RESULT
        if not path.exists():
            return None
        try:
            result = json.loads(path.read_text(encoding="utf-8"))
            own = result["digests"]["experiment"] == cell.experiment.digest
            found = Finished(result, folder.rounds())
            rows_of(cell, found)  # all that the table needs is there
            _ = result["score"], result["versions"], result["digests"]["backbone"]
        except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
            raise Damaged(f"{path}: {type(error).__name__}: {error}") from None
        except UserError as error:
            raise Damaged(str(error).partition("; start again")[0]) from None
        if not own:
            raise Damaged(f"{path}: the result of another run")
        if len(found.rounds) != result["rounds"]:
            raise Damaged(f"{path}: {len(found.rounds)} of {result['rounds']} rounds")
        return found

    def state(self, cell: Cell) -> State:
        """Return where a cell is, by its files."""
        folder = self.run_of(cell)
        if (folder.path / RESULT).exists():
            return "finished"
        if folder.in_use():
            return "running"
        if self.failure(cell):
            return "failed"
        return "unfinished" if (folder.path / EXPERIMENT).exists() else "waiting"

    def set_aside(self, cell: Cell) -> Path:
        """Move the folder of a cell away, so that it is run anew; return where it is now.

        Raises:
            UserError: it holds privacy ledgers, which a new run would begin again at nothing.
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
        """Return why a cell did not end, in one line; empty if it did or was not tried."""
        path = self._failed(cell)
        return path.read_text(encoding="utf-8").partition("\n")[0] if path.exists() else ""

    def note_failure(self, cell: Cell, reason: str, detail: str) -> None:
        """Write down why a cell did not end: one line, then all that is known."""
        self._failed(cell).parent.mkdir(exist_ok=True)
        write_atomic(self._failed(cell), f"{reason}\n{detail}")

    def forget_failure(self, cell: Cell) -> None:
        """Drop what was written of an earlier try."""
        self._failed(cell).unlink(missing_ok=True)

    def others(self, cells: Sequence[Cell]) -> list[str]:
        """Return the names of runs under ``cells`` that are none of these."""
        known = {cell.name for cell in cells}
        there = (self.path / "cells").glob("*/") if (self.path / "cells").exists() else ()
        return sorted(each.name for each in there if each.name not in known)

    def save_best(self, by: Sequence[str], best: dict[Key, Best]) -> None:
        """Write what a search found."""
        rows = [
            {"axes": dict(zip(by, key, strict=True)), **asdict(found)}
            for key, found in best.items()
        ]
        write_json(self.path / BEST, rows)

    def _failed(self, cell: Cell) -> Path:
        return self.path / "failed" / f"{cell.name}.txt"
