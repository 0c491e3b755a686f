"""Federated SLaSh in plain PyTorch, the reference of the overhead benchmark."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import sqrt

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.utils import clip_grad_norm_
from torch.nn.utils.rnn import pad_sequence

from clients.data.partitioning import partition
from fedpeft import training
from fedpeft.batches.encoded import Encoded
from fedpeft.experiment.config import Experiment
from fedpeft.projection import Projection
from fedpeft.runtime import Runtime


@dataclass(frozen=True)
class Client:
    """A client's examples as tensors."""

    examples: Encoded
    tokens: list[Tensor]  # token ids of each text
    lengths: Tensor  # [n]
    read: Tensor  # [n], token position read by the head
    labels: Tensor  # [n]

    @classmethod
    def of(cls, examples: Encoded) -> Client:
        """Create the client from examples, with one tensor per text."""
        cuts = np.split(examples.tokens, examples.offsets[1:-1])
        return cls(
            examples,
            [torch.from_numpy(tokens.astype(np.int64)) for tokens in cuts],
            torch.from_numpy(examples.lengths),
            torch.from_numpy(examples.read.astype(np.int64)),
            torch.from_numpy(examples.labels),
        )


class BareLoop:
    """Federated SLaSh (Gupta et al. 2023, section 2) written for one experiment."""

    def __init__(self, experiment: Experiment, runtime: Runtime):
        self.experiment, self.runtime = experiment, runtime
        self.encoder, self.pad_id = runtime.backbone.model, runtime.backbone.tokenizer.pad_token_id
        projections = [w for w in runtime.model.method.projections() if isinstance(w, Projection)]
        d = projections[0].columns
        self.weights = [torch.from_numpy(w.transposed()) / sqrt(d) for w in projections]
        classes = runtime.info.classes
        self.sizes = [d, runtime.backbone.shape.width * classes, classes]
        self.shifts: list[Tensor] = []
        rows = partition(runtime.task, experiment)
        self.clients = [Client.of(runtime.train.select(indices)) for indices in rows]

    def run(self) -> np.ndarray:
        """Train all rounds and evaluate; return the final vector [P]."""
        vector = self.runtime.parameters.initial(self.experiment.seed)
        counts = [len(client.tokens) for client in self.clients]
        with self.hooked():
            for number in range(1, self.experiment.federation.rounds + 1):
                trained = [self.train(i, vector, number) for i in range(len(self.clients))]
                vector = np.average(trained, axis=0, weights=counts).astype(vector.dtype)
        training.evaluate(self.runtime.model, vector, self.runtime.dev)
        return vector

    def train(self, index: int, start: np.ndarray, number: int) -> np.ndarray:
        """Train one client in one round."""
        client, local = self.clients[index], self.experiment.local
        rounds = self.experiment.federation.rounds
        when = training.When(self.experiment.seed, number, rounds)
        # The engine's batches, each passed as a whole.
        plan = training.plan_batches(index, client.examples, local, when)
        vector = torch.from_numpy(start.copy()).requires_grad_()
        optimizer = torch.optim.AdamW([vector], betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0)
        for step, rows in enumerate(plan):
            done = (number - 1 + step / len(plan)) / rounds
            optimizer.param_groups[0]["lr"] = (local.lr or 0.0) * (1 - done)  # linear to 0
            optimizer.zero_grad()
            self.loss(vector, client, torch.from_numpy(rows)).backward()
            clip_grad_norm_([vector], local.max_grad_norm)
            optimizer.step()
        return vector.detach().numpy()

    def loss(self, vector: Tensor, client: Client, rows: Tensor) -> Tensor:
        """Return the mean loss of a batch."""
        z, weight, bias = vector.split(self.sizes)
        self.shifts = [z @ projection for projection in self.weights]
        tokens = pad_sequence([client.tokens[i] for i in rows], True, self.pad_id)  # [B, T]
        mask = (torch.arange(tokens.shape[1]) < client.lengths[rows, None]).long()
        states = self.encoder(input_ids=tokens, attention_mask=mask).last_hidden_state
        if self.experiment.representation == "mean":
            share = mask[:, :, None].to(states.dtype)
            read = (states * share).sum(1) / share.sum(1)
        else:
            read = states[torch.arange(len(rows)), client.read[rows]]
        scores = read @ weight.view(len(bias), -1).T + bias
        return functional.cross_entropy(scores, client.labels[rows])

    @contextmanager
    def hooked(self) -> Iterator[None]:
        """Add shift l before the last LayerNorm of block l while the context is open."""
        handles = [
            block.output.LayerNorm.register_forward_pre_hook(
                lambda _, inputs, layer=layer: (inputs[0] + self.shifts[layer],)
            )
            for layer, block in enumerate(self.encoder.encoder.layer)
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
