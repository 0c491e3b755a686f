"""The folder of a run: settings, rounds, checkpoint, result. A crash damages no file.

``experiment.toml`` is written first and never changes. ``rounds.jsonl`` and ``bytes.jsonl`` grow by
whole rounds. ``checkpoint.safetensors`` is replaced after each round and decides which round is the
last (see ``fedpeft.runs.checkpoints``): when the run continues, lines of later rounds are dropped.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any, cast

import numpy as np

from fedpeft.errors import UserError
from fedpeft.experiment.config import Experiment, differing_keys
from fedpeft.files import append_lines, check_folder, read_object, write_atomic, write_json
from fedpeft.locks import is_held, locked
from fedpeft.runs.checkpoints import (
    Checkpoint,
    last_checkpoint,
    read_checkpoint,
    rewind,
    write_checkpoint,
)
from fedpeft.runs.records import ByteLine, Measured, RoundLine, WireLine
from fedpeft.runs.vectorfile import EXPERIMENT, IDENTITY, RESULT, VECTOR, vector_bytes

START = "start.json"  # the score before the first round
ROUNDS = "rounds.jsonl"
BYTES = "bytes.jsonl"
PROGRESS = "progress.json"
REFUSED = "refused.jsonl"  # reasons why nodes do not take part, or not in all rounds
ROSTER = "roster.json"  # of a deployment: each client's node and its outcome
LOCK = "run.lock"
#: Of a deployment: {"run": Flower's id, "ok": bool, "reason": str}; "stopped": true if stopped,
#: "mistake": true if the user's input was wrong.
ENDED = "ended.json"
_PLURAL = ("data", "labels")  # names of digests


@dataclass(frozen=True)
class RunFolder:
    """The folder of a run."""

    path: Path

    @classmethod
    def create(cls, path: Path, experiment: Experiment, resume: bool = False) -> RunFolder:
        """Create the folder of a new run, or open the folder of the same run to continue it.

        Raises:
            UserError: see ``check``.
        """
        cls.check(path, experiment, resume)
        if not (path / EXPERIMENT).exists():
            try:
                path.mkdir(parents=True, exist_ok=True)
                write_atomic(path / EXPERIMENT, experiment.to_toml(comments=True))
            except OSError as error:
                reason = error.strerror or type(error).__name__
                raise UserError(f"--out '{path}': cannot be written ({reason})") from None
        return cls(path)

    def locked(self, wait: float = 0.2) -> AbstractContextManager[None]:
        """Lock the folder against other processes; the lock of a killed process is released.

        Args:
            wait: seconds that another process has to release the lock; ``in_use`` holds it for a
                moment.

        Raises:
            UserError: another process is running in it.
        """
        return locked(self.path / LOCK, f"'{self.path}' is in use by another process", wait)

    def in_use(self) -> bool:
        """Return whether a process holds the lock."""
        return is_held(self.path / LOCK)

    @staticmethod
    def check(path: Path, experiment: Experiment, resume: bool = False) -> None:
        """Check that a run may use a folder; write nothing.

        Raises:
            UserError: the folder holds another run or other files, or nothing to resume.
        """
        assert not experiment.wire.budget, "within_budget chooses before a run begins"
        check_folder(path)
        if not (path / EXPERIMENT).is_file():
            if resume:
                raise UserError(
                    f"nothing to resume in '{path}': it holds no {EXPERIMENT}; leave out --resume "
                    f"to begin a run there"
                )
            # A crash during the creation of the folder may leave a temporary file.
            left = {f".{EXPERIMENT}.tmp"}
            if path.is_dir() and {file.name for file in path.iterdir()} - left:
                raise UserError(f"'{path}' is not empty and holds no run; choose another --out")
            return
        differing = differing_keys(Experiment.read(path / EXPERIMENT), experiment)
        if differing:
            raise UserError(
                f"'{path}' holds a run of other settings: {', '.join(differing)}, there "
                f"and here; choose another --out"
            )
        if not resume:
            state = "finished" if (path / RESULT).exists() else "unfinished"
            raise UserError(
                f"'{path}' holds this run, {state}; add --resume or choose another --out"
            )

    def pinned(self) -> dict[str, str]:
        """Return the values that ``pin`` stored; {} in a new folder."""
        path = self.path / IDENTITY
        if not path.exists():
            return {}
        try:
            return dict(json.loads(path.read_text(encoding="utf-8")))
        except (ValueError, TypeError):
            raise UserError(f"'{path}' is damaged; start again in another --out") from None

    def pin(self, identity: dict[str, str]) -> None:
        """Store digests that determine the run's bits, or compare them with the stored ones.

        Raises:
            UserError: the run began with another version, backbone, data, ...
        """
        kept = self.pinned()
        differing = [key for key in identity if kept.get(key, identity[key]) != identity[key]]
        if differing:
            others = (f"{'other' if k in _PLURAL else 'another'} {k}" for k in differing)
            raise UserError(
                f"'{self.path}' was begun with {', '.join(others)}; continuing would mix two runs: "
                f"choose another --out"
            )
        if identity.keys() - kept.keys():
            write_json(self.path / IDENTITY, {**kept, **identity})

    def checkpoint(self) -> Checkpoint | None:
        """Drop lines of rounds after the last checkpoint, and return the checkpoint.

        Raises:
            UserError: the checkpoint or a line before it cannot be read.
        """
        path, checkpoint = last_checkpoint(self.path), None
        if path:
            checkpoint, settings = read_checkpoint(path)
            self._check_settings(path, settings)
        for name in (ROUNDS, BYTES, REFUSED):
            self._keep_rounds(name, checkpoint.round if checkpoint else -1)
        return checkpoint

    def save_round(
        self, line: RoundLine, sent: Sequence[ByteLine | WireLine], state: Checkpoint
    ) -> None:
        """Write a finished round: its lines, then the checkpoint that makes them count."""
        self.save_bytes(sent)
        append_lines(self.path / ROUNDS, [json.dumps(line, allow_nan=False)])
        settings = (self.path / EXPERIMENT).read_text(encoding="utf-8")
        write_checkpoint(self.path, state, settings)

    def save_start(self, sent: Sequence[ByteLine | WireLine], state: Checkpoint) -> None:
        """Write the state that round 1 starts from: its bytes, then the checkpoint of round 0."""
        self.save_bytes(sent)
        settings = (self.path / EXPERIMENT).read_text(encoding="utf-8")
        write_checkpoint(self.path, state, settings)

    def save_bytes(self, sent: Sequence[ByteLine | WireLine]) -> None:
        """Append lines to bytes.jsonl."""
        append_lines(self.path / BYTES, [json.dumps(entry) for entry in sent])

    def rewind(self, number: int) -> None:
        """Continue after round ``number``: drop the rounds after it, and the result.

        Raises:
            UserError: the state after this round is not kept, or cannot be read.
        """
        rewind(self.path, number)
        (self.path / RESULT).unlink(missing_ok=True)
        self.checkpoint()

    def sent(self) -> list[ByteLine]:
        """Return the lines of bytes.jsonl about messages."""
        return [line for line in _whole_lines(self.path / BYTES) if line.get("kind") != "wire"]

    def begun(self) -> list[ByteLine]:
        """Return the lines of bytes.jsonl about the start, round 0: the first ones."""
        path = self.path / BYTES
        if not path.exists():
            return []
        with path.open(encoding="utf-8") as file:
            whole = (json.loads(line) for line in file if line.endswith("\n"))
            return list(takewhile(lambda line: not line["round"], whole))

    def rounds(self) -> list[RoundLine]:
        """Return the lines of rounds.jsonl without an incomplete last line."""
        return _whole_lines(self.path / ROUNDS)

    def save_start_score(self, measured: Measured) -> None:
        """Write the score before the first round."""
        write_json(self.path / START, measured)

    def started(self) -> Measured | None:
        """Return the score before the first round; None if it was not measured."""
        found = read_object(self.path / START)  # a deployment copies it from a server
        return cast(Measured, found) if "score" in found else None

    def finish(self, result: dict[str, Any], vector: np.ndarray, about: dict[str, Any]) -> None:
        """Write the final task vector with its description ``about``, and the result."""
        write_atomic(self.path / VECTOR, vector_bytes(vector, about))
        write_json(self.path / RESULT, result)

    def note(self, line: str, number: int | None = None) -> None:
        """Record once why a node does not take part, or not in all rounds.

        Args:
            line: the reason.
            number: of the round, 0 = the start; None = the next one.
        """
        if line not in self.noted():
            if number is None:
                done = self.rounds()
                number = done[-1]["round"] + 1 if done else 1
            entry = {"round": number, "message": line}
            append_lines(self.path / REFUSED, [json.dumps(entry)])

    def noted(self) -> list[str]:
        """Return the recorded lines."""
        return [str(entry["message"]) for entry in _whole_lines(self.path / REFUSED)]

    def report(
        self, phase: str, number: int, done: int, total: int, missing: Sequence[str] = ()
    ) -> None:
        """Write the progress of the run for those who watch the folder; a crash may lose it.

        At most four times a second: more would take longer than small clients. The names of
        ``missing`` nodes are always written.
        """
        path = self.path / PROGRESS
        recent = path.exists() and time.time() - path.stat().st_mtime < 0.25
        if 0 < done < total and recent and not missing:
            return
        progress: dict[str, Any] = {"phase": phase, "round": number, "done": done, "total": total}
        progress |= {"missing": [*missing]} if missing else {}
        temporary = self.path / f".{PROGRESS}.tmp"
        temporary.write_text(json.dumps(progress))
        temporary.replace(path)

    def _check_settings(self, checkpoint: Path, settings: str) -> None:
        """Raise UserError if a checkpoint belongs to other settings than the folder's."""
        expected = Experiment.read(self.path / EXPERIMENT)
        differing = differing_keys(Experiment.load(settings), expected)
        if differing:
            raise UserError(
                f"'{checkpoint}' is of another experiment: {', '.join(differing)} (its own and "
                f"the folder's)"
            )

    def _keep_rounds(self, name: str, last: int) -> None:
        path = self.path / name
        if path.exists():
            kept = [line for line in _whole_lines(path) if line["round"] <= last]
            write_atomic(path, "".join(json.dumps(line) + "\n" for line in kept))


def _whole_lines(path: Path) -> list[Any]:
    if not path.exists():
        return []
    *lines, _ = path.read_text(encoding="utf-8").split("\n")  # after the last newline: incomplete
    records = []
    for number, line in enumerate(lines, start=1):
        try:
            records.append(json.loads(line))
        except ValueError:
            raise UserError(
                f"'{path}' line {number} is damaged; start again in another --out"
            ) from None
    return records
