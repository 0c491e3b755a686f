"""Evaluation of a task of text: losses of the targets' tokens, and generated texts."""

from __future__ import annotations

import numpy as np
import torch

from fedpeft.batches.batch import EVALUATION_BATCH, batches
from fedpeft.batches.encoded import IGNORED, Encoded
from fedpeft.moving import to_device
from fedpeft.tasks.text_metrics import generated_statistics, token_statistics
from fedpeft.text.generation import generate
from fedpeft.text.model import TextModel


def evaluate_text(
    model: TextModel, vector: np.ndarray, examples: Encoded
) -> tuple[np.ndarray, float]:
    """Return summable statistics and the summed loss of the examples.

    Args:
        model: the model; its ``search`` says whether texts are generated.
        vector: one task vector [P].
        examples: sources and targets.
    """
    vectors = to_device(vector, model.backbone.device, model.dtype)[None]
    right, token_losses, loss_sum = 0, 0.0, 0.0
    with torch.inference_mode():
        realised = model.realise(vectors)
        for rows in batches(examples.lengths, EVALUATION_BATCH, None):
            batch = model.collate([examples], [rows])
            logits = model.outputs(realised, batch)
            labels = batch.labels[batch.labels != IGNORED]
            losses = model.losses(logits, batch).double()
            counts = (batch.labels != IGNORED).sum(1)
            loss_sum += float(losses.sum())
            token_losses += float((losses * counts).sum())
            right += int((logits.argmax(1) == labels).sum())
    tokens = int((examples.labels != IGNORED).sum())
    lost = examples.cut.targets if examples.cut else None
    cut = 0 if lost is None else int(lost.sum())
    stats = token_statistics(len(examples), tokens, right, token_losses, cut)
    if model.search.evaluates:
        assert examples.targets is not None  # of an evaluation set
        written = generate(model, vector, examples)
        stats += generated_statistics(written, examples.targets.tolist())
    return stats, loss_sum
