"""The ``tiny`` backbone for tests: a small random RoBERTa with a generated tokenizer."""

from __future__ import annotations

import string
from typing import TYPE_CHECKING

from fedpeft.backbones.tiny_words import vocabulary
from fedpeft.randomness import generator

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

SPECIAL = {"bos": "<s>", "pad": "<pad>", "eos": "</s>", "unk": "<unk>", "mask": "<mask>"}


def tiny_backbone() -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Return a RoBERTa of 2 layers and width 32, with the same weights in every process."""
    import torch
    from transformers import RobertaConfig, RobertaModel

    tokenizer = tiny_tokenizer()
    config = RobertaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=132,
        type_vocab_size=1,
    )
    model = RobertaModel(config, add_pooling_layer=False)
    draw = generator(0, "tiny-backbone")
    with torch.no_grad():
        for _, parameter in sorted(model.named_parameters()):
            if parameter.dim() > 1:  # with BERT's 0.02, outputs of width 32 barely differ
                parameter.copy_(torch.from_numpy(draw.normal(0, 0.2, tuple(parameter.shape))))
    return model, tokenizer


def tiny_tokenizer() -> PreTrainedTokenizerBase:
    """Return a word-piece tokenizer with the synthetic tasks' words and single characters."""
    from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    characters = string.ascii_lowercase + string.digits + string.punctuation
    pieces = [*SPECIAL.values(), *characters, *(f"##{c}" for c in characters), *vocabulary()]
    ids = {piece: i for i, piece in enumerate(dict.fromkeys(pieces))}
    backend = Tokenizer(models.WordPiece(ids, unk_token=SPECIAL["unk"]))
    backend.normalizer = normalizers.BertNormalizer(lowercase=True)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.post_processor = processors.RobertaProcessing(
        ("</s>", ids["</s>"]), ("<s>", ids["<s>"]), add_prefix_space=False
    )
    names = {f"{name}_token": text for name, text in SPECIAL.items() if name != "mask"}
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        cls_token="<s>",
        sep_token="</s>",
        mask_token=AddedToken("<mask>", lstrip=True),
        model_max_length=128,
        **names,
    )
