"""Choices that a user leaves open and that depend on the task and the backbone, made once.

They are made where a user's command loads an experiment. The experiment that is digested, written
and sent to clients has them as explicit settings, so server and clients never choose differently.
A stored experiment without a setting was made before the setting existed, and keeps the value that
was the only one then.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedpeft.backbones.checkpoints import is_here
from fedpeft.backbones.sentences import made_to_read
from fedpeft.budget import within_budget
from fedpeft.errors import UserError
from fedpeft.experiment.config import Experiment
from fedpeft.experiment.contradictions import in_start
from fedpeft.experiment.settings import TaskSection
from fedpeft.methods import method_class
from fedpeft.runtime import Runtime
from fedpeft.starting import sizes
from fedpeft.tasks import described, local_files
from fedpeft.transfer import size_up
from fedpeft.vectorfile import EXPERIMENT, IDENTITY
from fedpeft.wire.scatter import NONE, directions

#: Codecs of class sums and of second moments, best first; see ``fedpeft.wire.scatter``.
CODECS = (
    ("float32", "float32"),
    ("eden8", "eden8"),
    *(("eden8", f"pca{count}") for count in (256, 192, 128, 96, 64, 48, 32, 24, 16, 8)),
    *(("eden4", f"pca{count}") for count in (16, 8, 4)),
    *((f"eden{rate}", NONE) for rate in (4, 2, 1)),
)
#: Of a head that starts from sums, by the kind of its task; found as ``RATES``. That of tags is
#: further from its best; that of a score is a ridge regression, which training does not shrink.
HEAD_LR = {"classes": 2e-3, "score": 1e-4, "tags": 3e-2}
#: ``local.lr`` of methods whose head starts from sums; the others keep their own. Found on
#: validation splits of training data, see docs/explanation/heads.md.
RATES = {"slash": 5e-2, "lora": 3e-3, "bitfit": 3e-3, "houlsby": 3e-3}
#: ``head.steepness`` of these methods: at such rates they would destroy what a steep head knows.
STEEPNESS = {"slash": 2.0, "bitfit": 2.0}
ROUNDS = 2  # the start costs at most as many bytes up as so many rounds of training


def planned(experiment: Experiment, kept: Mapping[str, Any] | None = None) -> Experiment:
    """Return the experiment with all choices made.

    Args:
        experiment: as the user wrote it.
        kept: choices that were made before, by full key; None = they are made now.

    Raises:
        UserError: see ``within_budget``; or a setting does not fit the task, or its data, which
            alone has the labels, is missing.
    """
    left = experiment.left_open()
    if kept is not None:
        values = {key: value for key, value in kept.items() if key in left}
        return within_budget(experiment.with_choices(values, kept=True))
    decided = within_budget(experiment.with_choices(_reading(experiment)))
    if "head.start" in left and _may_start_from_sums(decided):
        decided = decided.with_choices({"head.start": "sums"})
    if decided.head.start != "sums":
        _require_unused(decided)
        return decided
    decided = decided.with_choices(_gentle(decided))
    if {"head.sums", "head.moments"} <= left.keys():
        decided = decided.with_choices(_codecs(decided))
    return decided


def choices_of(decided: Experiment, experiment: Experiment | None = None) -> dict[str, Any]:
    """Return the values of settings that can be chosen, or only of those left open."""
    values = decided.choices()
    left = values if experiment is None else experiment.left_open()
    return {key: value for key, value in values.items() if key in left}


def choices_kept(file: Path | None, folder: Path | None = None) -> dict[str, Any] | None:
    """Return the choices that a run was begun with, or None.

    Args:
        file: experiment file. That of a run repeats the run, also one of an earlier version.
        folder: of a run that may have begun.

    Raises:
        UserError: the run's experiment cannot be read.
    """
    own = file if file and file.name == EXPERIMENT and (file.parent / IDENTITY).exists() else None
    stored = folder / EXPERIMENT if folder and (folder / EXPERIMENT).is_file() else own
    return choices_of(Experiment.read(stored)) if stored else None


def can_plan(experiment: Experiment) -> bool:
    """Return whether this machine has what choices depend on: the backbone and the labels."""
    task = experiment.task
    labelled = described(task) is not None or bool(local_files(task))
    return labelled and is_here(experiment.backbone)


def _reading(experiment: Experiment) -> dict[str, Any]:
    """Return how texts are read if the user leaves it open: as the makers of the backbone do."""
    left, task = experiment.left_open(), experiment.task
    if "representation" not in left or experiment.by_likelihood or task.kind == "text":
        return {}
    made = made_to_read(experiment.backbone)
    if made is None:
        return {}
    whole = not method_class(experiment.method.name).grouped and experiment.privacy.examples
    joint = "task.pairs" not in left or experiment.head.labels or whole or not _has_pairs(task)
    return {"representation": made, **({} if joint else {"task.pairs": "apart"})}


def _has_pairs(task: TaskSection) -> bool:
    """Return whether a task has pairs of texts with a class or a score."""
    info = described(task)
    if info is None:  # only the data names the labels
        return bool(task.text_pair)
    return info.pair and info.kind in ("classes", "score")


def _may_start_from_sums(experiment: Experiment) -> bool:
    head = experiment.head.model_copy(update={"start": "sums"})
    sections = experiment.federation, experiment.privacy, experiment.adversary
    return experiment.task.kind != "text" and not any(in_start(head, *sections))


def _require_unused(experiment: Experiment) -> None:
    """Raise UserError if the user has set a codec of sums that are not sent."""
    for key in ("sums", "moments"):
        value, field = getattr(experiment.head, key), type(experiment.head).model_fields[key]
        if value != field.default:
            raise UserError(
                f"head.{key} = '{value}': is for head.start = 'sums', not 'random'; leave it out"
            )


def _gentle(experiment: Experiment) -> dict[str, Any]:
    """Return choices that keep what the head of the start knows, where they are left open."""
    left, local = experiment.left_open(), experiment.local
    chosen: dict[str, Any] = {}
    if experiment.method.name == "slash" and "method.init" in left:
        chosen["method.init"] = "zeros"  # texts are read as the backbone reads them
    if local.optimizer != "adamw":
        return chosen  # other optimizers have other rates
    name, exact = experiment.method.name, not local.perturbations
    if "local.lr" in left and exact:
        chosen["local.lr"] = RATES.get(name, local.lr)
        if "head.steepness" in left and name in STEEPNESS:
            chosen["head.steepness"] = STEEPNESS[name]
    # Without a method, a user's local.lr is the head's.
    if "head.lr" in left and ("local.lr" in left or name != "linear"):
        info = described(experiment.task)
        kind = info.kind if info else experiment.task.kind
        chosen["head.lr"] = HEAD_LR[kind]
    return chosen


def _codecs(experiment: Experiment) -> dict[str, Any]:
    """Return the best codecs that cost at most ``ROUNDS`` rounds; the smallest if none does."""
    first = Runtime(experiment)
    most, width, info = ROUNDS * size_up(first), first.parameters.head.width, first.info
    for sums, moments in CODECS:
        if directions(moments, width) > width // 2:
            continue  # no fewer bytes than the moments themselves in as many bits
        chosen = {"head.sums": sums, "head.moments": moments}
        if sum(sizes(Runtime(experiment.with_choices(chosen), known=info))) <= most:
            break
    return chosen
