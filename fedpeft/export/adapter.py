"""Export as an adapter of the peft library, for methods with low-rank modifications.

peft itself creates and saves the adapter. The head is part of ``modules_to_save`` if the base
model has a module for it; otherwise it is a separate file, as in ``plain``.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from fedpeft.errors import UserError
from fedpeft.export.plain import check_family, plain_model, portable, realise, save_surroundings
from fedpeft.export.readme import OUTSIDE, base_name, readme
from fedpeft.modifications import LowRank, Modification, ScaledLowRank
from fedpeft.trained import Trained

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PreTrainedModel

METHODS = ("lora", "vera", "uni_lora")  # for the message; the modifications decide
_NAME = "default"  # peft's default adapter name


def save_adapter(trained: Trained, folder: Path) -> None:
    """Write adapter_config.json, adapter_model.safetensors, the tokenizer and a README.

    Raises:
        UserError: peft is not installed, or has no adapter for the method.
    """
    check_family(trained, "peft")
    realised = realise(trained)
    kinds = {type(change) for change in realised.modifications}
    if kinds not in ({LowRank}, {ScaledLowRank}):
        raise UserError(
            f"method '{trained.experiment.method.name}' has no adapter in peft; --format peft "
            f"works for {', '.join(METHODS)}; --format vector works for all"
        )
    try:
        import peft
    except ImportError:
        raise UserError("--format peft needs peft; pip install 'fedpeft[peft]'") from None
    base = plain_model(trained, realised, {})
    config = _config(trained, base, realised.modifications)
    with warnings.catch_warnings():  # peft uses names that transformers deprecated
        warnings.simplefilter("ignore", FutureWarning)
        model = peft.get_peft_model(base, config)
    model.peft_config[_NAME].base_model_name_or_path = base_name(trained)
    with torch.no_grad():
        _fill(trained, model, realised.modifications)
    # "auto" would look up the base model's vocabulary on the hub.
    model.save_pretrained(folder, save_embedding_layers=False)
    save_surroundings(trained, realised, folder)
    (folder / "README.md").write_text(readme(trained, "peft"), encoding="utf-8")


def _config(trained: Trained, base: PreTrainedModel, changes: Sequence[Modification]) -> Any:
    """Return peft's configuration for modifications of one kind."""
    from peft import LoraConfig, VeraConfig

    reads = trained.reads
    prefix = "" if reads in OUTSIDE else f"{base.base_model_prefix}."
    common: dict[str, Any] = {
        "target_modules": [prefix + _module(trained, change) for change in changes],
        "task_type": {"cls": "SEQ_CLS", "tags": "TOKEN_CLS"}.get(reads, "FEATURE_EXTRACTION"),
        # Modules of the head that the task type does not include.
        "modules_to_save": ["pooler"] if prefix == "bert." and reads == "cls" else None,
    }
    first = changes[0]
    if isinstance(first, LowRank):
        rank = first.down.shape[1]
        return LoraConfig(r=rank, lora_alpha=first.scale * rank, **common)
    assert isinstance(first, ScaledLowRank), type(first)
    return VeraConfig(r=first.down.rows, save_projection=True, **common)


def _fill(trained: Trained, model: PeftModel, changes: Sequence[Modification]) -> None:
    """Copy the modifications into the adapter."""
    base = model.get_base_model()
    encoder = getattr(base, base.base_model_prefix, base)
    for change in changes:
        layer = encoder.get_submodule(_module(trained, change))
        if isinstance(change, LowRank):
            layer.lora_A[_NAME].weight.copy_(portable(change.down[0]))
            layer.lora_B[_NAME].weight.copy_(portable(change.up[0]))
        elif isinstance(change, ScaledLowRank):
            layer.vera_lambda_d[_NAME].copy_(portable(change.inner[0]))
            layer.vera_lambda_b[_NAME].copy_(portable(change.outer[0]))
            layer.vera_A[_NAME].copy_(portable(change.down.matrix()))  # shared by all layers
            layer.vera_B[_NAME].copy_(portable(change.up.matrix()))


def _module(trained: Trained, change: Modification) -> str:
    """Return the name of a modification's linear layer in the encoder."""
    return trained.model.method.shape.place(change.site, change.layer).path
