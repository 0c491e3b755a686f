"""SLaSh with a linear head as a plain torch module, for the reference sides of ``peers``.

Reads the files written by ``peers``: the frozen backbone, W, the initial vector, the tokens, and
the batches of each client in order. Imports nothing of fedpeft, which pfl's environment lacks.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModel

Batch = tuple[Tensor, Tensor, Tensor]  # token ids and mask [B, T], labels [B]


class Prepared:
    """Data that all sides train on.

    Attributes:
        settings: lr, max_grad_norm, clients, rounds, pad_id.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self.settings: dict[str, Any] = json.loads((folder / "settings.json").read_text())
        self.arrays = load_file(folder / "arrays.safetensors")
        cuts = self.arrays["offsets"][1:-1]
        self.tokens = [tokens.long() for tokens in self.arrays["tokens"].tensor_split(cuts)]
        self.labels = self.arrays["labels"]
        self._plan = json.loads((folder / "plan.json").read_text())  # [round][client][step][B]

    def batches(self, client: int, number: int) -> Iterator[Batch]:
        """Yield a client's batches of a round, counted from 1."""
        for rows in self._plan[number - 1][client]:
            tokens = pad_sequence([self.tokens[i] for i in rows], True, self.settings["pad_id"])
            lengths = torch.tensor([len(self.tokens[i]) for i in rows])
            mask = (torch.arange(tokens.shape[1]) < lengths[:, None]).long()
            yield tokens, mask, self.labels[rows]

    def examples(self, client: int) -> int:
        """Return the number of examples of a client."""
        return sum(map(len, self._plan[0][client]))


class Classifier(nn.Module):
    """A frozen encoder whose blocks are shifted by z W_l before the last LayerNorm, and a head."""

    def __init__(self, prepared: Prepared):
        super().__init__()
        self.encoder = AutoModel.from_pretrained(prepared.folder / "backbone").eval()
        self.encoder.requires_grad_(False)
        arrays = prepared.arrays
        self.fixed = [arrays[f"W{layer}"] for layer in range(len(self.encoder.encoder.layer))]
        self.z = nn.Parameter(arrays["z"].clone())
        self.weight = nn.Parameter(arrays["weight"].clone())
        self.bias = nn.Parameter(arrays["bias"].clone())
        for block, matrix in zip(self.encoder.encoder.layer, self.fixed, strict=True):
            block.output.LayerNorm.register_forward_pre_hook(
                lambda _, inputs, matrix=matrix: (inputs[0] + self.z @ matrix,)
            )

    def trained(self) -> dict[str, nn.Parameter]:
        """Return the trained parameters in the order of the task vector."""
        return {"z": self.z, "weight": self.weight, "bias": self.bias}

    def vector(self) -> np.ndarray:
        """Return the trained parameters as a task vector [P]."""
        return torch.cat([value.detach().flatten() for value in self.trained().values()]).numpy()

    def loss(self, tokens: Tensor, mask: Tensor, labels: Tensor) -> Tensor:
        """Return the mean loss of a batch; the head reads the mean of a text's tokens."""
        states = self.encoder(input_ids=tokens, attention_mask=mask).last_hidden_state
        share = mask[:, :, None].to(states.dtype)
        read = (states * share).sum(1) / share.sum(1)
        return functional.cross_entropy(read @ self.weight.T + self.bias, labels)

    def optimizer(self, lr: float) -> torch.optim.Optimizer:
        """Return a client's optimizer in a round."""
        return torch.optim.AdamW(self.trained().values(), lr=lr, weight_decay=0.0)
