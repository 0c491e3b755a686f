"""Settings that are valid and do not fit the backbone's family, the method or the task."""

from __future__ import annotations

from typing import Any

from fedpeft.backbones.loading import require_writing
from fedpeft.backbones.shapes import BackboneShape
from fedpeft.errors import UserError
from fedpeft.experiment.config import Experiment
from fedpeft.methods.base import Method
from fedpeft.readable import readable_bytes
from fedpeft.tasks import TaskInfo
from fedpeft.tasks.prompts import PAIR
from fedpeft.tasks.text_metrics import require_tools
from fedpeft.wire.scatter import scatter_size

_MOST_SUMS = 1 << 30  # bytes; Flower's messages hold twice as much


def check_fitting(
    experiment: Experiment, shape: BackboneShape, method: Method[Any], info: TaskInfo
) -> None:
    """Check an experiment without its data and weights.

    Args:
        experiment: all settings.
        shape: sizes of the backbone.
        method: the method on this backbone.
        info: description of the task.

    Raises:
        UserError: a setting does not fit.
    """
    _check_family(experiment, shape, method, info)
    _check_mask(experiment, method, info)
    _check_pairs(experiment, method, info)
    _check_sums(experiment, shape)
    _check_lengths(experiment, shape, method, info)


def _check_pairs(experiment: Experiment, method: Method[Any], info: TaskInfo) -> None:
    """Raise UserError if texts of pairs cannot pass on their own."""
    if experiment.task.pairs == "joint":
        return
    here = "task.pairs = 'apart'"
    if not info.pair or info.kind not in ("classes", "score"):
        raise UserError(f"{here}: task '{info.name}' has no pairs of texts; expected 'joint'")
    if experiment.by_likelihood or experiment.head.labels:
        setting = "head.kind = 'likelihood'" if experiment.by_likelihood else "head.labels = true"
        raise UserError(f"{here}: {setting} reads single texts; expected 'joint'")
    if experiment.representation == "mask":
        raise UserError(
            f"{here}: representation = 'mask' reads the mask between both texts; expected 'cls', "
            f"'mean', 'unit' or 'last'"
        )
    if experiment.privacy.examples and not method.grouped:
        raise UserError(
            f"{here}: gradients of single examples of all weights are those of single texts; use "
            f"another method than '{experiment.method.name}', or 'joint'"
        )


def _check_sums(experiment: Experiment, shape: BackboneShape) -> None:
    """Raise UserError if the second moments of a client do not fit into a message."""
    head, width = experiment.head, shape.width * (1 + (experiment.task.pairs == "apart"))
    if head.start != "sums":
        return
    if (size := scatter_size(width, head.moments)) > _MOST_SUMS:
        raise UserError(
            f"head.moments = '{head.moments}': a client would send {readable_bytes(size)} of "
            f"second moments, expected at most {readable_bytes(_MOST_SUMS)}: use fewer bits or "
            f"directions, such as 'pca32', or 'none'"
        )


def _check_lengths(
    experiment: Experiment, shape: BackboneShape, method: Method[Any], info: TaskInfo
) -> None:
    """Raise UserError if texts may have more tokens than the backbone has positions."""
    task, longest = experiment.task, shape.longest - method.tokens
    if info.kind == "text" and shape.sites.writes == "decoder":
        if task.max_length + task.max_target > longest:
            raise UserError(
                f"task.max_length = {task.max_length} and task.max_target = {task.max_target}: "
                f"'{experiment.backbone}' has {longest} positions for both with this method; "
                f"lower one of them"
            )
    elif task.max_length > longest:
        raise UserError(
            f"task.max_length = {task.max_length}: '{experiment.backbone}' reads at "
            f"most {longest} tokens of a text with this method"
        )
    if info.kind == "text" and task.max_target > shape.longest:
        raise UserError(
            f"task.max_target = {task.max_target}: '{experiment.backbone}' writes at most "
            f"{shape.longest} tokens"
        )


def _check_mask(experiment: Experiment, method: Method[Any], info: TaskInfo) -> None:
    """Raise UserError if a method surrounds a mask that no text has."""
    if method.around_mask and (experiment.representation != "mask" or info.kind == "tags"):
        here = f"representation = '{experiment.representation}'"
        raise UserError(
            f"{method.around_mask}: surrounds the mask that is read; expected "
            f"representation = 'mask' and labels of texts, got "
            f"{'tags' if info.kind == 'tags' else here}"
        )


def _check_likelihood(experiment: Experiment, info: TaskInfo) -> None:
    """Raise UserError if a task has no classes, or its prompt has too few or too many texts."""
    prompt = experiment.task.prompt
    if info.kind != "classes":
        raise UserError(
            f"head.kind = 'likelihood': task '{info.name}' has "
            f"{'a score' if info.kind == 'score' else info.kind}; expected a task with classes"
        )
    if info.pair and PAIR not in prompt:
        raise UserError(
            f"task.prompt = '{prompt}': task '{info.name}' has pairs of texts; expected {PAIR} in "
            f"it, too"
        )
    if not info.pair and PAIR in prompt:
        raise UserError(
            f"task.prompt = '{prompt}': task '{info.name}' has no second texts; leave out {PAIR}"
        )


def _check_family(
    experiment: Experiment, shape: BackboneShape, method: Method[Any], info: TaskInfo
) -> None:
    """Raise UserError if a setting does not fit the backbone's family."""
    family = shape.sites
    likelihood = experiment.by_likelihood
    if info.kind == "text" or likelihood:
        require_writing(experiment.backbone, shape)
        if not method.parameters():
            setting = "head.kind = 'likelihood'" if likelihood else "task.kind = 'text'"
            raise UserError(
                f"method.name = '{experiment.method.name}': trains only a head, and there is none "
                f"with {setting}; choose another method"
            )
        if likelihood:
            _check_likelihood(experiment, info)
        else:
            require_tools(info.metric)
        if experiment.head.start == "sums":
            raise UserError(
                f"head.start = 'sums': task '{info.name}' writes text, without a head that could "
                f"start from sums; expected head.start = 'random'"
            )
    elif family.reads_last and experiment.representation == "cls" and info.kind != "tags":
        raise UserError(
            f"representation = 'cls': the first token of a {shape.family} backbone does not see "
            f"the text; use 'last' or 'mean'"
        )
    single = experiment.privacy.unit in ("example", "both")
    if single and not method.grouped and not family.example_weights:
        raise UserError(
            f"privacy.unit = '{experiment.privacy.unit}': gradients of single examples of all "
            f"weights of a {shape.family} backbone are not available; use another method or "
            f"privacy.unit = 'client'"
        )
