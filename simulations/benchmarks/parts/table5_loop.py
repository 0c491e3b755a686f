"""The other side of table 5: a training loop over a Hugging Face encoder, without fedpeft.

LoRA comes from peft; the other methods are small modules or the encoder's own weights.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import clip_grad_norm_

from fedpeft.model import Trainable
from fedpeft.settings import LocalSection
from fedpeft.tasks.batching import collate
from fedpeft.tasks.encoding import Encoded
from simulations.benchmarks.parts.plain_modules import METHODS, Classifier, Parameters, Shift


def _peft_lora(encoder: nn.Module, trainable: Trainable) -> Parameters:
    from peft import LoraConfig, inject_adapter_in_model

    rank, alpha = trainable.method.settings.rank, trainable.method.settings.alpha
    config = LoraConfig(r=rank, lora_alpha=alpha, target_modules=["query", "value"])
    inject_adapter_in_model(config, encoder)
    found = {}
    for number, block in enumerate(encoder.encoder.layer):
        for site, name in (("q", "query"), ("v", "value")):
            layer = getattr(block.attention.self, name)
            found[f"{number}.{site}.A"] = layer.lora_A["default"].weight
            found[f"{number}.{site}.B"] = layer.lora_B["default"].weight
    return found


def _own_weights(end: str) -> Callable[[nn.Module, Trainable], Parameters]:
    """Return a method that trains the encoder's weights whose names end so."""

    def choose(encoder: nn.Module, trainable: Trainable) -> Parameters:
        # Not by the names of the layout: both sides begin at the encoder's own values.
        return {
            f"encoder.{name}": weight.requires_grad_()
            for name, weight in encoder.named_parameters()
            if name.endswith(end)
        }

    return choose


#: As ``plain_modules.METHODS``.
LOOPS: dict[str, Callable[[nn.Module, Trainable], Parameters]] = {
    "slash": METHODS["slash"],
    "jr_warp": METHODS["jr_warp"],
    "lora": _peft_lora,
    "houlsby": METHODS["houlsby"],
    "bitfit": _own_weights("bias"),
    "full": _own_weights(""),
}


class Loop:
    """Trains one method on an encoder of its own, from the start that ours has.

    Args:
        folder: the encoder's.
        trainable: method and head, for their sizes and their start.
        seed: of the start.
        device: "cpu" or "cuda".
        autocast: torch's name of the lower precision, or "off".
    """

    def __init__(self, folder: Path, trainable: Trainable, seed: int, device: str, autocast: str):
        from transformers import AutoModel

        encoder = AutoModel.from_pretrained(folder, add_pooling_layer=False, dtype=torch.float32)
        encoder = encoder.eval().requires_grad_(False)
        name = trainable.method.settings.name
        own = LOOPS[name](encoder, trainable)
        head = trainable.head
        self.classifier = Classifier(encoder, trainable.method.shape.width, head.classes)
        named = {f"head.{key}": each for key, each in self.classifier.head.named_parameters()}
        self._copy_start(trainable, seed, own | named)
        self.classifier.to(device)
        for module in self.classifier.modules():
            if isinstance(module, Shift):
                module.fixed = module.fixed.to(device)  # no buffer
        self.parameters = [*own.values(), *named.values()]
        self.device, self.autocast = device, autocast

    def train(self, texts: Encoded, plan: Sequence[np.ndarray], local: LocalSection) -> float:
        """Go on from where it is, with a new optimiser; return the mean loss of the steps."""
        optimizer = torch.optim.AdamW(self.parameters, lr=local.lr, weight_decay=0.0)
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
    def _copy_start(trainable: Trainable, seed: int, named: Parameters) -> None:
        start = torch.from_numpy(trainable.initial(seed))[None]
        with torch.no_grad():
            for name, part in trainable.layout.unpack(start).items():
                if name in named:
                    named[name].copy_(part[0])
