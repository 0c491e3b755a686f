"""Export of a run that writes text, or classes by likelihood, as a model with output embeddings.

The modifications are merged into the weights of ``AutoModelForCausalLM`` or
``AutoModelForSeq2SeqLM``, which then generates the same texts, or gives the same logits to the
words of the classes, without fedpeft.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch

from fedpeft.errors import UserError
from fedpeft.export.plain import check_fusable, portable, realise, save_tokenizer
from fedpeft.export.readme import readme
from fedpeft.modifications.fusing import fused_changes
from fedpeft.trained import Trained


def save_language(trained: Trained, folder: Path) -> None:
    """Write the model, its tokenizer and a README into a folder.

    Raises:
        UserError: the method cannot be merged into weights, or it changes embeddings that are
            both input and output.
    """
    check_fusable(trained)
    backbone = trained.model.backbone
    changes = fused_changes(backbone.shape, realise(trained).modifications)
    language: Any = backbone.language
    output = language.get_output_embeddings().weight
    for name in changes:
        if backbone.model.get_parameter(name) is output:
            raise UserError(
                f"method '{trained.experiment.method.name}' changes '{name}', which this backbone "
                f"uses as output embeddings, too; --format vector works for all"
            )
    config = copy.deepcopy(language.config)
    config._attn_implementation = None  # fedpeft's attention is unknown to other programs
    config.dtype = torch.float32
    model = type(language)(config)
    prefix = "" if language.base_model is language else f"{language.base_model_prefix}."
    named = {f"{prefix}{name}": change for name, change in changes.items()}
    state = {
        name: portable(value + named[name] if name in named else value)
        for name, value in language.state_dict().items()
    }
    model.load_state_dict(state)
    model.generation_config = copy.deepcopy(language.generation_config)
    model.eval().save_pretrained(folder)
    save_tokenizer(trained, folder)
    (folder / "README.md").write_text(readme(trained, "hf"), encoding="utf-8")
