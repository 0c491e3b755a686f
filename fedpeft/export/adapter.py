"""Export as an adapter of the peft library, for methods with low-rank modifications.

peft itself creates and saves the adapter. The head is part of ``modules_to_save`` if the base
model has a module for it; otherwise it is a separate file, as in ``plain``.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional

from fedpeft.backbones.families import Site
from fedpeft.errors import UserError
from fedpeft.export.heads import head_of
from fedpeft.export.obstacles import check_exportable
from fedpeft.export.plain import plain_model, portable, realise, save_surroundings
from fedpeft.export.readme import base_name, readme
from fedpeft.modifications import LowRank, Modification, ScaledLowRank
from fedpeft.trained import Trained

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_NAME = "default"  # peft's default adapter name
_TASKS = {"tags": "TOKEN_CLS", "text": "CAUSAL_LM", "likelihood": "CAUSAL_LM"}


def save_adapter(trained: Trained, folder: Path) -> None:
    """Write adapter_config.json, adapter_model.safetensors, the tokenizer and a README.

    Raises:
        UserError: peft is not installed, or the run has no such export.
    """
    check_exportable(trained, "peft")
    try:
        import peft
    except ImportError:
        raise UserError("--format peft needs peft; pip install 'fedpeft[peft]'") from None
    realised = realise(trained)
    base: Any = plain_model(trained, realised, {})
    changes = [(_place(trained, change), change) for change in realised.modifications]
    vera = all(isinstance(change, ScaledLowRank) and place.part == (0, 1) for place, change in changes)
    layers = {} if vera else _layers(changes)
    config = _vera(changes) if vera else _lora(layers)
    for name, value in _common(trained, base, [place for place, _ in changes]).items():
        setattr(config, name, value)
    with warnings.catch_warnings():  # peft uses names that transformers deprecated
        warnings.simplefilter("ignore", FutureWarning)
        model = peft.get_peft_model(base, config)
    model.peft_config[_NAME].base_model_name_or_path = base_name(trained)
    encoder = base.get_submodule(_inside(trained, base).removesuffix("."))
    with torch.no_grad():
        for path, (down, up) in layers.items():
            layer = encoder.get_submodule(path)
            layer.lora_A[_NAME].weight.copy_(down)
            layer.lora_B[_NAME].weight.copy_(up)
        if vera:
            _fill_vera(encoder, changes)
    # "auto" would look up the base model's vocabulary on the hub.
    model.save_pretrained(folder, save_embedding_layers=False)
    if base.can_generate():
        base.generation_config.save_pretrained(folder)
    save_surroundings(trained, realised, folder)
    (folder / "README.md").write_text(readme(trained, "peft"), encoding="utf-8")
