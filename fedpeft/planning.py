"""Choices that a user leaves open and that depend on the task and the backbone, made once.

They are made where a user's command loads an experiment. The experiment that is digested, written
and sent to clients has them as explicit settings, so server and clients never choose differently.
A stored experiment without a setting was made before the setting existed, and keeps the value that
was the only one then.
"""

from __future__ import annotations

from typing import Any

from fedpeft.backbones.sentences import made_to_read
from fedpeft.budget import within_budget
from fedpeft.experiment.config import Experiment
from fedpeft.experiment.contradictions import in_start
from fedpeft.experiment.settings import TaskSection
from fedpeft.methods import method_class
from fedpeft.runtime import Runtime
from fedpeft.starting import NONE, sizes
from fedpeft.tasks import described
from fedpeft.transfer import size_up

#: Codecs of class sums and of second moments, best first. On MiniLM, EDEN lost nothing at 8 bits,
#: at one bit up to 1.8 points and at 0.2 bits up to 4.4 (six classes; otherwise 1.7). Projections
#: of the features to fewer coordinates lose more in as many bytes.
CODECS = (
    ("float32", "float32"),
    *(("eden8", f"eden{rate:g}") for rate in (8, 4, 2, 1, 0.5, 0.2)),
    *(("eden4", f"eden{rate:g}") for rate in (0.2, 0.1, 0.05)),
    *((f"eden{rate}", NONE) for rate in (4, 2, 1)),
)
APART = {"pairs": "apart"}
ROUNDS = 2  # the start costs at most as many bytes up as so many rounds of training


def planned(experiment: Experiment, before: Experiment | None = None) -> Experiment:
    """Return the experiment with all choices made.

    Args:
        experiment: as the user wrote it.
        before: that of a run to be continued, whose choices are kept.

    Raises:
        UserError: see ``within_budget``; or a setting does not fit the task, or its data, which
            alone has the labels, is missing.
    """
    if before:
        return within_budget(_as_before(experiment, before))
    decided = within_budget(_as_made(experiment))
    if "start" in _open(decided) and _starts_from_sums(decided):
        decided = _with(decided, "head", {"start": "sums"})
    if decided.head.start == "sums" and {"sums", "moments"} <= _open(decided):
        decided = _with(decided, "head", _codecs(decided))
    return decided


def _as_before(experiment: Experiment, before: Experiment) -> Experiment:
    """Return the experiment with the choices of the run that it continues."""
    chosen = {key: getattr(before.head, key) for key in _open(experiment)}
    if "pairs" not in experiment.task.model_fields_set:
        experiment = _with(experiment, "task", {"pairs": before.task.pairs})
    if "representation" not in experiment.model_fields_set:
        experiment = experiment.model_copy(update={"representation": before.representation})
    return _with(experiment, "head", chosen)


def _as_made(experiment: Experiment) -> Experiment:
    """Return the experiment with texts read as the makers of the backbone read them."""
    task, reads = experiment.task, "representation" in experiment.model_fields_set
    if reads or experiment.by_likelihood or task.kind == "text":
        return experiment
    made = made_to_read(experiment.backbone)
    if made is None:
        return experiment
    experiment = experiment.model_copy(update={"representation": made})
    whole = not method_class(experiment.method.name).grouped and experiment.privacy.examples
    fixed = "pairs" in task.model_fields_set or experiment.head.labels or whole
    return experiment if fixed or not _has_pairs(task) else _with(experiment, "task", APART)


def _has_pairs(task: TaskSection) -> bool:
    """Return whether a task has pairs of texts with a class or a score."""
    info = described(task)
    if info is None:  # only the data names the labels
        return bool(task.text_pair)
    return info.pair and info.kind in ("classes", "score")


def _open(experiment: Experiment) -> set[str]:
    """Return the keys about the start that the user left open."""
    return {"start", "sums", "moments"} - experiment.head.model_fields_set


def _starts_from_sums(experiment: Experiment) -> bool:
    head = experiment.head.model_copy(update={"start": "sums"})
    sections = experiment.federation, experiment.privacy, experiment.adversary
    return experiment.task.kind != "text" and not any(in_start(head, *sections))


def _codecs(experiment: Experiment) -> dict[str, Any]:
    """Return the best codecs that cost at most ``ROUNDS`` rounds; the smallest if none does."""
    most = ROUNDS * size_up(Runtime(experiment))
    for sums, moments in CODECS:
        chosen = {"sums": sums, "moments": moments}
        if sum(sizes(Runtime(_with(experiment, "head", chosen)))) <= most:
            break
    return chosen


def _with(experiment: Experiment, section: str, chosen: dict[str, Any]) -> Experiment:
    values = getattr(experiment, section).model_copy(update=chosen)
    return experiment.model_copy(update={section: values}) if chosen else experiment
