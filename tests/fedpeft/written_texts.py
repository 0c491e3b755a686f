"""Small models and examples of a task of text."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from models import SMALL

from fedpeft.backbones.loading import Backbone
from fedpeft.batches.batch import Batch, collate
from fedpeft.batches.encoded import Encoded
from fedpeft.experiment.settings import TaskSection
from fedpeft.heads import LanguageHead
from fedpeft.methods import build_method, settings_for
from fedpeft.parameters import TaskParameters
from fedpeft.tasks.base import Examples
from fedpeft.tasks.writing import encode_written
from fedpeft.text.model import TextModel

#: Of different lengths, in sources and targets, and both orders of length.
SOURCES = ["a good film", "bad", "the plot was very dull and slow", "great fun", "not good at all"]
TARGETS = ["good", "it was a bad film, not fun", "dull", "fun and great fun", "no"]


def section(**settings: Any) -> TaskSection:
    """Return the [task] section of a task of text."""
    values = {"name": "custom", "kind": "text", "max_length": 32, "max_target": 20, **settings}
    return TaskSection.model_validate(values)


def text_model(backbone: Backbone, name: str, **settings: object) -> TextModel:
    """Return a model of a task of text; without settings, those of SMALL."""
    values = {"name": name, **(settings or SMALL[name])}
    method = build_method(settings_for(values), backbone.shape, seed=3)
    head = LanguageHead(backbone.shape.width)
    dtype = str(next(backbone.model.parameters()).dtype).removeprefix("torch.")
    return TextModel(backbone, TaskParameters(method, head, dtype))


def encoded_texts(backbone: Backbone, count: int = len(SOURCES), **settings: Any) -> Encoded:
    """Return the first examples."""
    examples = Examples(SOURCES[:count], None, np.zeros(count, np.int64), targets=TARGETS[:count])
    return encode_written(examples, backbone, section(prompt="film: {source} =", **settings))


def text_batch(backbone: Backbone, *rows: list[int]) -> Batch:
    """Return a batch with a group for each list of examples."""
    texts = encoded_texts(backbone)
    groups = [np.array(group) for group in rows]
    return collate([texts] * len(rows), groups, backbone.pad_id, "cpu", torch.float64)
