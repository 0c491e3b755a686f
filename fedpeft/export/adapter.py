"""A run as an adapter of the peft library, for methods whose changes are low-rank ones.

peft itself makes and saves the adapter; the head goes into ``modules_to_save`` where the base
model has a place for it, else it is written beside it, as in ``plain``.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from fedpeft.errors import UserError
from fedpeft.export.plain import plain, plain_model, realise, save_surroundings
from fedpeft.export.readme import base_name, readme
from fedpeft.modifications import LowRank, Modification, ScaledLowRank
from fedpeft.sites import FAMILIES
from fedpeft.trained import Trained

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PreTrainedModel

METHODS = ("lora", "vera", "uni_lora")  # for the error; the modifications decide
_NAME = "default"  # of the adapter, peft's own


def save_adapter(trained: Trained, folder: Path) -> None:
    """Write adapter_config.json, adapter_model.safetensors, the tokenizer and a README.

    Raises:
        UserError: peft is not installed, or a method that it has no adapter for.
    """
    realised = realise(trained)
    kinds = {type(change) for change in realised.modifications}
    if kinds not in ({LowRank}, {ScaledLowRank}):
        raise UserError(
            f"method '{trained.experiment.method.name}' is no adapter that peft knows; those are: "
            f"{', '.join(METHODS)}; --format vector works for all"
        )
    try:
        import peft
    except ImportError:
        raise UserError("--format peft needs peft: pip install 'fedpeft[peft]'") from None
    base = plain_model(trained, realised, {})
    config = _config(trained, base, realised.modifications)
    with warnings.catch_warnings():  # peft asks transformers for what its version 6 renames
        warnings.simplefilter("ignore", FutureWarning)
        model = peft.get_peft_model(base, config)
    model.peft_config[_NAME].base_model_name_or_path = base_name(trained)
    with torch.no_grad():
        _fill(trained, model, realised.modifications)
    # peft would else look at the hub whether the vocabulary has grown.
    model.save_pretrained(folder, save_embedding_layers=False)
    save_surroundings(trained, realised, folder)
    (folder / "README.md").write_text(readme(trained, "peft"), encoding="utf-8")


def _config(trained: Trained, base: PreTrainedModel, changes: Sequence[Modification]) -> Any:
    """Return peft's configuration for modifications that are all of one kind."""
    from peft import LoraConfig, VeraConfig

    what = trained.reads
    prefix = "" if what in ("mask", "mean") else f"{base.base_model_prefix}."
    common: dict[str, Any] = {
        "target_modules": [prefix + _module(trained, change) for change in changes],
        "task_type": {"cls": "SEQ_CLS", "tags": "TOKEN_CLS"}.get(what, "FEATURE_EXTRACTION"),
        # Of the head's modules those that peft does not know by the type of task.
        "modules_to_save": ["pooler"] if prefix == "bert." and what == "cls" else None,
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
            layer.lora_A[_NAME].weight.copy_(plain(change.down[0]))
            layer.lora_B[_NAME].weight.copy_(plain(change.up[0]))
        elif isinstance(change, ScaledLowRank):
            layer.vera_lambda_d[_NAME].copy_(plain(change.inner[0]))
            layer.vera_lambda_b[_NAME].copy_(plain(change.outer[0]))
            layer.vera_A[_NAME].copy_(plain(change.down.matrix()))  # shared by all layers
            layer.vera_B[_NAME].copy_(plain(change.up.matrix()))


def _module(trained: Trained, change: Modification) -> str:
    """Return the path of a change's linear layer in the encoder."""
    return FAMILIES[trained.model.method.shape.family][change.site].module(change.layer)
