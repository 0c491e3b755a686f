"""The folder of a run: settings, rounds, checkpoint, result; every file whole after a crash.

``experiment.toml`` is written first and never changed, ``rounds.jsonl`` and ``bytes.jsonl`` grow
by whole rounds, ``checkpoint.safetensors`` is replaced after each round and decides which round
was the last: lines of later rounds are dropped when the run goes on.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fedpeft.config import Experiment, differing_keys
from fedpeft.errors import UserError
from fedpeft.files import append_lines, write_atomic, write_json
from fedpeft.locks import is_held, locked
from fedpeft.vectorfile import EXPERIMENT, VECTOR, vector_bytes

ROUNDS = "rounds.jsonl"
BYTES = "bytes.jsonl"
CHECKPOINT = "checkpoint.safetensors"
RESULT = "result.json"
PROGRESS = "progress.json"
IDENTITY = "identity.json"
REFUSED = "refused.jsonl"  # which nodes do not take part, or not in all of it, and why
ROSTER = "roster.json"  # of a deployment: each client's node and what became of it
LOCK = "run.lock"


@dataclass
class Checkpoint:
    """Where a run is: the round done, the task vector [P], the strategy's memory, seconds."""

    round: int
    vector: np.ndarray
    strategy: dict[str, np.ndarray] = field(default_factory=dict)
    seconds: float = 0.0


@dataclass(frozen=True)
class RunFolder:
    """A run's folder, opened."""

    path: Path

    @classmethod
    def create(cls, path: Path, experiment: Experiment, resume: bool = False) -> RunFolder:
        """Make the folder of a new run, or open that of the same run to go on with it.

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

    def locked(self, wait: float = 0.0) -> AbstractContextManager[None]:
        """Keep other processes from running in this folder; a killed one lets go.

        Args:
            wait: seconds that another process has to let go.

        Raises:
            UserError: another process is running in it.
        """
        return locked(self.path / LOCK, f"'{self.path}' is in use by another process", wait)

    def in_use(self) -> bool:
        """Return whether a process runs in this folder now."""
        return is_held(self.path / LOCK)

    @staticmethod
    def check(path: Path, experiment: Experiment, resume: bool = False) -> None:
        """Make sure that a run may use a folder; writes nothing.

        Raises:
            UserError: the folder holds another run or other files, or nothing to resume.
        """
        if not (path / EXPERIMENT).is_file():
            if resume:
                raise UserError(
                    f"nothing to resume in '{path}': it holds no {EXPERIMENT}; leave out --resume "
                    f"to begin a run there"
                )
            # What a crash while the folder was made leaves behind is not in the way.
            own = {f".{EXPERIMENT}.tmp"}
            if path.exists() and (not path.is_dir() or {f.name for f in path.iterdir()} - own):
                raise UserError(f"'{path}' is not empty and holds no run; choose another --out")
            return
        differing = differing_keys(Experiment.read(path / EXPERIMENT), experiment)
        if differing:
            raise UserError(
                f"'{path}' holds a run of other settings: {', '.join(differing)} (its own and "
                f"yours); choose another --out"
            )
        if not resume:
            state = "finished" if (path / RESULT).exists() else "unfinished"
            raise UserError(
                f"'{path}' holds this run, {state}; add --resume or choose another --out"
            )

    def pinned(self) -> dict[str, str]:
        """Return what ``pin`` has kept; nothing in a new folder."""
        path = self.path / IDENTITY
        if not path.exists():
            return {}
        try:
            return dict(json.loads(path.read_text(encoding="utf-8")))
        except (ValueError, TypeError):
            raise UserError(f"'{path}' is damaged; start again in another --out") from None

    def pin(self, identity: dict[str, str]) -> None:
        """Keep what the run's bits depend on besides its settings, or compare with what is kept.

        Raises:
            UserError: the folder's run was begun with another version, backbone, data, ...
        """
        kept = self.pinned()
        differing = [key for key in identity if kept.get(key, identity[key]) != identity[key]]
        if differing:
            raise UserError(
                f"'{self.path}' was begun with another {', '.join(differing)}; going on would mix "
                f"two runs: choose another --out"
            )
        if identity.keys() - kept.keys():
            write_json(self.path / IDENTITY, {**kept, **identity})

    def checkpoint(self) -> Checkpoint | None:
        """Return the last checkpoint, after dropping what was written for later rounds.

        Raises:
            UserError: the checkpoint or a line before it cannot be read.
        """
        from safetensors import SafetensorError, safe_open

        path = self.path / CHECKPOINT
        found = None
        if path.exists():
            try:
                with safe_open(path, framework="numpy") as file:
                    meta = json.loads(file.metadata()["state"])
                    arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
                vector = arrays.pop("vector")
                found = Checkpoint(meta["round"], vector, arrays, meta["seconds"])
                theirs = meta["experiment"]
            except (SafetensorError, KeyError, TypeError, ValueError) as error:
                raise UserError(
                    f"'{path}' is damaged ({error}); start again in another --out"
                ) from None
            self._check_own(path, theirs)
        for name in (ROUNDS, BYTES, REFUSED):
            self._keep_rounds(name, found.round if found else 0)
        return found

    def save_round(self, line: dict[str, Any], ledger: list[str], state: Checkpoint) -> None:
        """Write a finished round: its lines first, then the checkpoint that makes them count."""
        from safetensors.numpy import save

        append_lines(self.path / BYTES, ledger)
        append_lines(self.path / ROUNDS, [json.dumps(line, allow_nan=False)])
        settings = (self.path / EXPERIMENT).read_text(encoding="utf-8")
        about = {"round": state.round, "seconds": state.seconds, "experiment": settings}
        meta = {"state": json.dumps(about)}
        arrays = {"vector": state.vector, **state.strategy}
        write_atomic(self.path / CHECKPOINT, save(arrays, meta))

    def sent(self) -> list[dict[str, Any]]:
        """Return the lines of bytes.jsonl, one for each round, client and kind."""
        return _whole_lines(self.path / BYTES)

    def rounds(self) -> list[dict[str, Any]]:
        """Return the lines of rounds.jsonl; a last line that is still being written is left out."""
        return _whole_lines(self.path / ROUNDS)

    def finish(self, result: dict[str, Any], vector: np.ndarray, about: dict[str, Any]) -> None:
        """Write the final task vector with its description (JSON under one key), and the result."""
        write_atomic(self.path / VECTOR, vector_bytes(vector, about))
        write_json(self.path / RESULT, result)

    def note(self, line: str) -> None:
        """Write down, once, why a node does not take part or not in all of it."""
        if line not in self.noted():
            done = self.rounds()
            entry = {"round": done[-1]["round"] + 1 if done else 1, "message": line}
            append_lines(self.path / REFUSED, [json.dumps(entry)])

    def noted(self) -> list[str]:
        """Return what was noted so far."""
        return [str(entry["message"]) for entry in _whole_lines(self.path / REFUSED)]

    def report(
        self, phase: str, round: int, done: int, total: int, missing: Sequence[str] = ()
    ) -> None:
        """Tell whoever watches the folder where the run is; not durable, only whole.

        Written at most four times a second, else it would cost more than small clients do; always
        where nodes are ``missing``, who are named.
        """
        path = self.path / PROGRESS
        soon = path.exists() and time.time() - path.stat().st_mtime < 0.25
        if 0 < done < total and soon and not missing:
            return
        progress: dict[str, Any] = {"phase": phase, "round": round, "done": done, "total": total}
        progress |= {"missing": [*missing]} if missing else {}
        temporary = self.path / f".{PROGRESS}.tmp"
        temporary.write_text(json.dumps(progress))
        temporary.replace(path)

    def _check_own(self, checkpoint: Path, settings: str) -> None:
        """Raise UserError if a checkpoint was made by other settings than the folder's."""
        own = Experiment.read(self.path / EXPERIMENT)
        differing = differing_keys(Experiment.load(settings), own)
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


def _whole_lines(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    *lines, _ = path.read_text(encoding="utf-8").split("\n")  # what follows the last newline: torn
    found = []
    for number, line in enumerate(lines, start=1):
        try:
            found.append(json.loads(line))
        except ValueError:
            raise UserError(
                f"'{path}' line {number} is damaged; start again in another --out"
            ) from None
    return found
