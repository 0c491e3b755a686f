"""A finished run, ready for use: its task vector read, checked, and put on its backbone again.

What is needed for that stands in the metadata of the vector's own file, so the run's data is not
read, and the file alone is enough.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np

from fedpeft.backbones import choose_device
from fedpeft.config import Experiment, differing_keys
from fedpeft.errors import UserError
from fedpeft.model import TaskModel
from fedpeft.runtime import Runtime
from fedpeft.tasks import Kind, TaskInfo
from fedpeft.vector import decode
from fedpeft.vectorfile import EXPERIMENT, VECTOR, read_vector


@dataclass(frozen=True, eq=False)
class Trained:
    """What a run learned, on its backbone.

    Attributes:
        experiment: the run's; its device is one that this machine has.
        model: the task model.
        vector: the task vector [P], in the model's dtype.
        labels: names of the classes or tags; empty for a score.
        kind: what is predicted.
        pair: whether of two texts.
        about: the description the file holds, see ``describe_vector``.
    """

    experiment: Experiment
    model: TaskModel
    vector: np.ndarray
    labels: tuple[str, ...]
    kind: Kind
    pair: bool
    about: dict[str, Any]

    @property
    def reads(self) -> str:
        """What the head reads: "mask", "cls", "mean", or "tags" for every word."""
        return "tags" if self.kind == "tags" else str(self.experiment.representation)

    @classmethod
    def read(cls, path: Path) -> Trained:
        """Read a run's folder, or a vector's file.

        Raises:
            UserError: no run or not a finished one, no task vector, one of another run than the
                folder's, one that does not fit what this machine makes, or numbers that are none.
        """
        file = _file_of(path)
        vector, about = read_vector(file)
        runtime = _runtime_of(file, about)
        if path.is_dir():
            _check_own(file, runtime.experiment)
        for what in _misfits(runtime, about):
            raise UserError(f"'{file}' {what}")
        model, info = runtime.model, runtime.info
        try:
            vector = decode(vector, str(vector.dtype), model.layout.size, model.numpy_dtype)
        except ValueError as error:
            raise UserError(f"'{file}': {error}; it is damaged, export or run again") from None
        return cls(runtime.experiment, model, vector, info.labels, info.kind, info.pair, about)


def describe_vector(runtime: Runtime, digests: Mapping[str, str]) -> dict[str, Any]:
    """Return what is needed to use a run's vector, and with what: its file's description.

    Args:
        runtime: the run's.
        digests: what all its nodes had in common, see ``Runtime.identity``.
    """
    info = runtime.info
    return {
        "experiment": runtime.experiment.to_toml(),
        "seed": runtime.experiment.seed,
        "parameters": runtime.trainable.shared.entries,
        "kind": info.kind,
        "pair": info.pair,
        "labels": info.labels,
        "metric": info.metric,
        "digests": dict(digests),
    }


def _file_of(path: Path) -> Path:
    """Return the vector's file of a run folder, or the file itself."""
    if not path.exists():
        raise UserError(f"'{path}': no such run folder or vector file")
    if not path.is_dir():
        return path
    if (path / VECTOR).is_file():
        return path / VECTOR
    if (path / EXPERIMENT).is_file():
        raise UserError(
            f"'{path}' holds a run that is not finished, or whose {VECTOR} is gone; "
            f"`fedpeft simulate --out {path} --resume` goes on with it"
        )
    raise UserError(f"'{path}' holds no run; expected a folder that `fedpeft simulate` made")


def _runtime_of(file: Path, about: dict[str, Any]) -> Runtime:
    """Return the runtime that a description asks for; its task has no data."""
    try:
        experiment = Experiment.load(about["experiment"])
        labels, kind, pair = tuple(about["labels"]), about["kind"], about["pair"]
        _ = [about["digests"][name] for name in ("backbone", "layout", "projection")]
        _ = _entries(about)
        if kind not in get_args(Kind) or not all(isinstance(label, str) for label in labels):
            raise ValueError(f"kind '{kind}'")
    except UserError as error:
        raise UserError(f"'{file}': its experiment is not valid here: {error}") from None
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(
            f"'{file}' is no fedpeft vector: its description lacks or misstates {error}"
        ) from None
    name, metric = experiment.task.name, str(about.get("metric", ""))
    info = TaskInfo(name, kind, labels, bool(pair), metric, None, "a finished run's")
    return Runtime(_for_this_machine(experiment), known=info)


def _for_this_machine(experiment: Experiment) -> Experiment:
    """Return the experiment on a device that is here: where it was trained does not matter."""
    engine = experiment.engine
    try:
        choose_device(engine.device, engine.dtype)
    except UserError:
        engine = engine.model_copy(update={"device": "auto"})
    return experiment.model_copy(update={"engine": engine})


def _check_own(file: Path, experiment: Experiment) -> None:
    """Raise UserError if the vector in a run's folder is another run's."""
    settings = file.with_name(EXPERIMENT)
    if not settings.is_file():
        return
    own = _for_this_machine(Experiment.read(settings))
    differing = differing_keys(experiment, own)
    if differing:
        raise UserError(
            f"'{file}' is of another run: {', '.join(differing)} (its own and the folder's); "
            f"put the run's own back, or name the file instead of the folder"
        )


def _misfits(runtime: Runtime, about: dict[str, Any]) -> Iterator[str]:
    """Yield what of a vector is not as this machine makes it; the first explains the rest."""
    digests, experiment = about["digests"], runtime.experiment
    if experiment.federation.personal:
        yield (
            f"lacks what stayed at the clients (federation.personal = "
            f"'{','.join(experiment.federation.personal)}'); only they can use it"
        )
    if digests["backbone"] != runtime.backbone.fingerprint:
        yield (
            f"was trained on another backbone than '{experiment.backbone}' is here (weights or "
            f"tokenizer differ); use the same checkpoint"
        )
    layout = runtime.model.layout
    if digests["layout"] != layout.digest:
        differing = [entry for entry in _entries(about) if entry not in layout.entries]
        named = f", for example '{differing[0][0]}' {differing[0][1]}" if differing else ""
        yield (
            f"has another layout than method '{experiment.method.name}' with {runtime.info.classes}"
            f" outputs has here{named}; use the fedpeft that made it"
        )
    if digests["projection"] != runtime.model.projection_digest:
        yield (
            f"was trained with other projections than seed {experiment.seed} gives; "
            f"its seed or its file was changed"
        )


def _entries(about: dict[str, Any]) -> list[tuple[str, tuple[int, ...]]]:
    """Return the layout's entries that a description names."""
    return [(str(name), tuple(shape)) for name, shape in about["parameters"]]
