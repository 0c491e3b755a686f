"""RoBERTa of any size with random weights, and texts; they cost what trained weights cost."""

from __future__ import annotations

import tempfile
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from fedpeft.batches.encoded import Encoded
from fedpeft.errors import UserError
from fedpeft.experiment.config import Experiment

#: layers, width, heads, intermediate, d of SLaSh and JR-WARP
SIZES = {
    "tiny": (2, 32, 4, 64, 32),
    "base": (12, 768, 12, 3072, 5000),
    "large": (24, 1024, 16, 4096, 10_000),
}
VOCABULARY = 50_265  # RoBERTa's
LONGEST = 512  # tokens of a text


def save_backbone(size: str, folder: Path) -> None:
    """Write a random RoBERTa with the tokenizer of ``tiny``."""
    from transformers import RobertaConfig, RobertaModel

    from fedpeft.backbones.tiny import tiny_tokenizer

    layers, width, heads, middle, _ = SIZES[size]
    torch.manual_seed(0)
    config = RobertaConfig(
        vocab_size=VOCABULARY,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=middle,
        max_position_embeddings=LONGEST + 2,
        type_vocab_size=1,
    )
    RobertaModel(config, add_pooling_layer=False).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)


def backbone_of(name: str) -> str:
    """Return a backbone's name; for ``random-SIZE`` the folder of a random RoBERTa, kept there.

    Raises:
        UserError: no such size.
    """
    size = name.removeprefix("random-")
    if name == size:
        return name
    if size not in SIZES:
        raise UserError(f"--backbone {name}: expected random- and one of {', '.join(SIZES)}")
    folder = Path(tempfile.gettempdir()) / f"fedpeft-{name}"
    if not (folder / "tokenizer.json").exists():  # written last
        save_backbone(size, folder)
    return str(folder)


def experiment_of(name: str, folder: str, options: Namespace, *more: str) -> Experiment:
    """Return the experiment of a method, with the sizes of table 5 and more settings."""
    d = f"method.d={SIZES[options.size][-1]}"
    extra = {"slash": [d], "jr_warp": [d], "houlsby": ["method.bottleneck=1"], "lora": []}
    return Experiment.load(
        "",
        [
            f"backbone={folder}",
            "representation=mean",
            f"method.name={name}",
            *extra.get(name, []),
            "local.schedule=constant",
            f"engine.threads={options.threads}",
            f"engine.device={options.device}",
            f"engine.autocast={options.autocast}",
            "engine.cache_mb=0",
            *more,
        ],
    )


def random_texts(lengths: Sequence[int]) -> Encoded:
    """Return random texts of these lengths in tokens, with two classes."""
    draw, total = np.random.default_rng(0), sum(lengths)
    return Encoded(
        draw.integers(5, 300, total, dtype=np.int32),
        np.zeros(total, dtype=np.uint8),
        np.cumsum([0, *lengths], dtype=np.int64),
        np.full(len(lengths), -1, dtype=np.int32),
        draw.integers(0, 2, len(lengths), dtype=np.int64),
    )
