"""Which runs can be exported to which formats, and why not: for exports, runs and the docs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, get_args

from fedpeft.backbones.checkpoints import backbone_shape, is_here
from fedpeft.errors import UserError
from fedpeft.experiment.config import Experiment
from fedpeft.export.formats import Format
from fedpeft.methods import build_method, method_class
from fedpeft.tasks import described
from fedpeft.trained import Trained, reads_of

if TYPE_CHECKING:
    from fedpeft.methods.base import Method

ADAPTERS = ("lora", "vera", "uni_lora")  # methods with an adapter in peft
#: Methods whose graph torch 2.13 fixes to the number of texts of the example, for example because
#: ``len`` of a tensor is a plain number.
FIXED = ("compacter", "mam", "multihead_parallel_adapter", "prefix", "vera")
POOLED = ("mean", "unit", "cls", "last")  # representations that sentence-transformers computes


@dataclass(frozen=True)
class Subject:
    """All that decides whether a run can be exported.

    Attributes:
        method: the run's method on its backbone.
        reads: see ``Trained.reads``.
        apart: whether the texts of pairs pass on their own.
        weights: form of the frozen weights.
    """

    method: Method[Any]
    reads: str
    apart: bool = False
    weights: str = "float32"

    @property
    def writes(self) -> bool:
        """Whether the run uses output embeddings."""
        return self.reads in ("text", "likelihood")


def obstacle(kind: Format, subject: Subject) -> str:
    """Return why a run cannot be exported in a format, "" if it can."""
    return _OBSTACLES[kind](subject) if kind in _OBSTACLES else ""


def _merging(subject: Subject) -> str:
    method = subject.method
    name = method.settings.name
    if not method_class(name).fusable:
        return f"method '{name}' cannot be merged into the backbone's weights"
    if not method.fusable:
        return f"method '{name}' shifts states where this backbone has no bias"
    return ""


def _one_sequence(subject: Subject) -> str:
    return "the texts of pairs are read apart (task.pairs = 'apart')" if subject.apart else ""


def _hf(subject: Subject) -> str:
    return _one_sequence(subject) or _merging(subject)


def _peft(subject: Subject) -> str:
    name = subject.method.settings.name
    if name not in ADAPTERS:
        return f"peft has no adapter for method '{name}'"
    if subject.weights != "float32":
        return (
            f"an adapter applies to the float32 checkpoint, and this run has "
            f"{subject.weights} weights (engine.weights)"
        )
    return _one_sequence(subject)


def _onnx(subject: Subject) -> str:
    name = subject.method.settings.name
    if subject.writes:
        return "its graph has no output embeddings"
    if not subject.method.grouped:
        return f"method '{name}' changes whole weights, which cannot be an input"
    if name in FIXED:
        return f"method '{name}' cannot be exported with any number of texts"
    return _one_sequence(subject)


def _sentences(subject: Subject) -> str:
    if subject.reads not in POOLED:
        return f"it pools whole texts, and this run reads '{subject.reads}'"
    behind = subject.method.shape.sites.writes == "encoder-decoder"
    return _merging(subject) or ("it runs no decoder behind an encoder" if behind else "")


_OBSTACLES: dict[str, Callable[[Subject], str]] = {
    "hf": _hf,
    "peft": _peft,
    "onnx": _onnx,
    "sentence-transformers": _sentences,
}


def check_exportable(trained: Trained, kind: Format) -> None:
    """Raise UserError if a run cannot be exported in a format; name those in which it can."""
    model, weights = trained.model, trained.experiment.engine.weights
    subject = Subject(model.method, trained.reads, model.head.apart, weights)
    if why := obstacle(kind, subject):
        formats = ", ".join(other for other in get_args(Format) if not obstacle(other, subject))
        raise UserError(f"--format {kind}: {why}; formats for this run: {formats}")


def unexportable(experiment: Experiment) -> str:
    """Return a fact on the formats to which a run cannot be exported, "" if there are none.

    Also "" if the backbone is not on this machine. ``fedpeft export`` says why.
    """
    if not is_here(experiment.backbone):
        return ""
    task, shape = experiment.task, backbone_shape(experiment.backbone)
    info, method = described(task), build_method(experiment.method, shape, experiment.seed)
    reads = reads_of(experiment, info.kind if info else task.kind)
    subject = Subject(method, reads, task.pairs == "apart", experiment.engine.weights)
    refused = [kind for kind in get_args(Format) if obstacle(kind, subject)]
    return f"no export to {', '.join(refused)}" if refused else ""
