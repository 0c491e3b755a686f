"""Passes through SLaSh's projections and whole steps, for the benchmark of projections."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from fedpeft.backbones.attention import SDPA
from fedpeft.backbones.known import KNOWN_SHAPES, shape_of_config
from fedpeft.backbones.loading import Backbone
from fedpeft.backbones.shapes import BackboneShape
from fedpeft.backbones.tiny import tiny_tokenizer
from fedpeft.batches.batch import Batch
from fedpeft.heads import Full, Head
from fedpeft.methods import build_method, settings_for
from fedpeft.methods.base import Method
from fedpeft.model import TaskModel
from fedpeft.parameters import TaskParameters
from fedpeft.projection.choice import operator
from fedpeft.projection.operators import Mode, Operator


def method_of(backbone: str, d: int) -> Method[Any]:
    """Return SLaSh with random projections to every layer of a known backbone."""
    return build_method(settings_for({"name": "slash", "d": d}), KNOWN_SHAPES[backbone], seed=0)


def operators_of(method: Method[Any], mode: Mode, device: torch.device) -> list[Operator]:
    """Return the operators of all layers on a device."""
    return [operator(shape, device, torch.float32, mode) for shape in method.projections()]


def passes(operators: Iterable[Operator], groups: int, device: torch.device) -> Tensor:
    """Pass forward and backward through all layers; return the gradients, [G, columns]."""
    operators = [*operators]
    z = torch.linspace(-1, 1, groups * operators[0].columns, device=device)
    z = z.reshape(groups, -1).requires_grad_()
    total = torch.stack([project(z).square().sum() for project in operators]).sum()
    (gradient,) = torch.autograd.grad(total, z)
    return gradient


def step_of(method: Method[Any], mode: Mode, model: Any, options: Namespace) -> Callable[[], Any]:
    """Return a function that computes the gradients of one batch through a backbone."""
    shape, device = method.shape, torch.device(options.device)
    backbone = Backbone(options.backbone, model, tiny_tokenizer(), shape, "", device)
    head = Head("classes", Full(2, shape.width))
    dtype = str(next(model.parameters()).dtype).removeprefix("torch.")
    parameters = TaskParameters(method, head, dtype)
    task = TaskModel(backbone, parameters, autocast=options.autocast, projections=mode)
    vectors = torch.from_numpy(task.parameters.initial(0)).to(device).expand(options.groups, -1)
    batch = batch_of(shape, options, device)
    return lambda: task.gradients(vectors, batch)


def batch_of(shape: BackboneShape, options: Namespace, device: torch.device) -> Batch:
    """Return a batch of texts of equal length, the same in every process."""
    texts = options.groups * options.batch
    size = texts, options.tokens
    draw = torch.Generator().manual_seed(0)
    ids = torch.randint(5, shape.vocabulary, size, generator=draw).to(device)
    zeros = torch.zeros(texts, dtype=torch.int64, device=device)
    mask = torch.ones_like(ids)
    types = torch.zeros_like(ids)
    return Batch(ids, mask, types, zeros, zeros, zeros.float() + 1, options.groups)


def random_model(shape: BackboneShape, device: torch.device) -> Any:
    """Return an encoder of this shape with random weights, frozen."""
    from transformers import AutoConfig, AutoModel

    config = AutoConfig.for_model(
        shape.family,
        vocab_size=shape.vocabulary,
        hidden_size=shape.width,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        intermediate_size=shape.intermediate,
        max_position_embeddings=shape.positions,
        type_vocab_size=shape.types,
    )
    assert shape_of_config(config) == shape
    torch.manual_seed(0)
    model = AutoModel.from_config(config, add_pooling_layer=False)
    model.set_attn_implementation(SDPA)
    return model.to(device).eval().requires_grad_(False)
