"""Choices that a user leaves open and that depend on the task and the backbone, made once.

They are made where a user's command loads an experiment. The experiment that is digested, written
and sent to clients has them as explicit settings, so server and clients never choose differently.
A stored experiment without a setting was made before the setting existed, and keeps the value that
was the only one then.
"""

from __future__ import annotations

from typing import Any

from fedpeft.budget import within_budget
from fedpeft.experiment.config import Experiment
from fedpeft.experiment.contradictions import in_start
from fedpeft.runtime import Runtime
from fedpeft.starting import NONE, sizes
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
    decided = within_budget(experiment)
    if before:
        return _with_head(decided, {key: getattr(before.head, key) for key in _open(decided)})
    if "start" in _open(decided) and _starts_from_sums(decided):
        decided = _with_head(decided, {"start": "sums"})
    if decided.head.start == "sums" and {"sums", "moments"} <= _open(decided):
        decided = _with_head(decided, _codecs(decided))
    return decided


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
        if sum(sizes(Runtime(_with_head(experiment, chosen)))) <= most:
            break
    return chosen


def _with_head(experiment: Experiment, chosen: dict[str, Any]) -> Experiment:
    head = experiment.head.model_copy(update=chosen)
    return experiment.model_copy(update={"head": head}) if chosen else experiment
