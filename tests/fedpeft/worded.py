"""Small models of classes by likelihood, and their batches."""

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
from fedpeft.tasks.label_words import encode_prompted, label_words
from fedpeft.text.likelihood import LikelihoodModel

#: Of different lengths, and both orders of length.
TEXTS = ["a good film", "bad", "the plot was very dull and slow", "great fun", "not good at all"]
PAIRS = ["fun", "a bad and slow film", "it is dull", "good", "it was not great fun"]
WORDS = ("bad", "good fun", "dull")
LABELS = np.array([1, 0, 2, 1, 0])
PROMPT = "film: {source}, that is {pair}. it was"


def likelihood_model(backbone: Backbone, name: str, **settings: object) -> LikelihoodModel:
    """Return a model of three classes; without settings, those of SMALL."""
    values = {"name": name, **(settings or SMALL[name])}
    method = build_method(settings_for(values), backbone.shape, seed=3)
    head = LanguageHead(backbone.shape.width, "classes", len(WORDS))
    dtype = str(next(backbone.model.parameters()).dtype).removeprefix("torch.")
    words = label_words(WORDS, (), backbone, PROMPT)
    return LikelihoodModel(backbone, TaskParameters(method, head, dtype), words, labels=WORDS)


def prompted(backbone: Backbone, **settings: Any) -> Encoded:
    """Return all examples."""
    task = TaskSection.model_validate({"prompt": PROMPT, "max_length": 48, **settings})
    return encode_prompted(Examples(TEXTS, PAIRS, LABELS), backbone, task)


def prompted_batch(backbone: Backbone, *rows: list[int]) -> Batch:
    """Return a batch with a group for each list of examples."""
    groups = [np.array(group) for group in rows]
    texts = [prompted(backbone)] * len(rows)
    return collate(texts, groups, backbone.pad_id, "cpu", torch.float64)
