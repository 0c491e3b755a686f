"""A training loop over a Hugging Face encoder without fedpeft, the reference of table 5.

LoRA comes from peft; the other methods are small modules or the encoder's weights.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.nn import functional
from torch.nn.utils import clip_grad_norm_

from fedpeft.batches.batch import collate
from fedpeft.batches.encoded import Encoded
from fedpeft.experiment.settings import LocalSection
from fedpeft.parameters import TaskParameters
from simulations.benchmarks.parts.plain_modules import METHODS, Classifier, Parameters, place

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def _peft_lora(encoder: PreTrainedModel, parameters: TaskParameters) -> Parameters:
    from peft import LoraConfig, inject_adapter_in_model

    rank, alpha = parameters.method.settings.rank, parameters.method.settings.alpha
    config = LoraConfig(r=rank, lora_alpha=alpha, target_modules=["query", "value"])
    inject_adapter_in_model(config, encoder)
    trained = {}
    for number, block in enumerate(encoder.encoder.layer):
        for site, name in (("q", "query"), ("v", "value")):
            layer = getattr(block.attention.self, name)
            trained[f"{number}.{site}.A"] = layer.lora_A["default"].weight
            trained[f"{number}.{site}.B"] = layer.lora_B["default"].weight
    return trained


def _own_weights(end: str) -> Callable[[PreTrainedModel, TaskParameters], Parameters]:
    """Return a method that trains the encoder's weights with these name endings."""

    def choose(encoder: PreTrainedModel, parameters: TaskParameters) -> Parameters:
        # The encoder's names: both sides start from the encoder's weights.
        return {
            f"encoder.{name}": weight.requires_grad_()
            for name, weight in encoder.named_parameters()
            if name.endswith(end)
        }

    return choose


#: See ``plain_modules.METHODS``.
LOOPS: dict[str, Callable[[PreTrainedModel, TaskParameters], Parameters]] = {
    "slash": METHODS["slash"],
    "jr_warp": METHODS["jr_warp"],
    "lora": _peft_lora,
    "houlsby": METHODS["houlsby"],
    "bitfit": _own_weights("bias"),
    "full": _own_weights(""),
}


class Loop:
    """Trains one method on a separate encoder, from the same initial vector as fedpeft.

    Args:
        folder: the encoder's.
        parameters: method and head, for their sizes and their start.
        seed: of the start.
        device: "cpu" or "cuda".
        autocast: torch's name of the lower precision, or "off".
    """

    def __init__(
        self, folder: Path, parameters: TaskParameters, seed: int, device: str, autocast: str
    ):
        from transformers import AutoModel

        encoder = AutoModel.from_pretrained(folder, add_pooling_layer=False, dtype=torch.float32)
        encoder = encoder.eval().requires_grad_(False)
        name = parameters.method.settings.name
        inserted = LOOPS[name](encoder, parameters)
        head = parameters.head
        self.classifier = Classifier(encoder, parameters.method.shape.width, head.classes)
        named = {f"head.{key}": value for key, value in self.classifier.head.named_parameters()}
        self._copy_start(parameters, seed, inserted | named)
        place(self.classifier, device)
        self.parameters = [*inserted.values(), *named.values()]
        self.device, self.autocast = device, autocast

    def train(self, texts: Encoded, plan: Sequence[np.ndarray], local: LocalSection) -> float:
        """Continue training with a new optimizer; return the mean loss of the steps."""
        optimizer = torch.optim.AdamW(self.parameters, lr=local.lr or 0.0, weight_decay=0.0)
        losses = []
        for rows in plan:
            batch = collate([texts], [rows], 1, self.device, torch.float32)
            optimizer.zero_grad()
            with self._precision():
                loss = functional.cross_entropy(self.classifier(batch), batch.labels)
            loss.backward()
            clip_grad_norm_(self.parameters, local.max_grad_norm)
            optimizer.step()
            losses.append(loss.detach())
        return float(torch.stack(losses).mean())

    def _precision(self) -> AbstractContextManager[object]:
        if self.autocast == "off":
            return nullcontext()
        return torch.autocast(self.device, dtype=getattr(torch, self.autocast))

    @staticmethod
    def _copy_start(parameters: TaskParameters, seed: int, named: Parameters) -> None:
        start = torch.from_numpy(parameters.initial(seed))[None]
        with torch.no_grad():
            for name, part in parameters.layout.unpack(start).items():
                if name in named:
                    named[name].copy_(part[0])
