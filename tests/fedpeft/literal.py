"""A BERT or RoBERTa encoder written out from its equations: the obvious oracle for the engine."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from models import batch_of, random_vectors, with_types, without_padding
from scipy.linalg import hadamard
from torch import Tensor
from torch.nn import functional

from fedpeft.batches.batch import Batch
from fedpeft.model import TaskModel
from fedpeft.projection.fastfood import Fastfood

Seen = dict[str, Tensor]  # what this block has computed so far, by the name of its site
Change = Callable[[str, int, Tensor, Seen], Tensor]  # (site, layer, hidden, seen) -> hidden
Params = dict[str, Tensor]  # the parameters of one group by name


def unchanged(site: str, layer: int, hidden: Tensor, seen: Seen) -> Tensor:
    """Return what the encoder computes by itself."""
    return hidden


class Literal:
    """The weights of an encoder, and what a method changes."""

    def __init__(self, model: torch.nn.Module, change: Change):
        self.weights, self.config, self.change = (
            dict(model.named_parameters()),
            model.config,
            change,
        )

    def linear(self, x: Tensor, name: str) -> Tensor:
        return x @ self.weights[f"{name}.weight"].T + self.weights[f"{name}.bias"]

    def norm(self, x: Tensor, name: str) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        scale = (centred.pow(2).mean(-1, keepdim=True) + self.config.layer_norm_eps).sqrt()
        return centred / scale * self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"]

    def split(self, x: Tensor) -> Tensor:
        """[..., T, width] -> [..., heads, T, width of a head]."""
        return x.unflatten(-1, (self.config.num_attention_heads, -1)).transpose(-2, -3)

    def embeddings(self, input_ids: Tensor, types: Tensor) -> Tensor:
        def rows(table: str, numbers: Tensor) -> Tensor:
            return self.weights[f"embeddings.{table}_embeddings.weight"][numbers]

        words = self.change("words", 0, rows("word", input_ids), {})
        places = rows("position", positions(self.config, input_ids))
        total = words + places + rows("token_type", types)
        return self.change("embed_norm", 0, self.norm(total, "embeddings.LayerNorm"), {})

    def block(self, layer: int, hidden: Tensor, mask: Tensor, prefix: Sequence[Tensor]) -> Tensor:
        path, seen = f"encoder.layer.{layer}", {"attn_in": hidden}

        def at(site: str, value: Tensor) -> Tensor:
            seen[site] = self.change(site, layer, value, seen)
            return seen[site]

        q, k, v = (
            self.split(at(site, self.linear(hidden, f"{path}.attention.self.{name}")))
            for site, name in (("q", "query"), ("k", "key"), ("v", "value"))
        )
        if prefix:
            keys, values = (self.split(side).expand(len(q), -1, -1, -1) for side in prefix)
            k, v = torch.cat([keys, k], dim=2), torch.cat([values, v], dim=2)
            mask = with_ones(mask, keys.shape[2])
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        scores = scores.masked_fill(mask[:, None, None] == 0, -torch.inf).softmax(-1)
        heads = at("heads", (scores @ v).transpose(1, 2).flatten(2))
        out = at("attn_out", self.linear(heads, f"{path}.attention.output.dense"))
        middle = at("attn_norm", self.norm(out + hidden, f"{path}.attention.output.LayerNorm"))
        inner = at("ffn_mid", self.linear(middle, f"{path}.intermediate.dense"))
        seen["ffn_in"] = functional.gelu(inner)
        out = at("ffn_out", self.linear(seen["ffn_in"], f"{path}.output.dense"))
        # A change of the sum may need the block's last LayerNorm.
        seen["normed_sum"] = self.norm(out + middle, f"{path}.output.LayerNorm")
        out = at("ffn_sum", out + middle)
        return at("ffn_norm", self.norm(out, f"{path}.output.LayerNorm"))


def literal_encoder(
    model: torch.nn.Module,
    input_ids: Tensor,
    mask: Tensor,
    types: Tensor,
    change: Change = unchanged,
    prompt: Tensor | None = None,
    prefix: Sequence[tuple[Tensor, Tensor]] = (),
) -> Tensor:
    """Return the last hidden states [N, k + T, width].

    ``prompt`` [k, width] stands in front of the embeddings of every text; ``prefix`` holds keys
    and values [l, width] of every block.
    """
    literal = Literal(model, change)
    hidden = literal.embeddings(input_ids, types)
    if prompt is not None:
        hidden = torch.cat([prompt.expand(len(hidden), -1, -1), hidden], dim=1)
        mask = with_ones(mask, len(prompt))
    for layer in range(model.config.num_hidden_layers):
        hidden = literal.block(layer, hidden, mask, prefix[layer] if prefix else ())
    return hidden


def with_ones(mask: Tensor, count: int) -> Tensor:
    """Return the mask for what stands in front of a text and is always attended."""
    return torch.cat([mask.new_ones(len(mask), count), mask], dim=1)


def positions(config: Any, input_ids: Tensor) -> Tensor:
    """Count the tokens; RoBERTa counts those of the text, from the padding token's id on."""
    if config.model_type == "bert":
        return torch.arange(input_ids.shape[1]).expand_as(input_ids)
    text = (input_ids != config.pad_token_id).long()
    return text.cumsum(1) * text + config.pad_token_id


def engine_states(model: TaskModel, vectors: Tensor, batch: Batch) -> Tensor:
    """Return the engine's last hidden states [N, k + T', width], 0 where there is no text."""
    states, longer = model.hidden_states(model.realise(vectors).modifications, batch)
    return at_text(states, longer.attention_mask)


def at_text(hidden: Tensor, mask: Tensor) -> Tensor:
    """Return hidden states with zeros where there is no text; what stands in front is text."""
    return hidden * with_ones(mask, hidden.shape[1] - mask.shape[1])[:, :, None]


def both_batches(model: TaskModel, groups: int = 2) -> list[Batch]:
    """Return a padded batch and one without padding; BERT sees tokens of both types."""
    batch = batch_of(model.backbone, groups, 3)
    if model.method.shape.types > 1:
        batch = with_types(batch)
    assert (batch.attention_mask == 0).any()
    return [batch, without_padding(batch)]


def assert_literal(
    model: TaskModel, written: Callable[[Params], dict[str, Any]], scale: float = 0.3
) -> None:
    """The engine's states are the literal encoder's, which runs each group by itself.

    Args:
        model: the method under test.
        written: the arguments of ``literal_encoder`` that say what the method does with the
            parameters of one group.
        scale: of the parameters, which are random.
    """
    vectors = random_vectors(model, 2, scale)
    parameters = model.layout.unpack(vectors)
    for batch in both_batches(model):
        expected = []
        for group in range(2):
            rows = slice(3 * group, 3 * group + 3)
            alone = {name: value[group] for name, value in parameters.items()}
            texts = (batch.input_ids[rows], batch.attention_mask[rows], batch.token_type_ids[rows])
            arguments = {"model": model.backbone.model, **written(alone)}
            expected.append(literal_encoder(arguments.pop("model"), *texts, **arguments))
        plain = model.backbone.model(
            input_ids=batch.input_ids,
            attention_mask=batch.attention_mask,
            token_type_ids=batch.token_type_ids,
        ).last_hidden_state
        states = engine_states(model, vectors, batch)
        expected_states = at_text(torch.cat(expected), batch.attention_mask)
        torch.testing.assert_close(states, expected_states, rtol=0, atol=1e-9)
        text = states[:, -plain.shape[1] :] - at_text(plain, batch.attention_mask)
        assert text.abs().max() > 1e-2, "a change that changes nothing proves nothing"


def fastfood_matrix(projection: Fastfood) -> Tensor:
    """Write Fastfood out, [rows, columns]: blocks H G Pi H B / sqrt(sum of G^2), cut to size."""
    count, H = projection.blocks, hadamard(projection.size)
    parts = (projection.gains, projection.order, projection.signs)
    blocks = []
    for gains, origin, signs in zip(*(part(0, count) for part in parts), strict=True):
        G, B = np.diag(gains.astype(np.float64)), np.diag(signs.astype(np.float64))
        Pi = np.eye(projection.size)[origin]  # row i picks number origin[i]
        blocks.append(H @ G @ Pi @ H @ B)
    return torch.from_numpy(np.concatenate(blocks)[: projection.rows, : projection.columns])
