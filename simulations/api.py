"""Simulations from Python: ``fedpeft.simulate`` and its result."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from fedpeft.errors import UserError
from fedpeft.experiment.config import Experiment
from fedpeft.experiment.overrides import apply_override, merged
from fedpeft.export import Format, default_target, export
from fedpeft.files import PRIVATE, write_atomic
from fedpeft.planning import choices_kept, planned
from fedpeft.predicting import caveats_of, frame_of, predict, read_texts, texts_of_frame
from fedpeft.tasks.caveats import cut_remarks
from fedpeft.tasks.frames import parquet_of
from fedpeft.trained import Trained
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
    def score(self) -> float | None:
        """The task's metric after the last round; None if outputs were not finite."""
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

    @cached_property
    def trained(self) -> Trained:
        """The final task vector on its backbone, loaded at the first use.

        Raises:
            UserError: see ``Trained.read``.
        """
        return Trained.read(self.folder)

    def predict(
        self, texts: pd.DataFrame | Sequence[str] | str | Path, text: str = "", text_pair: str = ""
    ) -> pd.DataFrame:
        """Return predictions for unlabeled texts, as ``fedpeft predict`` writes them to a table.

        Args:
            texts: a data frame, a list of texts, or the path of a table file.
            text: column of the texts; "" = the task's column, or "text".
            text_pair: column of second texts; "" = the task's column, or "text_pair".

        Returns:
            A row per text, with the index of a data frame; see ``fedpeft.predicting.frame_of``. A
            warning says how many texts were cut.

        Raises:
            UserError: a column is missing, or a row has no text.
            RunFailed: an output is not finite.
        """
        if isinstance(texts, str | Path):
            examples, index = read_texts(self.trained, Path(texts), text, text_pair), None
        else:
            frame = texts if isinstance(texts, pd.DataFrame) else pd.DataFrame({"text": [*texts]})
            named = text if frame is texts else "text"
            examples = texts_of_frame(self.trained, frame, named, text_pair)
            index = frame.index
        predictions = predict(self.trained, examples)
        caveats = caveats_of(predictions)
        for remark in cut_remarks(caveats, self.experiment, len(predictions)):
            warnings.warn(remark, stacklevel=2)
        found = frame_of(predictions, self.trained.labels)
        return found if index is None else found.set_index(index)

    def export(self, kind: Format, out: str | Path | None = None) -> Path:
        """Write the run for other programs, as ``fedpeft export`` does; return the path.

        Args:
            kind: "hf", "peft", "onnx", "sentence-transformers" or "vector".
            out: new folder, or new file for a vector; None = ``export-FORMAT`` in the run's folder.

        Raises:
            UserError: ``out`` exists, or the format cannot express the method.
        """
        target = default_target(self.folder, kind) if out is None else Path(out)
        export(self.trained, kind, target)
        return target

    def __repr__(self) -> str:
        name = f"{self.experiment.task.name}, {self.experiment.method.name}"
        number = "undefined" if self.score is None else f"{self.score:.4f}"
        score = f"{self.result['metric']} {number} after {self.result['rounds']} rounds"
        return f"Result({name}: {score}, '{self.folder}')"


def simulate(
    experiment: Experiment | Mapping[str, Any] | str | Path,
    out: str | Path | None = None,
    overrides: Iterable[str] = (),
    resume: bool = False,
    train: pd.DataFrame | None = None,
    dev: pd.DataFrame | None = None,
) -> Result:
    """Run a federation on this machine, as ``fedpeft simulate`` does.

    Args:
        experiment: an Experiment, the path of its TOML file, or nested settings whose keys may
            have dots: ``{"backbone": "tiny", "local.lr": 1e-2}``.
        out: run folder; default ``runs/TASK-METHOD-TIME``.
        overrides: changes such as ``"local.lr=1e-2"``.
        resume: continue the run in ``out``, or read its result if it is finished.
        train: training examples, for ``task.name = "custom"``, which need not be given; columns as
            in a file of ``task.train``. It is written to a Parquet file in ``frames`` beside the
            run's folder, which the run refers to.
        dev: evaluation examples, likewise; None = a share of ``train``.

    Raises:
        UserError: a setting is wrong, data is missing, or the folder holds something else.
        RunFailed: too few clients succeeded in a round; the run can be resumed.
    """
    if resume and out is None:
        raise UserError("resume=True needs out, the folder of the run to continue")
    beside = Path("runs" if out is None else Path(out).parent)
    with quiet(), kept_frames(beside, train, dev) as files:
        settings = settings_of(experiment, [*overrides, *files])
        folder, _ = prepare(settings, None if out is None else Path(out), resume)
    with quiet(), folder.locked():
        result = run_prepared(folder, settings)
    return _read(settings, folder, result)


@contextmanager
def kept_frames(
    beside: Path, train: pd.DataFrame | None, dev: pd.DataFrame | None
) -> Iterator[list[str]]:
    """Write data frames to files named by their content; give the overrides that name them.

    New files are removed if the block fails.

    Args:
        beside: folder of ``frames``.
        train: training examples, or None.
        dev: evaluation examples, or None.

    Raises:
        UserError: ``dev`` without ``train``, or a frame is no table: all columns are written.
    """
    if train is None:
        if dev is not None:
            raise UserError("dev is a data frame: give train, too")
        yield []
        return
    given = {"train": train, **({} if dev is None else {"dev": dev})}
    contents = {name: parquet_of(frame, name) for name, frame in given.items()}
    folder = (beside / "frames").resolve()
    paths = {
        name: folder / f"{hashlib.sha256(content).hexdigest()[:16]}.parquet"
        for name, content in contents.items()
    }
    new = [path for path in paths.values() if not path.exists()]
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # data that were in memory only
    for name, path in paths.items():
        if path in new:
            write_atomic(path, contents[name], PRIVATE)
    named = {"train": "", "dev": "", **paths}
    try:
        yield ["task.name=custom", "task.path=", *(f"task.{n}={p}" for n, p in named.items())]
    except UserError:
        for path in new:
            path.unlink(missing_ok=True)
        raise


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
