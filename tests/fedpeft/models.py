"""Small task models and batches in float64, so that tolerances can be small."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from transformers import BertConfig, BertModel, RobertaConfig, RobertaModel

from fedpeft.backbones.attention import SDPA
from fedpeft.backbones.known import shape_of_config
from fedpeft.backbones.loading import Backbone
from fedpeft.backbones.tiny import tiny_tokenizer
from fedpeft.batches.batch import Batch, collate
from fedpeft.batches.encoded import Encoded
from fedpeft.experiment.settings import TaskSection
from fedpeft.heads import Full, Head
from fedpeft.methods import REGISTRY, build_method, method_class, settings_for
from fedpeft.methods.base import Method
from fedpeft.model import TaskModel
from fedpeft.parameters import TaskParameters
from fedpeft.tasks import load_task
from fedpeft.tasks.base import Kind
from fedpeft.tasks.encoding import encode

#: Small settings of every method, so that each shared test runs over the registry.
SMALL: dict[str, dict[str, object]] = {
    "linear": {},
    "slash": {"d": 12},
    "jr_warp": {"d": 12, "length": 2},
    "prompt": {"length": 3},
    "prefix": {"length": 3},
    "bitfit": {},
    "lora": {"rank": 2},
    "vera": {"rank": 4},
    "uni_lora": {"d": 12, "rank": 2},
    "houlsby": {"bottleneck": 3},
    "pfeiffer": {"bottleneck": 3},
    "parallel_adapter": {"bottleneck": 3},
    "scaled_parallel_adapter": {"bottleneck": 3},
    "multihead_parallel_adapter": {"length": 3},
    "mam": {"length": 3, "bottleneck": 3},
    "compacter": {"n": 2, "reduction": 4},
    "said": {"d": 12},
    "full": {},
}
METHODS = sorted(REGISTRY)
#: Every method, and once more with settings that take another way through the code.
VARIANTS: list[tuple[str, dict[str, object]]] = [
    *SMALL.items(),
    ("slash", {"d": 12, "init": "zeros"}),
    ("slash", {"d": 12, "position": "intermediate"}),
    ("slash", {"d": 12, "position": "attention", "layers": "0,2"}),
    ("jr_warp", {"d": 12, "init": "zeros"}),
    ("prompt", {"length": 3, "placement": "template"}),
    ("prefix", {"length": 3, "hidden": 4}),
    ("lora", {"rank": 2, "sites": "q,k,v,o,ffn"}),
    ("lora", {"rank": 2, "layers": "upper half"}),
    ("parallel_adapter", {"bottleneck": 3, "position": "attention"}),
    ("scaled_parallel_adapter", {"bottleneck": 3, "train_scale": True}),
    ("compacter", {"n": 2, "reduction": 4, "plus_plus": True, "layer_norms": True}),
]
#: Those whose rows of a batch may have task vectors of their own.
GROUPED = [name for name in METHODS if method_class(name).grouped]


def build_model(
    backbone: Backbone, name: str, classes: int = 2, kind: Kind = "classes", **settings: object
) -> TaskModel:
    """Return a task model; without settings, those of SMALL."""
    values = {"name": name, **(settings or SMALL[name])}
    method = build_method(settings_for(values), backbone.shape, seed=3)
    return task_model(backbone, method, Head(kind, Full(classes, backbone.shape.width)))


def task_model(backbone: Backbone, method: Method[Any], head: Head, **options: Any) -> TaskModel:
    """Return a task model whose task vectors have the dtype of the backbone."""
    dtype = str(next(backbone.model.parameters()).dtype).removeprefix("torch.")
    return TaskModel(backbone, TaskParameters(method, head, dtype), **options)


@lru_cache
def small_backbone(family: str) -> Backbone:
    """Return a random encoder of three blocks and no round sizes: "bert" or "roberta".

    No weight is left at 0 or 1, so that none can be forgotten unseen.
    """
    tokenizer = tiny_tokenizer()
    sizes = {
        "vocab_size": len(tokenizer),
        "hidden_size": 24,
        "num_hidden_layers": 3,
        "num_attention_heads": 3,
        "intermediate_size": 40,
        "max_position_embeddings": 70,
        "pad_token_id": tokenizer.pad_token_id,
    }
    if family == "bert":
        model = BertModel(BertConfig(**sizes, type_vocab_size=2), add_pooling_layer=False)
    else:
        model = RobertaModel(RobertaConfig(**sizes, type_vocab_size=1), add_pooling_layer=False)
    draw = torch.Generator().manual_seed(0)
    model = model.double().eval().requires_grad_(False)
    for name, weight in model.named_parameters():
        around = 1.0 if name.endswith("LayerNorm.weight") else 0.0
        weight.copy_(around + 0.2 * torch.randn(weight.shape, generator=draw).double())
    model.set_attn_implementation(SDPA)
    return Backbone(
        family, model, tokenizer, shape_of_config(model.config), "", torch.device("cpu")
    )


def encoded(backbone: Backbone, task: str, representation: str, count: int = 24) -> Encoded:
    """Return ``count`` encoded examples of a synthetic task."""
    examples = load_task(TaskSection(name=task, train_limit=count, eval_limit=4)).train
    return encode(examples, backbone.tokenizer, representation, max_length=48)


def batch_of(
    backbone: Backbone,
    groups: int,
    rows: int,
    representation: str = "mask",
    task: str = "synthetic/sentiment",
    packed: bool = False,
) -> Batch:
    """Return a batch of ``groups`` groups of ``rows`` examples."""
    examples = encoded(backbone, task, representation, max(24, groups * rows))
    order = np.arange(groups * rows).reshape(groups, rows)
    pad_id = backbone.tokenizer.pad_token_id
    return collate([examples] * groups, list(order), pad_id, "cpu", torch.float64, packed)


def random_vectors(model: TaskModel, groups: int, scale: float = 0.3) -> torch.Tensor:
    """Return task vectors [G, P] with every number random, so that no gradient is zero."""
    draw = torch.Generator().manual_seed(7)
    return scale * torch.randn(groups, model.layout.size, generator=draw, dtype=torch.float64)


def part_of(batch: Batch, start: int, stop: int) -> Batch:
    """Return some rows as one group, without the padding that the others caused."""
    longest = int(batch.attention_mask[start:stop].sum(1).max())
    fields = {
        name: value[start:stop, :longest] if value.dim() == 2 else value[start:stop]
        for name, value in vars(batch).items()
        if name not in ("groups", "states", "packing")
    }
    return Batch(**fields, groups=1)


def without_padding(batch: Batch) -> Batch:
    """Return the batch cut to its shortest text, so that no mask is needed."""
    shortest = int(batch.attention_mask.sum(1).min())
    cut = {
        name: value[:, :shortest]
        for name, value in vars(batch).items()
        if name not in ("groups", "states", "packing") and value.dim() == 2
    }
    return replace(batch, **cut, read=batch.read.clamp(max=shortest - 1))


def with_types(batch: Batch) -> Batch:
    """Return the batch as if the second half of every text were its second part."""
    tokens = batch.input_ids.shape[1]
    types = (torch.arange(tokens) >= tokens // 2).long().expand_as(batch.input_ids)
    return replace(batch, token_type_ids=types)
