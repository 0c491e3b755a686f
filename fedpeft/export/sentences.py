"""Export as a folder of sentence-transformers: the tuned encoder of texts, without the head.

``modules.json`` names the steps: the transformer, the pooling that the run's head reads, and for
``representation = "unit"`` a scaling to length 1.
"""

from __future__ import annotations

import json
from pathlib import Path

from fedpeft.export.obstacles import check_exportable
from fedpeft.export.plain import encoder_of, realise, save_tokenizer
from fedpeft.modifications.fusing import fused_changes
from fedpeft.trained import Trained

#: Pooling of each representation, as all versions of sentence-transformers read it.
_POOLINGS = {
    "mean": "pooling_mode_mean_tokens",
    "unit": "pooling_mode_mean_tokens",
    "cls": "pooling_mode_cls_token",
    "last": "pooling_mode_lasttoken",
}
_PACKAGE = "sentence_transformers.models"


def save_sentences(trained: Trained, folder: Path) -> None:
    """Write the encoder, its tokenizer and the description of its steps into a folder.

    Raises:
        UserError: the run has no such export.
    """
    check_exportable(trained, "sentence-transformers")
    changes = fused_changes(trained.model.method.shape, realise(trained).modifications)
    encoder_of(trained, changes).save_pretrained(folder)
    save_tokenizer(trained, folder)
    steps = ["Transformer", "Pooling", *(["Normalize"] if trained.reads == "unit" else [])]
    _write(
        folder / "modules.json",
        [
            {
                "idx": place,
                "name": str(place),
                "path": f"{place}_{step}" if place else "",
                "type": f"{_PACKAGE}.{step}",
            }
            for place, step in enumerate(steps)
        ],
    )
    width = trained.model.method.shape.width
    pooling = {mode: mode == _POOLINGS[trained.reads] for mode in sorted({*_POOLINGS.values()})}
    _write(folder / "1_Pooling" / "config.json", {"word_embedding_dimension": width, **pooling})
    longest = trained.experiment.task.max_length
    _write(folder / "sentence_bert_config.json", {"max_seq_length": longest})


def _write(path: Path, content: object) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
