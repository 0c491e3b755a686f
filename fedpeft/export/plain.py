"""Export as a plain transformers model, which makes the same predictions without fedpeft.

The modifications are merged into the weights. The linear head is stored according to its input:

- tags: ``AutoModelForTokenClassification`` has the same head; the export is exact.
- representation "cls": the head of ``AutoModelForSequenceClassification`` is
  ``out(tanh(dense(h)))`` on the first token (BERT's pooler and classifier, RoBERTa's classifier).
  With ``dense = e I`` and ``out = W / e`` it is linear up to ``tanh(y) = y - y^3 / 3 + ...``: the
  relative error is (e h)^2 / 3, for e = 2^-16 below 1e-8 up to |h| = 11, compared with 6e-8 of
  float32. e is a power of two, so the product is exact. It needs the exponent range of float32 or
  bfloat16; in float16 e h underflows.
- "mask", "mean", "unit" and "last": transformers has no class with this head. The export is the
  encoder, the head in head.safetensors (weight [C, width], bias [C]), and a README with the code
  that joins them.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fedpeft.errors import UserError
from fedpeft.export.readme import OUTSIDE, readme
from fedpeft.methods import REGISTRY, method_class
from fedpeft.modifications.fusing import fused_changes
from fedpeft.parameters import Realised
from fedpeft.trained import Trained

if TYPE_CHECKING:
    from transformers import PreTrainedModel

HEAD = "head.safetensors"
EPSILON = 2.0**-16
EXPORTED = ("bert", "roberta")  # families whose heads in transformers are known here


def save_plain(trained: Trained, folder: Path) -> None:
    """Write the model, its tokenizer and a README into a folder.

    Raises:
        UserError: the method cannot be merged into weights.
    """
    check_family(trained, "hf")
    check_fusable(trained)
    realised = realise(trained)
    changes = fused_changes(trained.model.method.shape, realised.modifications)
    plain_model(trained, realised, changes).save_pretrained(folder)
    save_surroundings(trained, realised, folder)
    (folder / "README.md").write_text(readme(trained, "hf"), encoding="utf-8")


def check_fusable(trained: Trained) -> None:
    """Raise UserError if the method cannot be merged into the backbone's weights."""
    if not trained.model.method.fusable:
        fusable = ", ".join(method for method in REGISTRY if method_class(method).fusable)
        raise UserError(
            f"method '{trained.experiment.method.name}' cannot be merged into the backbone's "
            f"weights; --format hf works for {fusable}; --format vector works for all"
        )


def check_family(trained: Trained, kind: str) -> None:
    """Raise UserError if the backbone's family or the run's pairs have no export of this kind."""
    if trained.model.head.apart:
        raise UserError(
            f"--format {kind} reads one sequence, and this run reads the texts of pairs apart "
            f"(task.pairs = 'apart'); --format sentence-transformers writes the encoder of a text, "
            f"--format vector all"
        )
    check_known(trained, kind)


def check_known(trained: Trained, kind: str) -> None:
    """Raise UserError if the backbone's family has no export of this kind."""
    family = trained.model.method.shape.family
    if family not in EXPORTED:
        raise UserError(
            f"--format {kind} works for {' and '.join(EXPORTED)} backbones, not for {family}; "
            f"--format vector works for all"
        )


def realise(trained: Trained) -> Realised:
    """Return the run's modifications and head, with G = 1 and without gradients."""
    model = trained.model
    with torch.no_grad():
        vectors = torch.as_tensor(trained.vector, device=model.backbone.device, dtype=model.dtype)
        return model.realise(vectors[None])


def plain_model(
    trained: Trained, realised: Realised, changes: Mapping[str, Tensor]
) -> PreTrainedModel:
    """Return a new transformers model, float32 on the CPU; the run's backbone is not changed.

    Args:
        trained: the run.
        realised: its head is included if transformers has a model class with this head.
        changes: tensors to add to the backbone's weights, by the weights' names.
    """
    from transformers import AutoModelForSequenceClassification, AutoModelForTokenClassification

    if trained.reads in OUTSIDE:
        return encoder_of(trained, changes)
    tags = trained.reads == "tags"
    auto = AutoModelForTokenClassification if tags else AutoModelForSequenceClassification
    model = auto.from_config(_config(trained), dtype=torch.float32)
    prefix = model.base_model_prefix
    changed = _changed(trained, changes)
    weights = {f"{prefix}.{name}": weight for name, weight in changed.items()}
    model.load_state_dict(weights | _head_weights(trained.reads, prefix, *_head(realised)))
    return model.eval()


def encoder_of(trained: Trained, changes: Mapping[str, Tensor]) -> PreTrainedModel:
    """Return a new encoder without a head, see ``plain_model``."""
    from transformers import AutoModel

    model = AutoModel.from_config(_config(trained), dtype=torch.float32, add_pooling_layer=False)
    model.load_state_dict(_changed(trained, changes))
    return model.eval()


def _changed(trained: Trained, changes: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the backbone's weights with the changes added, by name."""
    return {
        name: portable(weight + changes[name] if name in changes else weight)
        for name, weight in trained.model.backbone.model.named_parameters()
    }


def save_surroundings(trained: Trained, realised: Realised, folder: Path) -> None:
    """Write the tokenizer, and the head if the model does not include it."""
    from safetensors.torch import save_file

    save_tokenizer(trained, folder)
    if trained.reads in OUTSIDE:
        weight, bias = _head(realised)
        save_file({"weight": weight, "bias": bias}, folder / HEAD)


def save_tokenizer(trained: Trained, folder: Path) -> None:
    """Write the tokenizer with the run's maximum length."""
    tokenizer = copy.deepcopy(trained.model.backbone.tokenizer)
    tokenizer.backend_tokenizer.no_truncation()  # reset the options of earlier calls
    tokenizer.backend_tokenizer.no_padding()
    tokenizer.model_max_length = trained.experiment.task.max_length
    tokenizer.save_pretrained(folder)


def _head(realised: Realised) -> tuple[Tensor, Tensor]:
    """Return the head's weight [C, width] and bias [C]."""
    return portable(realised.head_weight[0]), portable(realised.head_bias[0])


def portable(tensor: Tensor) -> Tensor:
    """Return a contiguous float32 copy on the CPU."""
    return tensor.detach().to("cpu", torch.float32).contiguous().clone()


def _head_weights(reads: str, prefix: str, weight: Tensor, bias: Tensor) -> dict[str, Tensor]:
    """Return the weights that make transformers' head equal to the run's, see the module."""
    if reads == "tags":
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
    """Return the backbone's configuration with the labels and the default attention."""
    config = copy.deepcopy(trained.model.backbone.model.config)
    config._attn_implementation = None  # fedpeft's attention is unknown to other programs
    config.dtype = torch.float32
    if trained.kind == "score":
        config.num_labels, config.problem_type = 1, "regression"
        return config
    config.id2label = dict(enumerate(trained.labels))
    config.label2id = {label: index for index, label in enumerate(trained.labels)}
    if trained.kind == "classes":
        config.problem_type = "single_label_classification"
    return config
