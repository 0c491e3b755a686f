"""Small task models and batches in float64, so that tolerances can be small."""

from __future__ import annotations

import numpy as np
import torch

from fedpeft.backbones import Backbone
from fedpeft.methods import REGISTRY, build_method, settings_for
from fedpeft.model import TaskModel
from fedpeft.settings import TaskSection
from fedpeft.tasks import load_task
from fedpeft.tasks.encoding import Batch, Encoded, collate, encode

#: Small settings of every method, so that each shared test runs over the registry.
SMALL = {
    "linear": {},
    "slash": {"d": 12},
    "jr_warp": {"d": 12, "length": 2},
    "lora": {"rank": 2},
}
METHODS = sorted(REGISTRY)


def build_model(
    backbone: Backbone, name: str, classes: int = 2, kind: str = "classes", **settings: object
) -> TaskModel:
    """Return a task model; without settings, those of SMALL."""
    values = {"name": name, **(settings or SMALL[name])}
    method = build_method(settings_for(values), backbone.shape, seed=3)
    return TaskModel(backbone, method, classes, kind, autocast="off")


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
) -> Batch:
    """Return a padded batch of ``groups`` groups of ``rows`` examples."""
    examples = encoded(backbone, task, representation, max(24, groups * rows))
    order = np.arange(groups * rows).reshape(groups, rows)
    return collate(
        [examples] * groups, list(order), backbone.tokenizer.pad_token_id, "cpu", torch.float64
    )


def random_vectors(model: TaskModel, groups: int, scale: float = 0.3) -> torch.Tensor:
    """Return task vectors [G, P] with every number random, so that no gradient is zero."""
    draw = torch.Generator().manual_seed(7)
    return scale * torch.randn(groups, model.layout.size, generator=draw, dtype=torch.float64)
