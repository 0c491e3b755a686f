"""Tracking: write the measurements of a run for TensorBoard, MLflow, or W&B."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec

from fedpeft.errors import UserError
from fedpeft.experiment.config import Experiment
from fedpeft.files import write_json
from fedpeft.runs.folder import RESULT, RunFolder
from fedpeft.runs.records import RoundLine
from simulations.following import Follower
from simulations.measured import measured
from simulations.tracking.base import Begun, Tracker, numbers_of, result_values
from simulations.tracking.mlflow import MLflow
from simulations.tracking.tensorboard import TensorBoard
from simulations.tracking.wandb import WandB

FOLDER = "tracking"  # in the run folder: the progress of each tool
#: Name in output.track, of the extra and of the package -> tracker.
TRACKERS: Mapping[str, type[Tracker]] = {
    "tensorboard": TensorBoard,
    "mlflow": MLflow,
    "wandb": WandB,
}
_log = logging.getLogger(__name__)


def require_trackers(names: Iterable[str]) -> None:
    """Raise UserError if a package that ``output.track`` needs is not installed."""
    for name in names:
        spec = find_spec(name)
        if spec is None or spec.origin is None:  # a folder of that name has no origin
            raise UserError(
                f"output.track = '{name}' needs {TRACKERS[name].__name__}: "
                f"pip install -e '.[{name}]' in the checkout"
            )


@contextmanager
def tracked(folder: RunFolder, experiment: Experiment) -> Iterator[None]:
    """Report a run to the tools of ``output.track`` while the context is open.

    A resumed run continues the same run of the tool with the missing rounds.
    """
    names = dict.fromkeys(experiment.output.track)
    if not names:
        yield
        return
    sessions = [_Session(name, folder, experiment) for name in names]
    finished = False

    def follow(lines: list[RoundLine]) -> None:
        for session in sessions:
            session.follow(lines)

    try:
        with Follower(folder, follow):
            yield
        finished = True
    finally:
        for session in sessions:
            session.end(finished)


class _Session:
    """Reports of one session of a run to one tool; the first error stops them."""

    def __init__(self, name: str, folder: RunFolder, experiment: Experiment):
        self._name, self._folder, self._experiment = name, folder, experiment
        self._state = folder.path / FOLDER / f"{name}.json"
        self._tracker: Tracker | None = None
        self._off = False
        self._run, self._done, self._ended = "", 0, False
        with self._guarded():
            if self._state.exists():
                kept = json.loads(self._state.read_text(encoding="utf-8"))
                self._run, self._done, self._ended = kept["run"], kept["round"], kept["ended"]

    def follow(self, lines: Sequence[RoundLine]) -> None:
        """Report the new rounds."""
        if self._off or not lines or lines[-1]["round"] <= self._done:
            return
        with self._guarded():
            self._write(self._opened(), lines)

    def end(self, finished: bool) -> None:
        """Report the end, unless an earlier session has and this one reported nothing."""
        if self._off or (self._ended and not self._tracker):
            return
        with self._guarded():
            tracker = self._opened()
            self._write(tracker, self._folder.rounds())
            path = self._folder.path / RESULT
            result = json.loads(path.read_text(encoding="utf-8")) if finished else None
            tracker.end(None if result is None else result_values(result))
            self._ended = finished
            self._keep()

    def _opened(self) -> Tracker:
        if self._tracker is None:
            self._state.parent.mkdir(exist_ok=True)
            tracker = TRACKERS[self._name]()
            kept = Begun(self._run, self._done) if self._run else None
            begun = tracker.begin(self._experiment, self._folder.path, kept)
            self._tracker, self._run, self._done = tracker, begun.run, begun.done
            self._keep()
        return self._tracker

    def _write(self, tracker: Tracker, lines: Sequence[RoundLine]) -> None:
        """Report the rounds that the tool lacks, and save the progress."""
        for row in measured(lines):
            number = row.pop("round")
            if number > self._done:
                tracker.round(number, numbers_of(row))
                self._done = number
        self._keep()

    def _keep(self) -> None:
        state = {"run": self._run, "round": self._done, "ended": self._ended}
        write_json(self._state, state)

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """Log an error as one line and stop tracking; the run continues."""
        try:
            yield
        except Exception as error:
            self._off = True
            reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
            _log.warning("tracking with %s stopped, the run continues: %s", self._name, reason)
