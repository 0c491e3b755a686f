"""Export as an ONNX model whose task vectors are an input: one file for all runs of a method.

The graph holds the backbone, the fixed projections and the function from vectors to modifications
and heads. Its inputs are the tokens of N texts and ``vectors`` [N, P], one task vector (z and head)
per text, so texts of different runs with the same method, seed and labels can be in one batch.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedpeft.backbones.attention import EAGER, SDPA
from fedpeft.batches.batch import Batch
from fedpeft.errors import UserError
from fedpeft.export.obstacles import check_exportable
from fedpeft.export.onnx_readme import onnx_readme
from fedpeft.export.plain import save_tokenizer
from fedpeft.heads import Labelled
from fedpeft.heads.base import at_length
from fedpeft.heads.states import label_weights
from fedpeft.model import TaskModel
from fedpeft.modifications.encoder import Encoder
from fedpeft.projection.choice import operator
from fedpeft.runtime import Runtime
from fedpeft.tasks import TaskInfo
from fedpeft.trained import Trained
from fedpeft.vectorfile import VECTOR, vector_bytes

MODEL = "model.onnx"
_LARGE = 1_500_000_000  # bytes; protobuf allows 2 GB in one file
#: Texts and tokens of the traced inputs; the graph takes any number of both.
_EXAMPLE = (5, 7)


def save_onnx(trained: Trained, folder: Path) -> None:
    """Write model.onnx, the run's vector, the tokenizer and a README.

    Raises:
        UserError: onnx is not installed, or the run has no such export.
    """
    check_exportable(trained, "onnx")
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError:
        raise UserError("--format onnx needs onnx; pip install 'fedpeft[onnx]'") from None
    with _portable(trained) as model:
        _write(_Graph(model, trained.reads), folder / MODEL)
    (folder / VECTOR).write_bytes(vector_bytes(trained.vector, trained.about))
    save_tokenizer(trained, folder)
    (folder / "README.md").write_text(onnx_readme(trained), encoding="utf-8")


class _Graph(nn.Module):
    """The exported function, with tensors in and out.

    Args:
        model: the task model, float32 on the CPU.
        reads: the head's input, see ``Trained.reads``.

    Attributes:
        names: names of the inputs, in order.
    """

    def __init__(self, model: TaskModel, reads: str):
        super().__init__()
        self._model, self._reads = model, reads
        self.encoder = model.backbone.model  # a submodule, so that its weights are the graph's
        self._run = Encoder(model.backbone).run
        device, weights = model.backbone.device, model.head.weights
        # The plain functions: the export cannot trace the operators' own autograd functions.
        self._method_maps, self._head_maps = (
            [operator(projection, device, model.dtype).forward for projection in fixed]
            for fixed in (model.method.projections(), model.head.projections())
        )
        self._labels = None
        if isinstance(weights, Labelled):
            self._labels = label_weights(weights, model.backbone)
        types = ["token_type_ids"] if model.backbone.shape.types > 1 else []
        read = ["read"] if reads == "mask" else []
        self.names = ["input_ids", "attention_mask", *types, *read, "vectors"]

    def forward(self, *inputs: Tensor) -> Tensor:
        """Return logits or scores [N, C], for tags [N, T, C]."""
        given = dict(zip(self.names, inputs, strict=True))
        ids, vectors, model = given["input_ids"], given["vectors"], self._model
        parameters, maps = model.layout.unpack(vectors), _any(self._method_maps)
        modifications = model.method.realise(parameters, maps)
        weight, bias = model.head.realise(parameters, _any(self._head_maps), self._labels)
        nothing, types = ids[:, 0] * 0, given.get("token_type_ids", ids * 0)
        # Texts are padded at their end.
        last = given["attention_mask"].sum(1) - 1 if self._reads == "last" else nothing
        read = given.get("read", last)
        batch = Batch(ids, given["attention_mask"], types, read, nothing, nothing, 1)
        states, batch = self._run(modifications, batch)
        source = self._representation(states, batch)
        scores = source @ weight.transpose(1, 2) + bias[:, None]
        return scores if self._reads == "tags" else scores[:, 0]

    def _representation(self, states: Tensor, batch: Batch) -> Tensor:
        """Return what the head reads, [N, 1, width], for tags [N, T, width].

        The same as ``Head.read`` without its branch on the values of ``batch.read``.
        """
        tokens = batch.input_ids.shape[1]
        offset = self._model.method.read_offset(states.shape[1] - tokens)
        texts = states[:, states.shape[1] - tokens :]
        if self._reads == "tags":
            return texts
        if self._reads in ("mean", "unit"):
            mask = batch.attention_mask[:, batch.attention_mask.shape[1] - tokens :, None]
            mask = mask.to(states.dtype)
            mean = (texts * mask).sum(1, keepdim=True) / mask.sum(1, keepdim=True)
            return at_length(mean) if self._reads == "unit" else mean
        at = (batch.read + offset)[:, None, None].expand(-1, 1, states.shape[2])
        return states.gather(1, at)


def _any(value: Any) -> Any:
    return value  # a method takes operators, but only calls them


@contextmanager
def _portable(trained: Trained) -> Iterator[TaskModel]:
    """Yield the run's model in float32 on the CPU, with attention that every runtime has."""
    engine = trained.experiment.engine.model_copy(
        update={"device": "cpu", "dtype": "float32", "autocast": "off"}
    )
    experiment = trained.experiment.model_copy(update={"engine": engine})
    name, metric = experiment.task.name, str(trained.about.get("metric", ""))
    info = TaskInfo(name, trained.kind, trained.labels, trained.pair, metric, None, "")
    model = Runtime(experiment, known=info).model.in_float32()
    model.backbone.model.set_attn_implementation(EAGER)
    try:
        yield model
    finally:
        model.backbone.model.set_attn_implementation(SDPA)


def _write(graph: _Graph, path: Path) -> None:
    """Export the graph; numbers of texts and tokens are free."""
    texts, tokens = _EXAMPLE
    # Each input is a tensor of its own: the export takes two names of one tensor for one input.
    shapes: dict[str, Any] = {
        "read": torch.full((texts,), 1),
        "vectors": torch.zeros(texts, graph._model.layout.size),
    }
    free = {0: "texts", 1: "tokens"}
    dimensions = {"read": {0: "texts"}, "vectors": {0: "texts"}}
    size = sum(weight.numel() for weight in graph.encoder.parameters()) * 4
    with torch.no_grad(), _quiet():
        torch.onnx.export(
            graph,
            tuple(shapes.get(name, torch.full((texts, tokens), 1)) for name in graph.names),
            str(path),
            input_names=graph.names,
            output_names=["outputs"],
            dynamic_shapes=(tuple(dimensions.get(name, free) for name in graph.names),),
            dynamo=True,
            external_data=size > _LARGE,
            verbose=False,
        )


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence warnings about packages that the graph does not need."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
