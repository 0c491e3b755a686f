"""Measure the lines of ``simulations.frozen``: scikit-learn on what the backbone reads."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fedpeft.errors import UserError
from fedpeft.experiment.config import Experiment
from fedpeft.files import read_object, write_json
from fedpeft.planning import planned
from fedpeft.runtime import Runtime
from fedpeft.starting import Read, read_by
from fedpeft.tasks import metrics
from fedpeft.vectorfile import EXPERIMENT
from server.runfolder import RunFolder
from simulations.frozen import FILE, Line
from simulations.spread import PARTITION

MOST = 50_000  # training examples that are read unless the user asks for more
_INVERSE_PENALTIES = np.logspace(-3, 0, 7)  # C of logistic regression, tried by cross-validation
_PENALTIES = np.logspace(-2, 5, 29)  # of ridge regression, tried by leave-one-out
_TUNED = 10_000  # rows that choose C
_FOLDS = 3


def measure(runs: Sequence[Path], most: int, say: Callable[[str], None]) -> None:
    """Write the lines of simulations without privacy to their folders, where they are missing.

    Runs whose data and backbones are read equally are measured once, also by an earlier call.

    Args:
        runs: their folders.
        most: training examples that are read.
        say: is told what begins, and what cannot be measured.
    """
    kept = [read_object(run / FILE) for run in runs]
    found: dict[str, list[Line]] = {each["of"]: each["lines"] for each in kept if "of" in each}
    keys: dict[tuple[str, ...], str] = {}  # "" if it cannot be measured
    for run in filter(_lacks_lines, runs):
        try:
            experiment, pinned = Experiment.read(run / EXPERIMENT), RunFolder(run).pinned()
            if experiment.task.kind == "text" or experiment.privacy.unit != "none":
                continue
            head_only = _head_only(experiment)
            same = head_only.digest, pinned.get("data", ""), pinned.get("backbone", "")
            if same not in keys:
                keys[same] = ""
                runtime = Runtime(head_only)
                _require_few(runtime, most)
                _require_data_of_the_run(runtime, experiment, pinned)
                key = _key(runtime)
                if key not in found:
                    say(f"{run}: measuring the frozen backbone")
                    found[key] = _lines(runtime)
                keys[same] = key
        except UserError as error:
            say(f"{run}: the frozen backbone is not measured: {error}")
            continue
        if key := keys[same]:
            write_json(run / FILE, {"of": key, "lines": found[key]})


def _require_few(runtime: Runtime, most: int) -> None:
    if len(runtime.task.train) > most:
        raise UserError(
            f"{len(runtime.task.train):,} training examples, more than {most:,} are read only with "
            f"--frozen"
        )


def _require_data_of_the_run(
    runtime: Runtime, experiment: Experiment, pinned: Mapping[str, str]
) -> None:
    """Raise UserError if data or backbone are not those with which a run began."""
    data = pinned.get("data", runtime.data_digest)
    # A run may have read the same texts in another way, for example with a mask token.
    if data not in (runtime.data_digest, Runtime(experiment).data_digest):
        raise UserError("the task's files have changed since the run")
    fingerprint = runtime.backbone.fingerprint
    if pinned.get("backbone", fingerprint) != fingerprint:
        raise UserError("the backbone's files have changed since the run")


def _key(runtime: Runtime) -> str:
    """Return the SHA-256 of all that the lines depend on."""
    backbone, experiment, info = runtime.backbone, runtime.experiment, runtime.info
    data = runtime.data_digest, info.kind, info.metric, info.labels
    read = str(experiment.representation), experiment.task.pairs, experiment.engine.dtype
    parts = [*data, *read, backbone.fingerprint, runtime.held]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _lacks_lines(run: Path) -> bool:
    # A deployment has no partition.
    return (run / PARTITION).exists() and not (run / FILE).exists()


def scores(experiment: Experiment, most: int) -> list[Line]:
    """Return the lines of an experiment's task and backbone.

    Raises:
        UserError: data or backbone is missing, or there are more than ``most`` training examples.
    """
    runtime = Runtime(_head_only(experiment))
    _require_few(runtime, most)
    return _lines(runtime)


def _lines(runtime: Runtime) -> list[Line]:
    kind, pairs = runtime.info.kind, runtime.experiment.task.pairs == "apart"
    train, dev = _features(runtime, "train"), _features(runtime, "dev")
    name = "ridge regression" if kind == "score" else "logistic regression"
    lines = [_line(name, runtime, train, dev)]
    if pairs:
        lines.append(_line(f"{name} on the cosine", runtime, _cosine(train), _cosine(dev)))
    return lines


def _head_only(experiment: Experiment) -> Experiment:
    engine = experiment.engine.model_dump(include={"device", "dtype", "threads", "weights"})
    task = experiment.task.model_dump(exclude={"pairs"}, exclude_unset=True)
    values = {"backbone": experiment.backbone, "seed": experiment.seed, "task": task}
    return planned(Experiment.of({**values, "engine": engine, "method": {"name": "linear"}}))


def _features(runtime: Runtime, split: str) -> Read:
    """Return what the head reads of the training or evaluation examples, with their labels."""
    examples = runtime.train if split == "train" else runtime.dev
    vector = runtime.parameters.initial_shared(runtime.experiment.seed)
    return Read.joined([*read_by(runtime.model, vector, examples)])


def _cosine(read: Read) -> Read:
    """Return pairs read as the cosine of their texts alone, see ``fedpeft.heads.base.joined``."""
    half = read.features.shape[1] // 2
    return replace(read, features=read.features[:, :half].mean(1, keepdims=True))


def _line(name: str, runtime: Runtime, train: Read, dev: Read) -> Line:
    info, one = runtime.info, len(np.unique(train.labels)) == 1
    if info.kind == "score":
        outputs = _ridge().fit(train.features, train.labels).predict(dev.features)[:, None]
    else:  # a regression needs two classes
        found = np.full(len(dev.labels), train.labels[0]) if one else _predicted(train, dev)
        outputs = np.eye(info.classes)[found]
    if info.kind == "tags":
        assert runtime.dev.cut, "encoding counts"
        cut = runtime.dev.cut.select(dev.order)  # missed by the frozen backbone, too
        sums = metrics.tag_statistics(outputs, dev.labels, dev.counts, info.labels, cut)
    else:
        sums = metrics.statistics(outputs, dev.labels, info.kind)
    more = metrics.unsummable_scores(info.kind, outputs, dev.labels)
    score = (metrics.scores(sums, info.kind) | more)[info.metric]
    assert score is not None, "all outputs are here"
    return {"name": name, "score": float(score)}


def _ridge() -> Any:
    from sklearn.linear_model import RidgeCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    return make_pipeline(StandardScaler(), RidgeCV(_PENALTIES))


def _predicted(train: Read, dev: Read) -> np.ndarray:
    """Return the classes that logistic regression predicts."""
    from sklearn.preprocessing import StandardScaler

    scaler = StandardScaler().fit(train.features)
    features, some = scaler.transform(train.features), _some(len(train.labels))
    best = _best_of(features[some], train.labels[some]) * len(some) / len(features)
    model = _logistic(best)  # C weighs the sum of all losses
    return model.fit(features, train.labels).predict(scaler.transform(dev.features))


def _some(count: int) -> np.ndarray:
    return np.random.default_rng(0).permutation(count)[:_TUNED]


def _best_of(features: np.ndarray, labels: np.ndarray) -> float:
    """Return the C with the most right predictions of rows that were held out."""
    from sklearn.model_selection import KFold

    right = np.zeros(len(_INVERSE_PENALTIES))
    for fitted, held_out in KFold(min(_FOLDS, len(labels))).split(features):
        if len(np.unique(labels[fitted])) == 1:
            continue
        for at, inverse in enumerate(_INVERSE_PENALTIES):
            model = _logistic(inverse).fit(features[fitted], labels[fitted])
            right[at] += (model.predict(features[held_out]) == labels[held_out]).sum()
    return float(_INVERSE_PENALTIES[right.argmax()])


def _logistic(inverse_penalty: float) -> Any:
    from sklearn.linear_model import LogisticRegression

    return LogisticRegression(C=inverse_penalty, max_iter=200, tol=1e-3)
