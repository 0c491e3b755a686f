"""Export as an adapter of the peft library, for methods with low-rank modifications.

peft itself creates and saves the adapter. The head is part of ``modules_to_save`` if the base
model has a module for it; otherwise it is a separate file, as in ``plain``.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
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
from fedpeft.export.readme import readme
from fedpeft.export.readme_code import base_name
from fedpeft.modifications import LowRank, ScaledLowRank
from fedpeft.trained import Trained

if TYPE_CHECKING:
    from peft import PeftModel

_NAME = "default"  # peft's default adapter name
Changes = list[tuple[Site, LowRank | ScaledLowRank]]


def save_adapter(trained: Trained, folder: Path) -> None:
    """Write adapter_config.json, adapter_model.safetensors, the tokenizer and a README.

    Raises:
        UserError: peft is not installed, or the run has no such export.
    """
    check_exportable(trained, "peft")
    try:
        import peft  # noqa: F401
    except ImportError:
        raise UserError("--format peft needs peft; pip install 'fedpeft[peft]'") from None
    realised = realise(trained)
    base: Any = plain_model(trained, realised, {})
    changes: Changes = []
    for change in realised.modifications:
        assert isinstance(change, LowRank | ScaledLowRank), type(change)
        changes.append((trained.model.method.shape.place(change.site, change.layer), change))
    model = _with_adapter(trained, base, changes)
    model.peft_config[_NAME].base_model_name_or_path = base_name(trained)
    # "auto" would look up the base model's vocabulary on the hub.
    model.save_pretrained(folder, save_embedding_layers=False)
    if base.can_generate():
        base.generation_config.save_pretrained(folder)
    save_surroundings(trained, realised, folder)
    (folder / "README.md").write_text(readme(trained, "peft"), encoding="utf-8")


def _with_adapter(trained: Trained, base: Any, changes: Changes) -> PeftModel:
    """Return the base model with the adapter, which is added in place."""
    from peft import LoraConfig, VeraConfig, get_peft_model

    backbone = "" if base.base_model is base else f"{base.base_model_prefix}."
    common = {
        "target_modules": sorted({backbone + place.path for place, _ in changes}),
        "task_type": _task(trained),
        "modules_to_save": _saved(trained, backbone),
        "fan_in_fan_out": any(place.transposed for place, _ in changes),
    }
    first = changes[0][1]
    # VeRA shares B among layers, so a layer that computes several sites gets low-rank matrices.
    alone = all(place.part == (0, 1) for place, _ in changes)
    if isinstance(first, ScaledLowRank) and alone:
        config: Any = VeraConfig(r=first.down.rows, save_projection=True, **common)
    else:
        layers = _layers(changes)
        rank = max(len(down) for down, _ in layers.values())
        scale = first.scale if isinstance(first, LowRank) else 1.0
        config = LoraConfig(r=rank, lora_alpha=scale * rank, **common)
    with warnings.catch_warnings():  # peft uses names that transformers deprecated
        warnings.simplefilter("ignore", FutureWarning)
        model = get_peft_model(base, config)
    with torch.no_grad():
        if isinstance(config, VeraConfig):
            _fill_vera(base, backbone, changes)
        else:
            _fill_lora(base, backbone, layers, rank)
    return model


def _task(trained: Trained) -> str:
    """Return peft's task type."""
    if trained.model.backbone.language is not None:
        both = trained.model.method.shape.sites.writes == "encoder-decoder"
        return "SEQ_2_SEQ_LM" if both else "CAUSAL_LM"
    if head_of(trained) is None:
        return "FEATURE_EXTRACTION"
    return "TOKEN_CLS" if trained.reads == "tags" else "SEQ_CLS"


def _saved(trained: Trained, backbone: str) -> list[str] | None:
    """Return the modules of the head that peft's task type does not include."""
    head = head_of(trained)
    if head is None:
        return None
    paths = [path.removeprefix(backbone) for path in (head.dense, head.out) if path]
    names = {path.split(".")[0] for path in paths} - {"classifier", "score"}
    return sorted(names) or None


def _layers(changes: Changes) -> dict[str, tuple[Tensor, Tensor]]:
    """Return A [r, inputs] and B [outputs, r] of each changed layer, by its path.

    A layer that computes several sites gets the sum of their changes: their ranks add up, and
    each B has zeros in the rows of other sites.
    """
    layers: dict[str, tuple[Tensor, Tensor]] = {}
    for place, change in changes:
        if isinstance(change, LowRank):
            down, up = portable(change.down[0]), portable(change.up[0])
        else:
            rows = change.outer.shape[1]
            down = portable(change.inner[0][:, None] * change.down.matrix())
            up = portable(change.outer[0][:, None] * change.up.matrix()[:rows])
        index, count = place.part
        outputs = len(up)
        up = functional.pad(up, (0, 0, index * outputs, (count - 1 - index) * outputs))
        if place.path in layers:
            other_down, other_up = layers[place.path]
            down, up = torch.cat([other_down, down]), torch.cat([other_up, up], dim=1)
        layers[place.path] = down, up
    return layers


def _fill_lora(
    base: Any, backbone: str, layers: Mapping[str, tuple[Tensor, Tensor]], rank: int
) -> None:
    """Copy A and B into the adapter; layers of a smaller rank get zeros."""
    for path, (down, up) in layers.items():
        layer, free = base.get_submodule(backbone + path), rank - len(down)
        layer.lora_A[_NAME].weight.copy_(functional.pad(down, (0, 0, 0, free)))
        layer.lora_B[_NAME].weight.copy_(functional.pad(up, (0, free)))


def _fill_vera(base: Any, backbone: str, changes: Changes) -> None:
    """Copy VeRA's vectors and shared matrices into the adapter."""
    for place, change in changes:
        assert isinstance(change, ScaledLowRank), type(change)
        layer = base.get_submodule(backbone + place.path)
        layer.vera_lambda_d[_NAME].copy_(portable(change.inner[0]))
        layer.vera_lambda_b[_NAME].copy_(portable(change.outer[0]))
        layer.vera_A[_NAME].copy_(portable(change.down.matrix()))  # shared by all layers
        layer.vera_B[_NAME].copy_(portable(change.up.matrix()))
