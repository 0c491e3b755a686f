"""Simulations from Python: ``fedpeft.simulate`` and its result."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from fedpeft.errors import UserError
from fedpeft.experiment.config import Experiment
from fedpeft.experiment.overrides import apply_override, merged
from fedpeft.planning import choices_kept, planned
from fedpeft.vectorfile import VECTOR, read_vector
from server.runfolder import RunFolder
from simulations.plots import curves
from simulations.simulation import prepare, quiet
from simulations.simulation import simulate as run_prepared
from simulations.study.cells import Cell
from simulations.study.table import Finished, table_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, eq=False)
class Result:
    """A finished run.

    Attributes:
        experiment: all settings, defaults included.
        folder: of the run.
        result: content of result.json.
        rounds: one row per round, columns as in ``simulations.study.table``, and ``seconds``.
        bytes: one row per message and reply: client, kind (train, evaluate, handshake),
            and ``up`` and ``down`` as ``payload`` and ``message``, see bytes.jsonl.
        vector: the final task vector [P], float32.
    """

    experiment: Experiment
    folder: Path
    result: dict[str, Any] = field(repr=False)
    rounds: pd.DataFrame = field(repr=False)
    bytes: pd.DataFrame = field(repr=False)
    vector: np.ndarray = field(repr=False)

    @property
    def score(self) -> float:
        """The task's metric after the last round."""
        return self.result["score"]

    @property
    def metrics(self) -> dict[str, float | None]:
        """All metrics of the task after the last round; None where one is undefined."""
        return self.result["metrics"]

    @property
    def privacy(self) -> dict[str, Any] | None:
        """The privacy statements of the units ``example`` and ``client``; None without privacy."""
        return self.result["privacy"]

    def plot(self) -> Figure:
        """Return score and loss (with privacy: epsilon) against rounds and bytes, as a figure."""
        return curves(RunFolder(self.folder), self.experiment, self.result["metric"])

    def __repr__(self) -> str:
        name = f"{self.experiment.task.name}, {self.experiment.method.name}"
        score = f"{self.result['metric']} {self.score:.4f} after {self.result['rounds']} rounds"
        return f"Result({name}: {score}, '{self.folder}')"


def simulate(
    experiment: Experiment | Mapping[str, Any] | str | Path,
    out: str | Path | None = None,
    overrides: Iterable[str] = (),
    resume: bool = False,
) -> Result:
    """Run a federation on this machine, as ``fedpeft simulate`` does.

    Args:
        experiment: an Experiment, the path of its TOML file, or nested settings whose keys may
            have dots: ``{"backbone": "tiny", "local.lr": 1e-2}``.
        out: run folder; default ``runs/TASK-METHOD-TIME``.
        overrides: changes such as ``"local.lr=1e-2"``.
        resume: continue the run in ``out``, or read its result if it is finished.

    Raises:
        UserError: a setting is wrong, data is missing, or the folder holds something else.
        RunFailed: too few clients succeeded in a round; the run can be resumed.
    """
    settings = settings_of(experiment, overrides)
    if resume and out is None:
        raise UserError("resume=True needs out, the folder of the run to continue")
    with quiet():
        folder, _ = prepare(settings, None if out is None else Path(out), resume)
        with folder.locked():
            result = run_prepared(folder, settings)
    return _read(settings, folder, result)


def settings_of(
    experiment: Experiment | Mapping[str, Any] | str | Path, overrides: Iterable[str] = ()
) -> Experiment:
    """Return the experiment of the arguments of ``simulate``.

    Raises:
        UserError: an unknown key, a value outside its range, a contradiction, a missing file.
    """
    if isinstance(experiment, str | Path):
        file = Path(experiment)
        return planned(Experiment.read(file, overrides), choices_kept(file))
    if isinstance(experiment, Experiment):
        # Without derived values: another method has another default learning rate.
        return planned(Experiment.load(experiment.to_toml(derived=False), overrides))
    values = merged({}, experiment)
    for override in overrides:
        apply_override(values, override)
    return planned(Experiment.of(values))


def _read(experiment: Experiment, run: RunFolder, result: dict[str, Any]) -> Result:
    lines = run.rounds()
    rounds = table_of([(Cell({}, experiment), Finished(result, lines))])
    rounds = rounds.drop(columns="cell").assign(seconds=[line["seconds"] for line in lines])
    sizes = pd.json_normalize(run.sent(), sep="_")
    vector, _ = read_vector(run.path / VECTOR)
    return Result(experiment, run.path, result, rounds, sizes, vector)
