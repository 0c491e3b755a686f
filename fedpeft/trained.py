"""Load a finished run: read and check its task vector and apply it to its backbone.

The vector file contains all metadata that this needs, so the run's data is not read, and the file
alone is sufficient.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, get_args

import numpy as np

from fedpeft.backbones.hardware import choose_device
from fedpeft.errors import UserError
from fedpeft.experiment.config import Experiment, differing_keys
from fedpeft.files import read_object
from fedpeft.model import TaskModel
from fedpeft.parameters import TaskParameters
from fedpeft.runtime import Runtime
from fedpeft.tasks import Kind, TaskInfo
from fedpeft.vectorfile import EXPERIMENT, RESULT, VECTOR, read_vector
from fedpeft.wire.formats import decode


@dataclass(frozen=True, eq=False)
class Trained:
    """The task vector of a finished run, on its backbone.

    Attributes:
        experiment: the run's experiment, on a device that this machine has.
        model: the task model.
        vector: the task vector [P], in the model's dtype.
        labels: names of the classes or tags; empty for a score and for text.
        kind: kind of the prediction.
        pair: whether an example has two texts.
        about: the file's metadata, see ``describe_vector``.
        result: content of the run's result.json; {} if only the vector's file is there.
    """

    experiment: Experiment
    model: TaskModel
    vector: np.ndarray
    labels: tuple[str, ...]
    kind: Kind
    pair: bool
    about: dict[str, Any]
    result: dict[str, Any] = field(default_factory=dict)

    @property
    def reads(self) -> str:
        """The head's input: "mask", "cls", "mean", "unit" or "last", or "tags" for every word.

        "text" for a text that is written; "likelihood" for the words of classes after a prompt.
        """
        return reads_of(self.experiment, self.kind)

    def in_float32(self) -> Trained:
        """Return the run with frozen weights in float32, to merge changes into them.

        Compact weights keep their values, so the predictions are those of the run.
        """
        return replace(self, model=self.model.in_float32())

    @classmethod
    def read(cls, path: Path) -> Trained:
        """Load a run folder or a vector file.

        Raises:
            UserError: there is no finished run, the vector belongs to another run than the folder,
                it does not fit this machine's backbone, layout or projections, or it has values
                that are not finite.
        """
        file = vector_file(path)
        vector, about = read_vector(file)
        experiment, info = description_of(str(file), about)
        runtime = Runtime(experiment, known=info)
        if path.is_dir():
            _check_same_run(file, experiment)
        check_fit(str(file), runtime, runtime.backbone.fingerprint, about)
        vector = decoded(str(file), vector, runtime.parameters)
        model = runtime.model
        result = _result_of(path, about) if path.is_dir() else {}
        return cls(experiment, model, vector, info.labels, info.kind, info.pair, about, result)


def reads_of(experiment: Experiment, kind: Kind) -> str:
    """Return what the head of an experiment reads, see ``Trained.reads``."""
    if experiment.by_likelihood:
        return "likelihood"
    return kind if kind in ("tags", "text") else str(experiment.representation)


def describe_vector(runtime: Runtime, digests: Mapping[str, str]) -> dict[str, Any]:
    """Return the metadata of a vector file: everything needed to use the vector.

    Args:
        runtime: the run's runtime.
        digests: the digests that all its nodes share, see ``Runtime.identity``.
    """
    info = runtime.info
    return {
        "experiment": runtime.experiment.to_toml(),
        "seed": runtime.experiment.seed,
        "parameters": runtime.parameters.shared.entries,
        "kind": info.kind,
        "pair": info.pair,
        "labels": info.labels,
        "metric": info.metric,
        "digests": dict(digests),
    }


def vector_file(path: Path) -> Path:
    """Return the vector file in a run folder, or ``path`` itself if it is a file.

    Raises:
        UserError: there is no finished run.
    """
    if not path.exists():
        raise UserError(f"'{path}': no such run folder or vector file")
    if not path.is_dir():
        return path
    if (path / VECTOR).is_file():
        return path / VECTOR
    if (path / EXPERIMENT).is_file():
        raise UserError(
            f"'{path}' contains a run that is not finished, or its {VECTOR} is missing; "
            f"`fedpeft simulate --out {path} --resume` continues it"
        )
    raise UserError(f"'{path}' contains no run; expected a run folder of `fedpeft simulate`")


def description_of(source: str, about: dict[str, Any]) -> tuple[Experiment, TaskInfo]:
    """Return the experiment and the task that the metadata of a vector file describes.

    Args:
        source: the file's name, for messages.
        about: the metadata, see ``describe_vector``.

    Raises:
        UserError: an entry is missing or invalid.
    """
    try:
        experiment = Experiment.load(about["experiment"])
        labels, kind, pair = tuple(about["labels"]), about["kind"], about["pair"]
        _ = [about["digests"][name] for name in ("backbone", "layout", "projection")]
        _ = _entries(about)
        if kind not in get_args(Kind) or not all(isinstance(label, str) for label in labels):
            raise ValueError(f"kind '{kind}'")
    except UserError as error:
        raise UserError(f"'{source}': its experiment is invalid here: {error}") from None
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(
            f"'{source}' is not a fedpeft vector: its metadata has no valid {error}"
        ) from None
    name, metric = experiment.task.name, str(about.get("metric", ""))
    info = TaskInfo(name, kind, labels, bool(pair), metric, None, "task of a finished run")
    return _for_this_machine(experiment), info


def check_fit(source: str, runtime: Runtime, fingerprint: str, about: dict[str, Any]) -> None:
    """Raise UserError if a vector does not fit a runtime or a backbone.

    Args:
        source: the file's name, for messages.
        runtime: of the vector's description.
        fingerprint: of the backbone that will use the vector.
        about: the metadata of the vector's file.
    """
    for mismatch in _mismatches(runtime, fingerprint, about):
        raise UserError(f"'{source}' {mismatch}")


def decoded(source: str, vector: np.ndarray, parameters: TaskParameters) -> np.ndarray:
    """Return the task vector [P] of a file in the model's dtype.

    Args:
        source: the file's name, for messages.
        vector: the file's numbers.
        parameters: of the model that will use the vector.

    Raises:
        UserError: the length is wrong, or a value is not finite.
    """
    try:
        size, dtype = parameters.layout.size, parameters.numpy_dtype
        return decode(vector.tobytes(), str(vector.dtype), size, dtype)
    except ValueError as error:
        raise UserError(f"'{source}': {error}; it is damaged, export or run again") from None


def _for_this_machine(experiment: Experiment) -> Experiment:
    """Return the experiment with device "auto" if this machine lacks the device."""
    engine = experiment.engine
    try:
        choose_device(engine.device, engine.dtype)
    except UserError:
        engine = engine.model_copy(update={"device": "auto"})
    return experiment.model_copy(update={"engine": engine})


def _check_same_run(file: Path, experiment: Experiment) -> None:
    """Raise UserError if the vector in a run folder belongs to another run."""
    settings = file.with_name(EXPERIMENT)
    if not settings.is_file():
        return
    differing = differing_keys(experiment, _for_this_machine(Experiment.read(settings)))
    if differing:
        raise UserError(
            f"'{file}' belongs to another run: {', '.join(differing)} (in the file and the "
            f"folder); restore the run's file, or pass the file instead of the folder"
        )


def _result_of(folder: Path, about: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of result.json; {} if it is missing, damaged, or of another vector."""
    result = read_object(folder / RESULT)
    digests = result.get("digests")
    same = isinstance(digests, dict) and digests.get("vector") == about.get("vector")
    return result if same else {}


def _mismatches(runtime: Runtime, fingerprint: str, about: dict[str, Any]) -> Iterator[str]:
    """Yield the differences between a vector and this machine; the first one causes the others."""
    digests, experiment = about["digests"], runtime.experiment
    if experiment.federation.personal:
        yield (
            f"lacks the parameters that stay at the clients (federation.personal = "
            f"'{','.join(experiment.federation.personal)}'); only the clients can use it"
        )
    if digests["backbone"] != fingerprint:
        yield (
            f"was trained on another backbone than this machine's '{experiment.backbone}' "
            f"(weights or tokenizer differ); use the same checkpoint"
        )
    layout = runtime.parameters.layout
    if digests["layout"] != layout.digest:
        differing = [entry for entry in _entries(about) if entry not in layout.entries]
        example = f", for example '{differing[0][0]}' {differing[0][1]}" if differing else ""
        yield (
            f"has another layout than method '{experiment.method.name}' with {runtime.info.classes}"
            f" outputs in this version{example}; use the version of fedpeft that wrote it"
        )
    if digests["projection"] != runtime.parameters.projection_digest:
        yield (
            f"was trained with other projections than those of seed {experiment.seed}; "
            f"its seed or its file was changed"
        )


def _entries(about: dict[str, Any]) -> list[tuple[str, tuple[int, ...]]]:
    """Return the entries of the layout in a file's metadata."""
    return [(str(name), tuple(shape)) for name, shape in about["parameters"]]
