"""Sizes of published backbones, so that tables need no download, and sizes of configurations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

from fedpeft.backbones.families import FAMILIES, family_of
from fedpeft.backbones.shapes import BackboneShape
from fedpeft.errors import UserError

if TYPE_CHECKING:
    from transformers import PretrainedConfig

_STATIC = {
    "tiny": BackboneShape("roberta", 2, 32, 4, 64, 325, 132, 1, 1),
    "minilm": BackboneShape("bert", 6, 384, 12, 1536, 30_522, 512, 2, 0),
    "roberta-base": BackboneShape("roberta", 12, 768, 12, 3072, 50_265, 514, 1, 1),
    "roberta-large": BackboneShape("roberta", 24, 1024, 16, 4096, 50_265, 514, 1, 1),
    "distilroberta-base": BackboneShape("roberta", 6, 768, 12, 3072, 50_265, 514, 1, 1),
    "bert-base-cased": BackboneShape("bert", 12, 768, 12, 3072, 28_996, 512, 2, 0),
    "bert-base-uncased": BackboneShape("bert", 12, 768, 12, 3072, 30_522, 512, 2, 0),
    "bert-large-cased": BackboneShape("bert", 24, 1024, 16, 4096, 28_996, 512, 2, 0),
    "bert-large-uncased": BackboneShape("bert", 24, 1024, 16, 4096, 30_522, 512, 2, 0),
    "bert-base-multilingual-cased": BackboneShape("bert", 12, 768, 12, 3072, 119_547, 512, 2, 0),
}
_XLM = {"vocab_size": 250_002, "max_position_embeddings": 514, "type_vocab_size": 1}
_ELECTRA_BASE = {"embedding_size": 768, "hidden_size": 768, "num_attention_heads": 12}
_DEBERTA_V3_BASE = {
    "vocab_size": 128_100,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "relative_attention": True,
    "position_buckets": 256,
    "norm_rel_ebd": "layer_norm",
    "share_att_key": True,
    "pos_att_type": ["p2c", "c2p"],
    "position_biased_input": False,
}
_QWEN_SMALL = {
    "vocab_size": 151_936,
    "hidden_size": 896,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "intermediate_size": 4864,
    "tie_word_embeddings": True,
}
_BART_BASE = {
    "d_model": 768,
    "encoder_layers": 6,
    "decoder_layers": 6,
    "encoder_attention_heads": 12,
    "decoder_attention_heads": 12,
    "encoder_ffn_dim": 3072,
    "decoder_ffn_dim": 3072,
}
_T5_BASE = {"d_model": 768, "d_ff": 3072, "num_layers": 12, "num_heads": 12}
#: Family, and what differs from transformers' default configuration of it.
_CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "distilbert-base-uncased": ("distilbert", {}),
    "xlm-roberta-base": ("xlm-roberta", _XLM),
    "google/electra-small-discriminator": ("electra", {}),
    "google/electra-base-discriminator": (
        "electra",
        {**_ELECTRA_BASE, "intermediate_size": 3072},
    ),
    "answerdotai/ModernBERT-base": ("modernbert", {}),
    "microsoft/mpnet-base": ("mpnet", {"vocab_size": 30_527, "max_position_embeddings": 514}),
    "microsoft/deberta-v3-base": ("deberta-v2", _DEBERTA_V3_BASE),
    "gpt2": ("gpt2", {}),
    "Qwen/Qwen2.5-0.5B": ("qwen2", _QWEN_SMALL),
    "bart-base": ("bart", _BART_BASE),
    "bart-large": ("bart", {}),
    "facebook/bart-base": ("bart", _BART_BASE),
    "facebook/bart-large": ("bart", {}),
    "t5-small": ("t5", {}),
    "t5-base": ("t5", _T5_BASE),
    "google-t5/t5-base": ("t5", _T5_BASE),
}


class _Known(Mapping[str, BackboneShape]):
    """Shapes by name; those that need transformers are made when they are asked for."""

    def __getitem__(self, name: str) -> BackboneShape:
        return _STATIC[name] if name in _STATIC else _published(name)

    def __iter__(self) -> Iterator[str]:
        yield from _STATIC
        yield from _CONFIGS

    def __len__(self) -> int:
        return len(_STATIC) + len(_CONFIGS)


KNOWN_SHAPES: Mapping[str, BackboneShape] = _Known()


@lru_cache
def _published(name: str) -> BackboneShape:
    from transformers import AutoConfig

    family, changes = _CONFIGS[name]
    return shape_of_config(AutoConfig.for_model(family, **changes))


def default_representation(name: str) -> Literal["mean", "last", "mask"]:
    """Return what the head reads of a backbone by default, without loading its files."""
    if name == "minilm":
        return "mean"  # it was trained for mean pooling
    if name in _CONFIGS and FAMILIES[_CONFIGS[name][0]].reads_last:
        return "last"
    return "mask"  # Gupta et al. 2023, section 3.1


#: Size here -> its name in the configuration of BERT, and its value if that is missing.
_SIZES: dict[str, tuple[str, int]] = {
    "layers": ("num_hidden_layers", 0),
    "width": ("hidden_size", 0),
    "heads": ("num_attention_heads", 0),
    "intermediate": ("intermediate_size", 0),
    "vocabulary": ("vocab_size", 0),
    "positions": ("max_position_embeddings", 512),  # T5 has no limit; its training had this
    "types": ("type_vocab_size", 1),
    "padding": ("pad_token_id", -1),
    "decoder_layers": ("", 0),
    "head_width": ("head_dim", 0),
    "key_heads": ("num_key_value_heads", 0),
    "embedding_width": ("", 0),
}


def shape_of_config(config: PretrainedConfig) -> BackboneShape:
    """Return the sizes in a model's configuration.

    Raises:
        UserError: two sizes differ that must be equal.
    """
    name = family_of(config)
    family = FAMILIES[name]
    for one, other in family.equal:
        first, second = getattr(config, one), getattr(config, other)
        if first != second:
            raise UserError(
                f"{name} backbone with {one} = {first}, {other} = {second}: expected "
                f"equal numbers; choose another backbone"
            )
    sizes: dict[str, int] = {}
    for size, (attribute, default) in _SIZES.items():
        value = getattr(config, family.sizes.get(size, attribute), None)
        if value is None and size == "intermediate":
            value = 4 * sizes["width"]  # GPT-2's default
        sizes[size] = default if value is None else value
    sizes["layers"] += sizes["decoder_layers"]
    formula = name in ("bert", "roberta")
    return BackboneShape(
        name, **sizes, config="" if formula else config.to_json_string(use_diff=True)
    )
