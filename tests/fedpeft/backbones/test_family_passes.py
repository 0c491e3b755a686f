"""Passes of every family: packed, kept, merged, under another attention, and in other code."""

from __future__ import annotations

import copy
import inspect
from dataclasses import replace
from typing import Any

import pytest
import torch
from equations import WRITTEN
from literal import at_text, both_batches
from models import build_model, part_of, random_vectors
from pairs import covering, fitting
from small_families import CONFIGS, LLAMAS, small_family, tolerance
from torch import Tensor
from written import written_states

from fedpeft.backbones.attention import EAGER, SDPA
from fedpeft.backbones.families import FAMILIES
from fedpeft.batches.batch import Batch, collate
from fedpeft.batches.packing import Packing
from fedpeft.errors import UserError
from fedpeft.model import TaskModel
from fedpeft.modifications.fusing import fused
from fedpeft.modifications.inputs import model_inputs
from fedpeft.privacy.whole_weights import weight_gradients
from fedpeft.tasks.base import Examples
from fedpeft.tasks.encoding import encode

PACKING = [family for family in CONFIGS if FAMILIES[family].packs]
ATTENDING = [family for family in CONFIGS if FAMILIES[family].attends]
#: Families without a bias where SLaSh shifts, which therefore cannot be merged.
NO_SHIFTS = ("modernbert", "llama", "qwen2", "qwen3", "mistral", "t5", "t5-gated")
FUSABLE = fitting(CONFIGS, ["lora", "vera", "uni_lora", "full", "said", "bitfit", "slash"])
#: GPT-2's matrices are transposed; BitFit changes every bias of a family.
MERGED = covering(
    [(family, name) for family, name in FUSABLE if name != "slash" or family not in NO_SHIFTS],
    families=["gpt2", "t5", "deberta-v2"],
    names=["lora", "bitfit"],
)


def states(model: TaskModel, vectors: Tensor, batch: Batch) -> Tensor:
    """Return the engine's last hidden states, 0 at padding."""
    hidden, _ = model.hidden_states(model.realise(vectors).modifications, batch)
    return at_text(hidden, batch.attention_mask)


def plain(model: Any, shape: Any, batch: Batch) -> Tensor:
    """Return transformers' last hidden states, 0 at padding."""
    hidden = model(**model_inputs(model, shape, batch)).last_hidden_state
    return at_text(hidden, batch.attention_mask)


@pytest.mark.parametrize(("family", "name"), MERGED)
def test_merged_weights_give_the_same_states(family: str, name: str) -> None:
    backbone = small_family(family)
    model = build_model(backbone, name)
    vectors = random_vectors(model, 1)
    changes = model.realise(vectors).modifications
    before = copy.deepcopy(backbone.model.state_dict())
    batch = both_batches(model, groups=1)[0]
    expected = states(model, vectors, batch)
    assert model.method.fusable
    with fused(backbone.model, backbone.shape, changes):
        actual = plain(backbone.model, backbone.shape, batch)
    allowed = tolerance(family, expected)
    torch.testing.assert_close(actual, expected, rtol=0, atol=allowed)
    after = backbone.model.state_dict()
    assert all(torch.equal(before[key], after[key]) for key in before)


@pytest.mark.parametrize("family", NO_SHIFTS)
def test_shifts_of_families_without_biases_are_not_merged(family: str) -> None:
    backbone = small_family(family)
    model = build_model(backbone, "slash")
    changes = model.realise(random_vectors(model, 1)).modifications
    with (
        pytest.raises(UserError, match=f"cannot be merged: {family} backbones have no"),
        fused(backbone.model, backbone.shape, changes),
    ):
        pass
    assert not model.method.fusable


@pytest.mark.parametrize("family", CONFIGS)
def test_trained_norms_can_be_merged(family: str) -> None:
    """Compacter changes norms; only those changes are applied here."""
    backbone = small_family(family)
    model = build_model(backbone, "compacter", n=2, reduction=4, layer_norms=True)
    vectors = random_vectors(model, 1)
    norms = [m for m in model.realise(vectors).modifications if m.site.endswith("norm")]
    gains = {name for name in backbone.shape.weights if "norm" in name.lower() or "ln_" in name}
    gains = {name for name in gains if name.endswith("weight")}
    inside = {name for name in gains if "q_norm" in name or "k_norm" in name}  # of Qwen3's heads
    assert len(norms) == len(gains - inside)
    batch = both_batches(model, groups=1)[0]
    hidden, _ = model.hidden_states(norms, batch)
    with fused(backbone.model, backbone.shape, norms):
        actual = plain(backbone.model, backbone.shape, batch)
    expected = at_text(hidden, batch.attention_mask)
    allowed = tolerance(family, expected)
    torch.testing.assert_close(actual, expected, rtol=0, atol=allowed)


@pytest.mark.parametrize("name", ["slash", "lora", "prefix", "parallel_adapter"])
@pytest.mark.parametrize("family", PACKING)
def test_packed_texts_equal_padded_ones(family: str, name: str) -> None:
    model = build_model(small_family(family), name)
    assert model.packs
    batch, vectors = both_batches(model)[0], random_vectors(model, 2)
    mask = batch.attention_mask.numpy().astype(bool)
    packed = replace(batch, packing=Packing.of(mask, 2, "cpu", torch.float64))
    assert packed.packing is not None
    pairs = zip(model.gradients(vectors, packed), model.gradients(vectors, batch), strict=True)
    for actual, expected in pairs:
        torch.testing.assert_close(actual, expected, rtol=0, atol=1e-9)


def test_other_families_are_not_packed() -> None:
    for family in {*CONFIGS} - {*PACKING}:
        assert not build_model(small_family(family), "slash").packs


@pytest.mark.parametrize("family", CONFIGS)
def test_a_kept_representation_gives_the_same_gradients(family: str) -> None:
    model = build_model(small_family(family), "linear")
    batch, vectors = both_batches(model)[0], random_vectors(model, 2)
    kept = replace(batch, states=model.states_below(batch))
    assert kept.states.shape == (6, 1, 24)
    pairs = zip(model.gradients(vectors, kept), model.gradients(vectors, batch), strict=True)
    for actual, expected in pairs:
        torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("family", CONFIGS)
def test_states_of_upper_blocks_are_kept_where_a_pass_can_start_there(family: str) -> None:
    model = build_model(small_family(family), "slash", d=12, layers="2")
    if not FAMILIES[family].resumes:
        assert model.first_block == 0
        model.keep_states(1 << 30)
        assert model.kept.limit == 0
        return
    assert model.first_block == 2
    batch, vectors = both_batches(model)[0], random_vectors(model, 2)
    kept = replace(batch, states=model.states_below(batch))
    pairs = zip(model.gradients(vectors, kept), model.gradients(vectors, batch), strict=True)
    for actual, expected in pairs:
        torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["prefix", "prompt"])
@pytest.mark.parametrize("family", ATTENDING)
def test_attention_of_equations_equals_fused_attention(family: str, name: str) -> None:
    backbone = small_family(family)
    model = build_model(backbone, name)
    vectors = random_vectors(model, 2)
    for batch in both_batches(model):
        expected = states(model, vectors, batch)
        backbone.model.set_attn_implementation(EAGER)
        try:
            actual = states(model, vectors, batch)
        finally:
            backbone.model.set_attn_implementation(SDPA)
        # ModernBERT and Llama: the softmax of transformers' equations is float32.
        allowed = tolerance(family, expected)
        torch.testing.assert_close(actual, expected, rtol=0, atol=allowed)


@pytest.mark.parametrize("family", ["gpt2", *LLAMAS])
def test_prefix_equals_a_cache_of_transformers(family: str) -> None:
    """Cached keys and values before a text whose positions do not shift."""
    from transformers import DynamicCache

    backbone = small_family(family)
    model = build_model(backbone, "prefix", length=2)
    vectors = random_vectors(model, 1)
    params = {name: value[0] for name, value in model.layout.unpack(vectors).items()}
    batch = both_batches(model, groups=1)[1]  # without padding
    rows, tokens = batch.input_ids.shape
    cache = DynamicCache()
    heads = backbone.shape.key_heads or backbone.shape.heads
    for layer in range(backbone.shape.layers):
        parts = [params[f"{layer}.prefix_{side}"] for side in ("keys", "values")]
        split = [part.unflatten(1, (heads, -1)).transpose(0, 1) for part in parts]
        cache.update(*(part.expand(rows, -1, -1, -1) for part in split), layer)
    # A window would count the cached tokens; the mask is the text's own with the prefix before it.
    distance = torch.arange(tokens)[:, None] - torch.arange(tokens)
    window = 5 if family == "mistral" else tokens
    text = (distance >= 0) & (distance < window)
    mask = torch.nn.functional.pad(text, (2, 0), value=True).expand(rows, 1, -1, -1)
    # transformers renamed this argument.
    names = inspect.signature(backbone.model.forward).parameters
    past = {"cache" if "cache" in names else "past_key_values": cache}
    expected = backbone.model(
        input_ids=batch.input_ids,
        attention_mask={"full_attention": mask} if family.startswith("qwen") else mask,
        position_ids=torch.arange(tokens)[None],
        **past,
    ).last_hidden_state
    actual = states(model, vectors, batch)
    torch.testing.assert_close(actual, expected, rtol=0, atol=tolerance(family))


#: Modules of q and v in peft's words.
TARGETS = {
    **{family: ["q_proj", "v_proj"] for family in (*LLAMAS, "bart", "mbart")},
    **{family: ["q", "v"] for family in ("t5", "t5-gated", "mpnet")},
    "distilbert": ["q_lin", "v_lin"],
    "electra": ["query", "value"],
}


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("family", TARGETS)
def test_lora_equals_peft(family: str) -> None:
    from peft import LoraConfig, get_peft_model

    backbone = small_family(family)
    model = build_model(backbone, "lora", rank=2, alpha=6.0)
    vectors = random_vectors(model, 1)
    other = copy.deepcopy(backbone.model)
    other = get_peft_model(other, LoraConfig(r=2, lora_alpha=6, target_modules=TARGETS[family]))
    other = other.double().eval()
    matrices = {name: module for name, module in other.named_modules() if hasattr(module, "lora_A")}
    params = [value[0] for name, value in model.layout.unpack(vectors).items() if name[-1] in "AB"]
    order = sorted(matrices, key=places)
    assert 2 * len(order) == len(params)
    for name, down, up in zip(order, params[0::2], params[1::2], strict=True):
        matrices[name].lora_A["default"].weight.data = down
        matrices[name].lora_B["default"].weight.data = up
    for batch in both_batches(model, groups=1):
        expected = plain(other.get_base_model(), backbone.shape, batch)
        allowed = tolerance(family, expected)
        torch.testing.assert_close(states(model, vectors, batch), expected, rtol=0, atol=allowed)


def places(name: str) -> tuple[bool, int, bool, bool]:
    """Return the order of the computation: encoder, block, self-attention, query."""
    number = next(int(part) for part in name.split(".") if part.isdecimal())
    last = name.rpartition(".")[2]
    cross = "encoder_attn" in name or "EncDec" in name
    return "decoder." in name, number, cross, not last.startswith("q")


@pytest.mark.parametrize("family", [*LLAMAS, "gpt2"])
def test_decoders_read_what_transformers_classifies(family: str) -> None:
    from transformers import AutoModelForSequenceClassification

    backbone = small_family(family)
    model, batch = build_model(backbone, "linear"), reading(family, "last")
    vectors = random_vectors(model, 1)
    params = {name: value[0] for name, value in model.layout.unpack(vectors).items()}
    other = AutoModelForSequenceClassification.from_config(backbone.model.config).double().eval()
    setattr(other, other.base_model_prefix, backbone.model)
    other.score.weight.data = params["head.weight"]
    texts = {"input_ids": batch.input_ids, "attention_mask": batch.attention_mask}
    expected = other(**texts, use_cache=False).logits + params["head.bias"]
    actual = model.outputs(model.realise(vectors), batch)
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12)


#: Module that gets the representation, or all states, in transformers' sequence classification.
HEADS = {
    **dict.fromkeys(("bart", "mbart", "t5", "t5-gated"), ("classification_head", "last")),
    "distilbert": ("pre_classifier", "cls"),
    "modernbert": ("head", "cls"),
    **dict.fromkeys(("xlm-roberta", "electra", "mpnet"), ("classifier", "cls")),
    **dict.fromkeys(("deberta", "deberta-v2"), ("pooler", "cls")),
}


@pytest.mark.parametrize("family", HEADS)
def test_other_families_read_what_transformers_classifies(family: str) -> None:
    from transformers import AutoModelForSequenceClassification

    head, representation = HEADS[family]
    backbone = small_family(family)
    model, batch = build_model(backbone, "linear"), reading(family, representation)
    other = AutoModelForSequenceClassification.from_config(backbone.model.config).double().eval()
    base = getattr(other, other.base_model_prefix)
    base.load_state_dict(backbone.model.state_dict())
    seen: list[Tensor] = []
    getattr(other, head).register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    other(input_ids=batch.input_ids, attention_mask=batch.attention_mask)
    expected = seen[0][:, 0] if seen[0].dim() == 3 else seen[0]
    actual = model.states_below(batch)[:, 0]
    torch.testing.assert_close(actual, expected, rtol=0, atol=tolerance(family))


def reading(family: str, representation: str) -> Batch:
    """Return texts of different lengths whose only end-of-sequence token is their last."""
    backbone, texts = small_family(family), ["a lovely film", "bread", "the soup was great indeed"]
    labels = torch.zeros(3, dtype=torch.int64).numpy()
    examples = encode(Examples(texts, None, labels), backbone.tokenizer, representation, 48)
    return collate([examples], [torch.arange(3).numpy()], 1, "cpu", torch.float64)


def test_gradients_of_whole_weights_are_refused_where_opacus_knows_none() -> None:
    for family in CONFIGS:
        if not FAMILIES[family].example_weights:
            model = build_model(small_family(family), "said")
            batch = both_batches(model, groups=1)[0]
            with pytest.raises(ValueError, match=f"{family} backbones have weights without"):
                weight_gradients(model, random_vectors(model, 1), batch)


@pytest.mark.parametrize("name", ["full", "said"])
@pytest.mark.parametrize("family", [f for f in CONFIGS if FAMILIES[f].example_weights])
def test_gradients_of_whole_weights_equal_single_examples(family: str, name: str) -> None:
    model = build_model(small_family(family), name)
    vectors, batch = random_vectors(model, 1), both_batches(model, groups=1)[0]
    actual, _ = weight_gradients(model, vectors, batch)
    for row in range(len(batch.read)):
        (expected,), _ = model.gradients(vectors, part_of(batch, row, row + 1))
        torch.testing.assert_close(actual[row], expected, rtol=1e-9, atol=1e-9)


def test_electra_without_a_projection_of_its_embeddings() -> None:
    """ELECTRA-base's embeddings are as wide as its blocks."""
    backbone = small_family("electra", embedding_size=24)
    for name in ("prompt", "bitfit"):
        model = build_model(backbone, name)
        vectors, batch = random_vectors(model, 1), both_batches(model, groups=1)[0]
        params = {key: part[0] for key, part in model.layout.unpack(vectors).items()}
        texts = batch.input_ids, batch.attention_mask, batch.token_type_ids
        expected = written_states(backbone, *texts, **WRITTEN[name](model, params))
        expected = at_text(expected, batch.attention_mask)
        torch.testing.assert_close(states(model, vectors, batch), expected, rtol=0, atol=1e-9)
