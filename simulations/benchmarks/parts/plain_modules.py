"""Methods as plain torch modules inside a Hugging Face encoder, references of benchmarks.

Same mathematics as ``fedpeft.methods``, without its code. The trained parameters belong to small
modules that wrap modules of the encoder.
"""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedpeft.batches.batch import Batch
from fedpeft.parameters import TaskParameters
from fedpeft.projection import Projection

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Parameters = dict[str, Tensor]


class Changed(nn.Module):
    """A frozen module and a trained one that changes its output."""

    def __init__(self, frozen: nn.Module, change: nn.Module):
        super().__init__()
        self.frozen, self.change = frozen, change

    def forward(self, *inputs: Any, **named: Any) -> Tensor:
        """Return the changed output."""
        return self.change(self.frozen(*inputs, **named))


class Shift(nn.Module):
    """h + z W for every token; z [d] is the same parameter in every block."""

    def __init__(self, z: nn.Parameter, fixed: Tensor):
        super().__init__()
        self.z = z
        self.fixed = fixed  # [d, width]; not a buffer, which Opacus rejects in trained modules

    def forward(self, hidden: Tensor) -> Tensor:
        """Return [N, T, width]."""
        return hidden + self.z @ self.fixed


class Prompt(Shift):
    """z W as a token in front of the text."""

    def forward(self, hidden: Tensor) -> Tensor:
        """Return [N, 1 + T, width]."""
        token = (self.z @ self.fixed).expand(len(hidden), 1, -1)
        return torch.cat([token, hidden], dim=1)


class PromptShift(Shift):
    """h + z W at the token in front."""

    def forward(self, hidden: Tensor) -> Tensor:
        """Return [N, 1 + T, width]."""
        return torch.cat([hidden[:, :1] + self.z @ self.fixed, hidden[:, 1:]], dim=1)


class LoRALinear(nn.Module):
    """A frozen linear layer with a low-rank change (Hu et al. 2021), as peft builds it."""

    def __init__(self, frozen: nn.Linear, rank: int, scale: float):
        super().__init__()
        self.frozen, self.scale = frozen, scale
        self.down = nn.Linear(frozen.in_features, rank, bias=False)
        self.up = nn.Linear(rank, frozen.out_features, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return [N, T, outputs]."""
        return self.frozen(hidden) + self.scale * self.up(self.down(hidden))


class Bottleneck(nn.Module):
    """h + f(h) for every token (Houlsby et al. 2019)."""

    def __init__(self, width: int, middle: int):
        super().__init__()
        self.down, self.up = nn.Linear(width, middle), nn.Linear(middle, width)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return [N, T, width]."""
        return hidden + self.up(functional.relu(self.down(hidden)))


def place(model: nn.Module, device: torch.device | str) -> None:
    """Move a model with its fixed matrices, which are no buffers, to a device."""
    for module in model.to(device).modules():
        if isinstance(module, Shift):
            module.fixed = module.fixed.to(device)


def _slash(encoder: PreTrainedModel, parameters: TaskParameters) -> Parameters:
    z, fixed = _projected(parameters)
    for block, matrix in zip(encoder.encoder.layer, fixed, strict=True):
        block.output.dense = Changed(block.output.dense, Shift(z, matrix))
    return {"z": z}


def _jr_warp(encoder: PreTrainedModel, parameters: TaskParameters) -> Parameters:
    z, (first, *later) = _projected(parameters)
    encoder.embeddings = Changed(encoder.embeddings, Prompt(z, first))
    for block, matrix in zip(encoder.encoder.layer, later, strict=False):  # none after the last
        block.output.LayerNorm = Changed(block.output.LayerNorm, PromptShift(z, matrix))
    return {"z": z}


def _linear(encoder: PreTrainedModel, parameters: TaskParameters) -> Parameters:
    return {}


def _lora(encoder: PreTrainedModel, parameters: TaskParameters) -> Parameters:
    rank, alpha = parameters.method.settings.rank, parameters.method.settings.alpha
    trained: Parameters = {}
    for number, block in enumerate(encoder.encoder.layer):
        attention = block.attention.self
        for site, name in (("q", "query"), ("v", "value")):
            layer = LoRALinear(getattr(attention, name), rank, alpha / rank)
            setattr(attention, name, layer)
            trained[f"{number}.{site}.A"] = layer.down.weight
            trained[f"{number}.{site}.B"] = layer.up.weight
    return trained


def _houlsby(encoder: PreTrainedModel, parameters: TaskParameters) -> Parameters:
    middle = parameters.method.settings.bottleneck
    trained: Parameters = {}
    for number, block in enumerate(encoder.encoder.layer):
        for site, output in (("attn_out", block.attention.output), ("ffn_out", block.output)):
            change = Bottleneck(output.dense.out_features, middle)
            output.dense = Changed(output.dense, change)
            for name, linear in (("down", change.down), ("up", change.up)):
                trained[f"{number}.{site}.{name}"] = linear.weight
                trained[f"{number}.{site}.{name}_bias"] = linear.bias
    return trained


#: Inserts a method's modules into a copy of the encoder; names the parameters as in its layout.
METHODS: dict[str, Callable[[PreTrainedModel, TaskParameters], Parameters]] = {
    "slash": _slash,
    "jr_warp": _jr_warp,
    "linear": _linear,
    "lora": _lora,
    "houlsby": _houlsby,
}


def _projected(parameters: TaskParameters) -> tuple[nn.Parameter, list[Tensor]]:
    """Return z [d] and every W [d, width], of variance 1/d."""
    fixed = [w for w in parameters.method.projections() if isinstance(w, Projection)]
    d = fixed[0].columns
    return nn.Parameter(torch.zeros(d)), [torch.from_numpy(w.transposed()) / sqrt(d) for w in fixed]


class Classifier(nn.Module):
    """The changed encoder and a linear head on the mean of a text's tokens."""

    def __init__(self, encoder: nn.Module, width: int, classes: int):
        super().__init__()
        self.encoder, self.head = encoder, nn.Linear(width, classes)

    def forward(self, batch: Batch) -> Tensor:
        """Return logits [N, C]."""
        mask, tokens = batch.attention_mask, batch.input_ids.shape[1]
        # Attend to the prompt, too, if there is one.
        prompts = int(isinstance(self.encoder.embeddings, Changed))
        states = self.encoder(
            input_ids=batch.input_ids,
            attention_mask=functional.pad(mask, (prompts, 0), value=1),
            token_type_ids=batch.token_type_ids,
        ).last_hidden_state[:, -tokens:]
        share = mask[:, :, None].to(states.dtype)
        return self.head((states * share).sum(1) / share.sum(1))
