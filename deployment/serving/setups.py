"""Setups: the method, head and texts that many served vectors have in common.

A vector file describes its experiment. Vectors with equal descriptions share one ``Setup``, and
setups with the same method and seed share one ``Family``, whose vectors can be in one pass even if
their tasks have different numbers of classes. Both are freed with their last vector.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from fedpeft.backbones.loading import Backbone
from fedpeft.batches.passes import Costs, pass_costs
from fedpeft.errors import UserError
from fedpeft.experiment.config import Experiment
from fedpeft.experiment.settings import EngineSection
from fedpeft.heads import Head, Labelled
from fedpeft.heads.states import label_weights
from fedpeft.methods.base import Method
from fedpeft.modifications import Modification
from fedpeft.modifications.encoder import Encoder
from fedpeft.parameters import TaskParameters
from fedpeft.projection.choice import operator
from fedpeft.projection.operators import Operator
from fedpeft.runs.trained import check_fit, description_of
from fedpeft.runtime import Runtime
from fedpeft.tasks import TaskInfo


@dataclass(frozen=True, eq=False)
class Family:
    """One method with its fixed projections; all its vectors can be in one pass.

    Vectors that read pairs apart have a family of their own: their examples have two rows.

    Attributes:
        method: the method.
        operators: operators of its projections.
        encoder: the backbone in the precision of ``engine.autocast``.
        template: modifications of a zero vector (G = 1), which give types, sites and shapes.
        costs: costs of a pass.
        device: device of the backbone.
    """

    method: Method[Any]
    operators: list[Operator]
    encoder: Encoder
    template: list[Modification]
    costs: Costs
    device: torch.device

    @property
    def size(self) -> int:
        """Count of numbers M in the modifications of one vector."""
        return sum(tensor.numel() for m in self.template for tensor in m.tensors().values())

    def modifications(self, rows: Tensor) -> list[Modification]:
        """Return the modifications of G vectors from their flat numbers [G, M]."""
        sizes = [tensor.numel() for m in self.template for tensor in m.tensors().values()]
        parts: Iterator[Tensor] = iter(rows.split(sizes, dim=1))
        return [m.map(lambda like: next(parts).view(-1, *like.shape[1:])) for m in self.template]


@dataclass(frozen=True, eq=False)
class Setup:
    """What the vectors of equal descriptions share.

    Attributes:
        family: the method.
        head: the head.
        parameters: layout of a vector.
        info: labels and kind of the predictions.
        representation: "mask", "cls", "mean", "unit" or "last".
        max_length: tokens of a text; longer texts are truncated.
        about: facts for the list of vectors.
    """

    family: Family
    head: Head
    head_operators: list[Operator]
    label_states: Tensor | None
    parameters: TaskParameters
    info: TaskInfo
    representation: str
    max_length: int
    about: dict[str, Any]

    @property
    def reading(self) -> tuple[str, int, bool, bool]:
        """Texts of setups with the same reading are tokenized together."""
        reads = "tags" if self.info.kind == "tags" else self.representation
        return reads, self.max_length, self.info.pair, self.head.apart

    def rows(self, vectors: Tensor) -> Tensor:
        """Return realised task vectors: [G, P] -> [G, R].

        A row has its modifications, the head's weight [C, width] and its bias [C].
        """
        parameters = self.parameters.layout.unpack(vectors)
        changes = self.family.method.realise(parameters, self.family.operators)
        tensors = [tensor for change in changes for tensor in change.tensors().values()]
        tensors += self.head.realise(parameters, self.head_operators, self.label_states)
        return torch.cat([tensor.reshape(len(vectors), -1) for tensor in tensors], dim=1)


class Setups:
    """The setups of one served backbone.

    Args:
        backbone: the backbone of all vectors.
        engine: its device, dtype and form of the weights.

    Attributes:
        using: held while the backbone or its tokenizer is in use: hooks of one pass would change
            another, and a tokenizer keeps the truncation of its last call.
    """

    def __init__(self, backbone: Backbone, engine: EngineSection):
        self.backbone, self._engine = backbone, engine
        self.using = threading.Lock()
        self._setups: WeakValueDictionary[str, Setup] = WeakValueDictionary()
        self._families: WeakValueDictionary[str, Family] = WeakValueDictionary()
        self._making = threading.Lock()

    def of(self, source: str, about: dict[str, Any]) -> Setup:
        """Return the setup of a vector file's metadata.

        Raises:
            UserError: the metadata is invalid or does not fit the backbone, or the method changes
                whole weights, which cannot differ within a pass.
        """
        key = json.dumps({**about, "vector": None}, sort_keys=True)
        with self._making:
            setup = self._setups.get(key)
            if setup is None:
                setup = self._setups[key] = self._make(source, about)
            return setup

    def _make(self, source: str, about: dict[str, Any]) -> Setup:
        experiment, info = description_of(source, about)
        likelihood = experiment.by_likelihood
        if info.kind == "text" or likelihood:
            what = "with head.kind = 'likelihood'" if likelihood else "that writes text"
            raise UserError(
                f"'{source}': a run {what} is not served; use fedpeft predict, or "
                f"fedpeft export --format hf and serve that model"
            )
        self._check_backbone(source, experiment, about)
        # A name from outside must not be looked up on the hub; the fingerprint was compared above.
        own = experiment.engine.model_copy(
            update={name: getattr(self._engine, name) for name in ("device", "dtype", "weights")}
        )
        experiment = experiment.model_copy(update={"backbone": self.backbone.name, "engine": own})
        runtime = Runtime(experiment, known=info)
        check_fit(source, runtime, self.backbone.fingerprint, about)
        parameters = runtime.parameters
        if not parameters.method.grouped:
            name = experiment.method.name
            raise UserError(
                f"'{source}': method '{name}' changes whole weights and cannot share a backbone; "
                f"export it with --format hf and serve that model"
            )
        with self.using, torch.inference_mode():
            return self._setup(experiment, parameters, info)

    def _check_backbone(self, source: str, experiment: Experiment, about: dict[str, Any]) -> None:
        if about["digests"]["backbone"] != self.backbone.fingerprint:
            raise UserError(
                f"'{source}' was trained on another backbone ('{experiment.backbone}') than the "
                f"served '{self.backbone.name}' (weights or tokenizer differ); serve it from "
                f"another process"
            )

    def _setup(self, experiment: Experiment, parameters: TaskParameters, info: TaskInfo) -> Setup:
        head, weights = parameters.head, parameters.head.weights
        facts = {
            "task": experiment.task.name,
            "method": experiment.method.name,
            "kind": info.kind,
            "labels": list(info.labels),
            "pair": info.pair,
        }
        return Setup(
            self._family(experiment, parameters),
            head,
            self._operators(head.projections()),
            label_weights(weights, self.backbone) if isinstance(weights, Labelled) else None,
            parameters,
            info,
            str(experiment.representation),
            experiment.task.max_length,
            facts,
        )

    def _family(self, experiment: Experiment, parameters: TaskParameters) -> Family:
        method, autocast = parameters.method, experiment.engine.autocast
        settings, pairs = experiment.method.model_dump_json(), experiment.task.pairs
        key = f"{experiment.seed}|{autocast}|{pairs}|{settings}"
        if (family := self._families.get(key)) is not None:
            return family
        operators = self._operators(method.projections())
        encoder, device = Encoder(self.backbone, autocast), self.backbone.device
        size, width = parameters.layout.size, method.shape.width
        zeros = torch.zeros(1, size, dtype=self.dtype, device=device)
        family = Family(
            method,
            operators,
            encoder,
            list(method.realise(parameters.layout.unpack(zeros), operators)),
            pass_costs(device.type, width, size, encoder.in_16_bits),
            device,
        )
        self._families[key] = family
        return family

    def _operators(self, projections: Sequence[Any]) -> list[Operator]:
        device = self.backbone.device
        return [operator(projection, device, self.dtype) for projection in projections]

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the backbone and of the vectors."""
        return self.backbone.dtype
