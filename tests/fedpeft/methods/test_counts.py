"""Number of trained parameters of each method, against the papers' tables and formulas."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModel, BertConfig, RobertaConfig

from fedpeft.backbones.known import KNOWN_SHAPES, shape_of_config
from fedpeft.heads import Full, Head
from fedpeft.methods import REGISTRY, build_method, settings_for
from fedpeft.parameters import layout_of

REFERENCE = Path(__file__).resolve().parents[3].parent / "shared/reference/counts.json"


def count(backbone: str, name: str, classes: int = 0, **settings: object) -> int:
    """Return the number of trained parameters, with a head if there are classes."""
    method = build_method(settings_for({"name": name, **settings}), KNOWN_SHAPES[backbone], 0)
    layout = layout_of(method, Head("classes", Full(max(classes, 1), method.shape.width)))
    return layout.size if classes else layout.size - layout.head_size


#: (backbone, method, settings, classes, numbers): Gupta et al. 2023, tables 2 to 4.
PAPER = [
    ("roberta-large", "linear", {}, 3, 3_075),
    ("roberta-large", "slash", {"d": 1024}, 3, 4_099),
    ("roberta-large", "slash", {"d": 24_576}, 3, 27_651),
    ("roberta-large", "slash", {"d": "max"}, 3, 27_651),
    ("roberta-large", "jr_warp", {"d": 10_000}, 3, 13_075),
    ("roberta-large", "prompt", {"length": 20}, 3, 23_555),
    ("roberta-large", "lora", {"rank": 1}, 3, 101_379),
    ("roberta-large", "houlsby", {"bottleneck": 1}, 3, 150_579),
    ("roberta-large", "bitfit", {}, 3, 274_435),
    ("roberta-base", "slash", {"d": "max"}, 3, 11_523),
    ("roberta-base", "lora", {"rank": 1}, 3, 39_171),
    ("bert-base-cased", "lora", {"rank": 1}, 9, 43_785),
    ("bert-base-cased", "houlsby", {"bottleneck": 1}, 9, 62_241),
    ("bert-base-cased", "bitfit", {}, 9, 109_065),
    ("minilm", "slash", {"d": 1024}, 2, 1_794),
]


@pytest.mark.parametrize(("backbone", "name", "settings", "classes", "expected"), PAPER)
def test_parameter_counts_equal_the_papers(
    backbone: str, name: str, settings: dict[str, Any], classes: int, expected: int
) -> None:
    assert count(backbone, name, classes, **settings) == expected


#: (method, settings, parameters) with L blocks, width h, FFN width f: the formulas of methods.md.
FORMULAS: list[tuple[str, dict[str, Any], Callable[[int, int, int], int]]] = [
    ("linear", {}, lambda L, h, f: 0),
    ("slash", {"d": 777}, lambda L, h, f: 777),
    ("slash", {"d": "max", "position": "intermediate"}, lambda L, h, f: L * f),
    ("slash", {"d": "max", "layers": "0,3-5"}, lambda L, h, f: 4 * h),
    ("jr_warp", {"d": 777, "length": 3}, lambda L, h, f: 777),
    ("said", {"d": 777}, lambda L, h, f: 777),
    ("uni_lora", {"d": 777}, lambda L, h, f: 777),
    ("prompt", {"length": 7}, lambda L, h, f: 7 * h),
    ("prompt", {"length": 7, "placement": "template"}, lambda L, h, f: 7 * h),
    ("bitfit", {}, lambda L, h, f: L * (7 * h + f) + h),
    ("lora", {"rank": 5}, lambda L, h, f: 4 * 5 * h * L),
    ("lora", {"rank": 5, "layers": "upper half"}, lambda L, h, f: 4 * 5 * h * (L // 2)),
    ("lora", {"rank": 5, "sites": "ffn"}, lambda L, h, f: 2 * 5 * (h + f) * L),
    ("lora", {"rank": 5, "sites": "q,k,v,o"}, lambda L, h, f: 8 * 5 * h * L),
    ("houlsby", {"bottleneck": 6}, lambda L, h, f: 2 * L * (2 * h * 6 + h + 6)),
    ("pfeiffer", {"bottleneck": 6}, lambda L, h, f: L * (2 * h * 6 + h + 6)),
    ("parallel_adapter", {"bottleneck": 6}, lambda L, h, f: L * (2 * h * 6 + h + 6)),
    ("scaled_parallel_adapter", {"bottleneck": 6}, lambda L, h, f: L * (2 * h * 6 + h + 6)),
    (
        "scaled_parallel_adapter",
        {"bottleneck": 6, "train_scale": True},
        lambda L, h, f: L * (2 * h * 6 + h + 6 + 1),
    ),
    ("prefix", {"length": 9}, lambda L, h, f: 2 * 9 * h * L),
    (
        "prefix",
        {"length": 9, "hidden": 50},
        lambda L, h, f: 9 * h + 50 * (h + 1) + 2 * L * h * (50 + 1),
    ),
    ("multihead_parallel_adapter", {"length": 9}, lambda L, h, f: 2 * 9 * h * L),
    (
        "mam",
        {"length": 9, "bottleneck": 6},
        lambda L, h, f: 2 * 9 * h * L + L * (2 * h * 6 + h + 6),
    ),
    (
        "compacter",
        {"n": 4, "rank": 2, "reduction": 32},
        lambda L, h, f: 2 * L * (2 * 2 * (h + h // 32) + h + h // 32) + 4**3,
    ),
    (
        "compacter",
        {"n": 4, "rank": 1, "reduction": 32, "plus_plus": True, "layer_norms": True},
        lambda L, h, f: L * (2 * (h + h // 32) + h + h // 32) + 4**3 + 4 * h * L + 2 * h,
    ),
    ("vera", {"rank": 70}, lambda L, h, f: 2 * L * (h + 70)),
]
#: Shapes of the backbones, and all their weights: embeddings, blocks, LayerNorms, no pooler.
SIZES = {
    "roberta-base": (12, 768, 3072, 50_265 + 514 + 1),
    "roberta-large": (24, 1024, 4096, 50_265 + 514 + 1),
    "bert-base-cased": (12, 768, 3072, 28_996 + 512 + 2),
}


@pytest.mark.parametrize("backbone", SIZES)
def test_parameter_counts_follow_the_formulas(backbone: str) -> None:
    L, h, f, rows = SIZES[backbone]
    for name, settings, formula in FORMULAS:
        assert count(backbone, name, **settings) == formula(L, h, f), (name, settings)
    block = 4 * (h * h + h) + 2 * h * f + f + h + 4 * h
    assert count(backbone, "full") == rows * h + 2 * h + L * block
    assert {name for name, *_ in FORMULAS} == set(REGISTRY) - {"full"}


#: Methods of the reference table: name and argument names here.
OURS: dict[str, tuple[str, dict[str, str]]] = {
    "linear": ("linear", {}),
    "slash": ("slash", {"d": "d"}),
    "jr_warp": ("jr_warp", {"d": "d"}),
    "said": ("said", {"d": "d"}),
    "warp": ("prompt", {"n": "length"}),
    "prompt": ("prompt", {"l": "length"}),
    "bitfit": ("bitfit", {}),
    "lora": ("lora", {"r": "rank"}),
    "lora_ffn": ("lora", {"r": "rank"}),
    "vera": ("vera", {"r": "rank"}),
    "houlsby": ("houlsby", {"m": "bottleneck"}),
    "pfeiffer": ("pfeiffer", {"m": "bottleneck"}),
    "pa_ffn": ("parallel_adapter", {"m": "bottleneck"}),
    "pa_attn": ("parallel_adapter", {"m": "bottleneck"}),
    "mh_pa": ("multihead_parallel_adapter", {"l": "length"}),
    "prefix": ("prefix", {"l": "length"}),
    "prefix_mlp": ("prefix", {"l": "length", "mid": "hidden"}),
    "mam": ("mam", {"l": "length", "m": "bottleneck"}),
    "compacter": ("compacter", {"n": "n", "ln": "layer_norms", "pp": "plus_plus"}),
}
FIXED = {"lora_ffn": {"sites": "ffn"}, "pa_attn": {"position": "attention"}}


#: Rows of He et al. 2022 for BART-large, which count no biases of adapters.
_ATTENTION = {"position": "attention"}
BART: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "prefix l=200 (attn)": [("prefix", {"length": 200})],
    "SA/PA attn r=200": [("parallel_adapter", {"bottleneck": 200, **_ATTENTION})],
    "SA/PA ffn r=200": [("parallel_adapter", {"bottleneck": 200})],
    "PA ffn r=512": [("scaled_parallel_adapter", {"bottleneck": 512})],
    "PA ffn r=1024": [("parallel_adapter", {"bottleneck": 1024})],
    "LoRA ffn r=102": [("lora", {"rank": 102, "sites": "ffn"})],
    "LoRA attn r=200": [("lora", {"rank": 200})],
    "Pfeiffer r=600": [("pfeiffer", {"bottleneck": 600})],
    "prefix l=512": [("prefix", {"length": 512})],
    "PA(attn,30)+PA(ffn,512)": [
        ("parallel_adapter", {"bottleneck": 30, **_ATTENTION}),
        ("parallel_adapter", {"bottleneck": 512}),
    ],
    "prefix30+LoRAffn102": [("prefix", {"length": 30}), ("lora", {"rank": 102, "sites": "ffn"})],
    "MAM l=30 r=512": [("mam", {"length": 30, "bottleneck": 512})],
    "prefix/PA/MHPA l=r=30 attn (paper 0.1%)": [("multihead_parallel_adapter", {"length": 30})],
    "PA ffn r=30": [("parallel_adapter", {"bottleneck": 30})],
    "l=1 attn": [("prefix", {"length": 1})],
    "prompt l=200": [("prompt", {"length": 200})],
    "bitfit": [("bitfit", {})],
}


def test_parameter_counts_on_bart_equal_the_reference_table() -> None:
    if not REFERENCE.exists():
        pytest.skip(f"no {REFERENCE}")
    rows = [row for row in json.loads(REFERENCE.read_text())["rows"] if row["table"] == "He BART"]
    assert {row["method"] for row in rows} == set(BART)
    for row in rows:
        total = 0
        for name, settings in BART[row["method"]]:
            values = {"name": name, **settings}
            method = build_method(settings_for(values), KNOWN_SHAPES["bart-large"], 0)
            shapes = method.parameters().items()
            total += sum(prod(shape) for part, shape in shapes if not part.endswith("bias"))
        assert total == row["formula"], row
        assert row["note"] == f"{total / KNOWN_SHAPES['bart-large'].parameters:.3%}"


def why_not(row: dict[str, Any]) -> str | None:
    """Return the reason to skip a row of the table."""
    if row["table"] == "He BART":
        return "in a test of its own"
    if row["method"] not in OURS:
        return "no method here"
    if row["args"].get("bias") is False:
        return "without biases, as the paper counts and its code does not"
    return None


def test_parameter_counts_equal_the_reference_table() -> None:
    if not REFERENCE.exists():
        pytest.skip(f"no {REFERENCE}")
    seen: Counter[str | None] = Counter()
    for row in json.loads(REFERENCE.read_text())["rows"]:
        seen[why := why_not(row)] += 1
        if why is not None:
            continue
        (name, keys), arguments = OURS[row["method"]], dict(row["args"])
        arguments.pop("bias", None)
        # The reference BitFit also trains the bias of the dense layer in Hugging Face's head.
        dense_bias = KNOWN_SHAPES[row["model"]].width if arguments.pop("hf_head", False) else 0
        settings = FIXED.get(row["method"], {})
        if name == "compacter":
            settings = {"reduction": KNOWN_SHAPES[row["model"]].width // arguments.pop("m")}
        settings = {**settings, **{keys[key]: value for key, value in arguments.items()}}
        actual = count(row["model"], name, row["C"] or 0, **settings)
        assert actual + dense_bias == row["built"], row
    assert seen == {
        None: 51,
        "in a test of its own": 17,
        "no method here": 3,
        "without biases, as the paper counts and its code does not": 2,
    }


CONFIGS = {
    "roberta-base": RobertaConfig(
        vocab_size=50_265, max_position_embeddings=514, type_vocab_size=1, pad_token_id=1
    ),
    "roberta-large": RobertaConfig(
        vocab_size=50_265,
        max_position_embeddings=514,
        type_vocab_size=1,
        hidden_size=1024,
        num_hidden_layers=24,
        num_attention_heads=16,
        intermediate_size=4096,
    ),
    "bert-base-cased": BertConfig(vocab_size=28_996),
    "bert-large-uncased": BertConfig(
        vocab_size=30_522,
        hidden_size=1024,
        num_hidden_layers=24,
        num_attention_heads=16,
        intermediate_size=4096,
    ),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_known_shapes_equal_the_shapes_of_models(name: str) -> None:
    with torch.device("meta"):
        model = AutoModel.from_config(CONFIGS[name], add_pooling_layer=False)
    shape = KNOWN_SHAPES[name]
    assert shape_of_config(model.config) == shape
    weights = {key: tuple(weight.shape) for key, weight in model.named_parameters()}
    assert shape.weights == weights
    assert shape.parameters == sum(map(prod, weights.values())) == model.num_parameters()


@pytest.mark.parametrize("name", ["roberta-base", "roberta-large", "bert-base-cased"])
def test_backbone_sizes_equal_the_reference_table_without_pooler(name: str) -> None:
    if not REFERENCE.exists():
        pytest.skip(f"no {REFERENCE}")
    shape, total = KNOWN_SHAPES[name], json.loads(REFERENCE.read_text())["totals"][name]
    assert shape.parameters + shape.width * (shape.width + 1) == total


#: Weights of backbones by the sizes in their papers: tables, blocks and norms.
TOTALS = {
    "gpt2": (50_257 + 1024) * 768 + 12 * (12 * 768**2 + 13 * 768) + 2 * 768,
    # Tables of words and of 32 distances for 12 heads; encoder, decoder, and the norms behind them.
    "t5-base": 32_128 * 768
    + 2 * 32 * 12
    + 12 * (4 * 768**2 + 2 * 768 * 3072 + 2 * 768)
    + 12 * (8 * 768**2 + 2 * 768 * 3072 + 3 * 768)
    + 2 * 768,
    # q and o are square, k and v have 2 of 14 heads; biases of q, k and v; three matrices of FFN.
    "Qwen/Qwen2.5-0.5B": 151_936 * 896
    + 24 * (2 * 896**2 + 2 * 896 * 128 + 896 + 2 * 128 + 3 * 896 * 4864 + 2 * 896)
    + 896,
    # Two matrices before the gate; no biases; no norm before the first attention.
    "answerdotai/ModernBERT-base": 50_368 * 768
    + 22 * (4 * 768**2 + 3 * 768 * 1152 + 2 * 768)
    + 768,
}


@pytest.mark.parametrize("name", TOTALS)
def test_weights_of_published_backbones_add_up(name: str) -> None:
    assert KNOWN_SHAPES[name].parameters == TOTALS[name]
