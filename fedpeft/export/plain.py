"""Export as a plain transformers model, which makes the same predictions without fedpeft.

The modifications are merged into the weights. The head of classes, scores or tags is that of
transformers' own class where this can compute it, see the module ``heads``. Otherwise the export is
the backbone, the head in head.safetensors (weight [C, width], bias [C]), and a README with the code
that joins them; transformers' pipelines refuse it. A run that writes text, or classes by
likelihood, becomes ``AutoModelForCausalLM`` or ``AutoModelForSeq2SeqLM``.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fedpeft.export.heads import head_of
from fedpeft.export.obstacles import check_exportable
from fedpeft.export.readme import readme
from fedpeft.modifications.fusing import fused_changes
from fedpeft.parameters import Realised
from fedpeft.trained import Trained

if TYPE_CHECKING:
    from transformers import PreTrainedModel

HEAD = "head.safetensors"
#: transformers' pipeline for classes reports this value in an error, as there are no labels.
REFUSAL = "this folder has no head for a pipeline; its README.md shows how to predict"


def save_plain(trained: Trained, folder: Path) -> None:
    """Write the model, its tokenizer and a README into a folder.

    Raises:
        UserError: the run has no such export.
    """
    check_exportable(trained, "hf")
    realised = realise(trained)
    changes = fused_changes(trained.model.method.shape, realised.modifications)
    plain_model(trained, realised, changes).save_pretrained(folder)
    save_surroundings(trained, realised, folder)
    (folder / "README.md").write_text(readme(trained, "hf"), encoding="utf-8")


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

    if trained.model.backbone.language is not None:
        return _language_model(trained, changes)
    head = head_of(trained)
    if head is None:
        return encoder_of(trained, changes)
    tags = trained.reads == "tags"
    auto = AutoModelForTokenClassification if tags else AutoModelForSequenceClassification
    config = _labelled(trained)
    for name, value in head.configuration(trained.reads).items():
        setattr(config, name, value)
    model = auto.from_config(config, dtype=torch.float32)
    merged = _merged(trained.model.backbone.model, trained, changes)
    weights = {f"{model.base_model_prefix}.{name}": weight for name, weight in merged.items()}
    model.load_state_dict(weights | head.weights(*_head(realised), config))
    return model.eval()


def encoder_of(trained: Trained, changes: Mapping[str, Tensor]) -> PreTrainedModel:
    """Return a new backbone without a head, see ``plain_model``."""
    from transformers import AutoModel

    config = _without_labels(trained.model.backbone.model)
    options = trained.model.method.shape.sites.options
    model = AutoModel.from_config(config, dtype=torch.float32, **options)
    model.load_state_dict(_merged(trained.model.backbone.model, trained, changes))
    return model.eval()


def _language_model(trained: Trained, changes: Mapping[str, Tensor]) -> PreTrainedModel:
    """Return a new model with output embeddings, see ``plain_model``."""
    language: Any = trained.model.backbone.language
    model = type(language)(_without_labels(language))
    weights, kept = _merged(language, trained, changes), language.get_output_embeddings()
    # A method changes input embeddings alone. transformers does not tie two that differ.
    model.get_output_embeddings().weight = torch.nn.Parameter(portable(kept.weight))
    output = {f"{name}.weight" for name, module in language.named_modules() if module is kept}
    model.load_state_dict({**weights, **dict.fromkeys(output, portable(kept.weight))})
    model.generation_config = copy.deepcopy(language.generation_config)
    task = trained.experiment.task
    # transformers' pipeline otherwise samples, and has a length of its own.
    model.generation_config.update(
        do_sample=False, num_beams=task.beams, max_new_tokens=task.max_target
    )
    return model.eval()


def _merged(model: Any, trained: Trained, changes: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights of a model that contains the backbone, with the changes added.

    Modules may share a weight, which has several names then.
    """
    backbone = trained.model.backbone.model
    changed = {id(backbone.get_parameter(name)): change for name, change in changes.items()}
    return {
        name: portable(value + changed[id(value)] if id(value) in changed else value)
        for name, value in model.state_dict(keep_vars=True).items()
    }


def save_surroundings(trained: Trained, realised: Realised, folder: Path) -> None:
    """Write the tokenizer, and the head if the model does not include it."""
    from safetensors.torch import save_file

    save_tokenizer(trained, folder)
    if trained.model.backbone.language is None and head_of(trained) is None:
        weight, bias = _head(realised)
        save_file({"weight": weight, "bias": bias}, folder / HEAD)


def save_tokenizer(trained: Trained, folder: Path) -> None:
    """Write the tokenizer with the run's maximum length."""
    tokenizer = copy.deepcopy(trained.model.backbone.tokenizer)
    tokenizer.backend_tokenizer.no_truncation()  # reset the options of earlier calls
    tokenizer.backend_tokenizer.no_padding()
    tokenizer.model_max_length = trained.experiment.task.max_length
    if trained.model.backbone.shape.types <= 1:  # the model may not take them
        names = [name for name in tokenizer.model_input_names if name != "token_type_ids"]
        tokenizer.model_input_names = names
    tokenizer.save_pretrained(folder)


def _head(realised: Realised) -> tuple[Tensor, Tensor]:
    """Return the head's weight [C, width] and bias [C]."""
    return portable(realised.head_weight[0]), portable(realised.head_bias[0])


def portable(tensor: Tensor) -> Tensor:
    """Return a contiguous float32 copy on the CPU."""
    return tensor.detach().to("cpu", torch.float32).contiguous().clone()


def _config(model: Any) -> Any:
    """Return a model's configuration with the default attention."""
    config = copy.deepcopy(model.config)
    config._attn_implementation = None  # fedpeft's attention is unknown to other programs
    config.dtype = torch.float32
    return config


def _labelled(trained: Trained) -> Any:
    """Return the backbone's configuration with the labels."""
    config = _config(trained.model.backbone.model)
    if trained.kind == "score":
        config.num_labels, config.problem_type = 1, "regression"
        return config
    config.id2label = dict(enumerate(trained.labels))
    config.label2id = {label: index for index, label in enumerate(trained.labels)}
    if trained.kind == "classes":
        config.problem_type = "single_label_classification"
    return config


def _without_labels(model: Any) -> Any:
    """Return a model's configuration with which pipelines for classes and tags fail.

    They would otherwise make a head of random weights.
    """
    config = _config(model)
    config.id2label, config.label2id, config.problem_type = {}, {}, None
    config.function_to_apply = REFUSAL
    return config
