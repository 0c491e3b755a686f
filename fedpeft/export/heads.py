"""The heads of transformers' own classes, filled so that they compute the run's head W h + b.

Most are ``out(f(dense(h)))`` on the state h of one token, with an activation f:

- f = tanh or GELU, smooth at 0: ``dense = e I`` and ``out = W / (e f'(0))``. Then f is linear up
  to a relative error of about e |h|, for e = 2^-40 far below the 6e-8 of float32. e is a power of
  two, so the products are exact. They need the exponents of float32 or bfloat16.
- ReLU, or a LayerNorm behind f (ModernBERT): ``dense`` computes e W h and -e W h, and ``out`` takes
  half of their difference: f(x) - f(-x) = 2 f'(0) x for values as small as these (exactly x for
  ReLU). Their mean is 0 and their variance vanishes beside the LayerNorm's epsilon, so the
  LayerNorm divides by sqrt(epsilon). This needs two numbers of the width for each class.

Heads for tags are linear, except ModernBERT's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from fedpeft.trained import Trained

EPSILON = 2.0**-40  # e, see the module


@dataclass(frozen=True)
class StandardHead:
    """The head of a class of transformers, by the paths of its modules in the whole model.

    Attributes:
        out: its last linear layer.
        dense: its first linear layer, "" if there is none.
        slope: f'(0) of the activation; 1/2 for ReLU, where f(x) - f(-x) = x.
        mirrored: whether it needs e W h and -e W h, see the module.
        norm: a LayerNorm behind the activation, "" if there is none.
        reads: the representations that it can read.
        pooling: name of the setting that chooses among them, "" if there is none.
        settings: further settings of the configuration.
    """

    out: str
    dense: str = ""
    slope: float = 1.0
    mirrored: bool = False
    norm: str = ""
    reads: tuple[str, ...] = ("cls",)
    pooling: str = ""
    settings: Mapping[str, object] = field(default_factory=dict)

    def configuration(self, reads: str) -> dict[str, object]:
        """Return the settings of the configuration for a run that reads ``reads``."""
        return {
            **self.settings,
            **({self.pooling: reads} if reads in self.reads and self.pooling else {}),
        }

    def weights(self, weight: Tensor, bias: Tensor, config: Any) -> dict[str, Tensor]:
        """Return the weights, by name, that compute the run's head.

        Args:
            weight: W, [C, width].
            bias: b, [C].
            config: transformers' configuration of the model.
        """
        if not self.dense:
            return {f"{self.out}.weight": weight, f"{self.out}.bias": bias}
        classes, width = weight.shape
        first, last = torch.eye(width), weight
        if self.mirrored:
            rest = width - 2 * classes
            halves = torch.eye(classes) / 2
            first = torch.cat([weight, -weight, weight.new_zeros(rest, width)])
            last = torch.cat([halves, -halves, weight.new_zeros(classes, rest)], dim=1)
        scale = config.norm_eps**0.5 if self.norm else 1.0
        weights = {
            f"{self.dense}.weight": EPSILON * first,
            f"{self.out}.weight": last * (scale / (EPSILON * self.slope)),
            f"{self.out}.bias": bias,
        }
        # A LayerNorm follows a layer without bias.
        zeros = [f"{self.dense}.bias"]
        if self.norm:
            weights[f"{self.norm}.weight"] = torch.ones(width)
            zeros = [f"{self.norm}.bias"] if config.norm_bias else []
        return {**weights, **{name: torch.zeros(width) for name in zeros}}


_TWO_LAYERS = StandardHead("classifier.out_proj", "classifier.dense")
_BEHIND_DECODER = StandardHead(
    "classification_head.out_proj", "classification_head.dense", reads=("last",)
)
_POOLED = StandardHead(
    "classifier", "pooler.dense", slope=0.5, settings={"pooler_hidden_act": "gelu"}
)
_MODERNBERT = StandardHead(
    "classifier",
    "head.dense",
    slope=0.5,
    mirrored=True,
    norm="head.norm",
    reads=("cls", "mean"),
    pooling="classifier_pooling",
    settings={"classifier_activation": "gelu", "classifier_bias": False},
)
#: Heads for classes and scores by family. Those of GPT-2, Llama and the like have no bias.
CLASSES: dict[str, StandardHead] = {
    "bert": StandardHead("classifier", "bert.pooler.dense"),
    "roberta": _TWO_LAYERS,
    "xlm-roberta": _TWO_LAYERS,
    "electra": StandardHead("classifier.out_proj", "classifier.dense", slope=0.5),
    "distilbert": StandardHead("classifier", "pre_classifier", slope=0.5, mirrored=True),
    "modernbert": _MODERNBERT,
    "mpnet": _TWO_LAYERS,
    "deberta": _POOLED,
    "deberta-v2": _POOLED,
    **dict.fromkeys(("bart", "mbart", "t5", "t5-gated"), _BEHIND_DECODER),
}
_LINEAR = StandardHead("classifier", reads=("tags",))
#: Heads for tags by family. BART has none; T5's reads the encoder, where ours reads the decoder.
TAGS: dict[str, StandardHead] = {
    **dict.fromkeys(
        ("bert", "roberta", "xlm-roberta", "electra", "distilbert", "mpnet", "gpt2"), _LINEAR
    ),
    **dict.fromkeys(("deberta", "deberta-v2"), _LINEAR),
    **dict.fromkeys(("llama", "qwen2", "qwen3", "mistral"), StandardHead("score", reads=("tags",))),
    "modernbert": _MODERNBERT,
}


def standard_head(family: str, reads: str, classes: int, width: int) -> StandardHead | None:
    """Return the head of transformers that can compute a run's head, None if there is none.

    Args:
        family: of the backbone.
        reads: see ``Trained.reads``.
        classes: number of outputs.
        width: of the backbone.
    """
    head = (TAGS if reads == "tags" else CLASSES).get(family)
    if head is None or (reads != "tags" and reads not in head.reads):
        return None
    return None if head.mirrored and 2 * classes > width else head


def head_of(trained: Trained) -> StandardHead | None:
    """Return the head of transformers for a run; None: the export has its head in another file."""
    shape, reads = trained.model.method.shape, trained.reads
    if reads in ("text", "likelihood"):
        return None
    if reads == "last" and shape.sites.writes == "encoder-decoder":
        # transformers' class reads the end token; ours the last one.
        tokenizer, config = trained.model.backbone.tokenizer, trained.model.backbone.model.config
        if tokenizer("a")["input_ids"][-1] != config.eos_token_id:
            return None
    return standard_head(shape.family, reads, trained.model.head.classes, shape.width)
