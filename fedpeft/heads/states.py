"""Weights of a head made of the names of its classes, by the frozen backbone."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fedpeft.backbones.loading import Backbone
from fedpeft.batches.batch import collate
from fedpeft.heads.base import at_length, read_texts
from fedpeft.heads.labelled import Labelled
from fedpeft.modifications.encoder import Encoder
from fedpeft.tasks.base import Examples
from fedpeft.tasks.encoding import encode

LOGIT = 20.0  # mean logit of a label as text: cosine similarities at temperature 1/20
_CHUNK = 32  # labels in a pass
_LONGEST = 64  # tokens of a label


def label_weights(weights: Labelled, backbone: Backbone) -> Tensor:
    """Return E [C, width]: one row for each label, in the dtype of the backbone.

    A row is the label's representation minus the mean over labels, scaled by one factor for all
    rows, so that the mean logit of a label's own representation is ``LOGIT``. All sites compute the
    same E up to the rounding of a forward pass.
    """
    texts = [label.replace("_", " ") for label in weights.labels]
    nothing = np.zeros(len(texts), np.int64)
    examples = Examples(texts, None, nothing)
    encoded = encode(examples, backbone.tokenizer, weights.representation, _LONGEST)
    encoder, dtype = Encoder(backbone), backbone.dtype
    pad_id, read = backbone.pad_id, []
    with torch.no_grad():
        for rows in np.split(np.arange(len(texts)), range(_CHUNK, len(texts), _CHUNK)):
            batch = collate([encoded], [rows], pad_id, backbone.device, dtype)
            states, batch = encoder.run([], batch)
            read.append(read_texts(states.to(dtype), batch, 0))
        states = torch.cat(read)
        if weights.representation == "unit":
            states = at_length(states)
        centered = states - states.mean(0)
        squared = (centered**2).sum(1).mean()
        return LOGIT * centered / torch.clamp(squared, min=1e-12)
