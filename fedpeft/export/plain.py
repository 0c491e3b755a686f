"""A run as a plain transformers model, which predicts the same without fedpeft.

The modifications are merged into the weights. The head is linear, and what it reads decides:

- tags: ``AutoModelForTokenClassification`` has such a head, so it is exact.
- representation "cls": the head of ``AutoModelForSequenceClassification`` is
  ``out(tanh(dense(h)))`` on the first token (BERT's pooler and classifier, RoBERTa's classifier).
  With ``dense = e I`` and ``out = W / e`` it is linear but for ``tanh(y) = y - y^3 / 3 + ...``: a
  relative error of (e h)^2 / 3, with e = 2^-16 below 1e-8 up to |h| = 11, while a float32 has
  6e-8. A power of two, so that multiplying by it rounds nothing. It needs the exponents of
  float32 or bfloat16; in float16 e h is too small.
- "mask" and "mean": no class of transformers reads these, so the encoder is written, the head
  beside it (head.safetensors: weight [C, width], bias [C]), and a README with the lines that put
  them together.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fedpeft.errors import UserError
from fedpeft.export.readme import readme
from fedpeft.methods import REGISTRY, method_class
from fedpeft.model import Realised
from fedpeft.modifications.fusing import fused_changes
from fedpeft.trained import Trained

if TYPE_CHECKING:
    from transformers import PreTrainedModel

HEAD = "head.safetensors"
EPSILON = 2.0**-16


def save_plain(trained: Trained, folder: Path) -> None:
    """Write the model, its tokenizer and a README into a folder.

    Raises:
        UserError: a method that is no change of weights.
    """
    name = trained.experiment.method.name
    if not trained.model.method.fusable:
        able = ", ".join(each for each in REGISTRY if method_class(each).fusable)
        raise UserError(
            f"method '{name}' cannot be merged into the backbone's weights, which --format hf "
            f"needs; those that can: {able}; --format vector works for all"
        )
    realised = realise(trained)
    changes = fused_changes(trained.model.method.shape.family, realised.modifications)
    plain_model(trained, realised, changes).save_pretrained(folder)
    save_surroundings(trained, realised, folder)
    (folder / "README.md").write_text(readme(trained, "hf"), encoding="utf-8")


def realise(trained: Trained) -> Realised:
    """Return the run's modifications and head, G = 1, without gradients."""
    model = trained.model
    with torch.no_grad():
        vectors = torch.as_tensor(trained.vector, device=model.backbone.device, dtype=model.dtype)
        return model.realise(vectors[None])


def plain_model(
    trained: Trained, realised: Realised, changes: Mapping[str, Tensor]
) -> PreTrainedModel:
    """Return a fresh transformers model in float32 on the CPU, the backbone's not touched.

    Args:
        trained: the run.
        realised: its head is built in where a class of transformers has a place for it.
        changes: what to add to the backbone's weights, by their names.
    """
    from transformers import (
        AutoModel,
        AutoModelForSequenceClassification,
        AutoModelForTokenClassification,
    )

    what, config, backbone = trained.reads, _config(trained), trained.model.backbone.model
    weights = {
        name: plain(weight + changes[name] if name in changes else weight)
        for name, weight in backbone.named_parameters()
    }
    if what in ("mask", "mean"):
        model = AutoModel.from_config(config, dtype=torch.float32, add_pooling_layer=False)
    else:
        tags = what == "tags"
        kind = AutoModelForTokenClassification if tags else AutoModelForSequenceClassification
        model = kind.from_config(config, dtype=torch.float32)
        prefix = model.base_model_prefix
        weights = {f"{prefix}.{name}": weight for name, weight in weights.items()}
        weights |= _head_weights(what, prefix, *head_of(realised))
    model.load_state_dict(weights)
    return model.eval()


def save_surroundings(trained: Trained, realised: Realised, folder: Path) -> None:
    """Write what a model needs beside it: the tokenizer, and a head it has no place for."""
    from safetensors.torch import save_file

    tokenizer = copy.deepcopy(trained.model.backbone.tokenizer)
    tokenizer.backend_tokenizer.no_truncation()  # what calls have left in it
    tokenizer.backend_tokenizer.no_padding()
    tokenizer.model_max_length = trained.experiment.task.max_length
    tokenizer.save_pretrained(folder)
    if trained.reads in ("mask", "mean"):
        weight, bias = head_of(realised)
        save_file({"weight": weight, "bias": bias}, folder / HEAD)


def head_of(realised: Realised) -> tuple[Tensor, Tensor]:
    """Return the head's weight [C, width] and bias [C]."""
    return plain(realised.head_weight[0]), plain(realised.head_bias[0])


def plain(tensor: Tensor) -> Tensor:
    """Return a tensor as it is saved: float32, on the CPU, with memory of its own."""
    return tensor.detach().to("cpu", torch.float32).contiguous().clone()


def _head_weights(what: str, prefix: str, weight: Tensor, bias: Tensor) -> dict[str, Tensor]:
    """Return the weights of transformers' own head that compute ours, see the module."""
    if what == "tags":
        return {"classifier.weight": weight, "classifier.bias": bias}
    dense, out = {
        "bert": ("bert.pooler.dense", "classifier"),
        "roberta": ("classifier.dense", "classifier.out_proj"),
    }[prefix]
    width = weight.shape[1]
    return {
        f"{dense}.weight": EPSILON * torch.eye(width),
        f"{dense}.bias": torch.zeros(width),
        f"{out}.weight": weight / EPSILON,
        f"{out}.bias": bias,
    }


def _config(trained: Trained) -> Any:
    """Return the backbone's configuration, with the labels and without our attention."""
    config = copy.deepcopy(trained.model.backbone.model.config)
    config._attn_implementation = None
    config.dtype = torch.float32
    if trained.kind == "score":
        config.num_labels, config.problem_type = 1, "regression"
        return config
    config.id2label = dict(enumerate(trained.labels))
    config.label2id = {label: index for index, label in enumerate(trained.labels)}
    if trained.kind == "classes":
        config.problem_type = "single_label_classification"
    return config
