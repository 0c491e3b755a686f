"""Initial parameters on roberta-base follow the distributions of the papers and their code."""

from __future__ import annotations

from math import sqrt

import numpy as np
import pytest

from fedpeft.backbones.known import KNOWN_SHAPES
from fedpeft.methods import REGISTRY, build_method, settings_for

#: Where He et al., Li and Liang draw a weight: N(0, 0.02).
BERT = ("normal", 0.02)
ZERO = ("constant", 0.0)

#: (method, settings, {end of a parameter's name: (distribution, deviation, bound or value)}).
EXPECTED: list[tuple[str, dict[str, object], dict[str, tuple[str, float]]]] = [
    ("linear", {}, {}),
    ("slash", {"d": 4096}, {"z": ("normal", 1 / sqrt(4096))}),
    ("slash", {"d": 4096, "init": "uniform"}, {"z": ("uniform", sqrt(3 / 4096))}),
    ("slash", {"d": 4096, "init": "zeros"}, {"z": ZERO}),
    ("slash", {"d": 768, "init": "identity"}, {"z": ("normal", 1 / sqrt(768))}),
    ("jr_warp", {"d": 4096}, {"z": ("normal", 1 / sqrt(4096))}),
    ("jr_warp", {"d": 4096, "init": "uniform"}, {"z": ("uniform", sqrt(3 / 4096))}),
    ("prompt", {}, {"prompt": BERT}),
    ("prompt", {"placement": "template"}, {"prompt": ZERO}),
    ("prefix", {}, {"keys": BERT, "values": BERT}),
    ("prefix", {"hidden": 80}, {"embedding": BERT, "weight": BERT, "bias": ZERO}),
    ("bitfit", {}, {"": ZERO}),
    # Kaiming-uniform with a = sqrt 5: bound 1 / sqrt(inputs).
    ("lora", {"rank": 4}, {"A": ("uniform", 1 / sqrt(768)), "B": ZERO}),
    ("lora", {"rank": 4, "sites": "ffn"}, {"ffn_out.A": ("uniform", 1 / sqrt(3072)), "B": ZERO}),
    ("vera", {}, {"d": ("constant", 0.1), "b": ZERO}),
    ("vera", {"d_initial": 1e-7}, {"d": ("constant", 1e-7), "b": ZERO}),
    ("uni_lora", {"d": 5000}, {"theta": ("uniform", 0.02)}),
    ("houlsby", {}, {"down": BERT, "up": BERT, "bias": ZERO}),
    ("pfeiffer", {}, {"down": BERT, "up": BERT, "bias": ZERO}),
    ("parallel_adapter", {}, {"down": BERT, "up": BERT, "bias": ZERO}),
    (
        "scaled_parallel_adapter",
        {"train_scale": True, "scale": 4.0},
        {
            "down": ("uniform", 1 / sqrt(768)),
            "up": ZERO,
            "bias": ZERO,
            "scale": ("constant", 4.0),
        },
    ),
    ("multihead_parallel_adapter", {}, {"keys": BERT, "values": BERT}),
    (
        "mam",
        {},
        {
            "keys": BERT,
            "values": BERT,
            "down": ("uniform", 1 / sqrt(768)),
            "up": ZERO,
            "bias": ZERO,
        },
    ),
    (
        "compacter",
        {"n": 8, "reduction": 32, "layer_norms": True},
        {
            "rule": ("normal", 0.01),
            "down_left": ("uniform", sqrt(12 / (24 / 8 + 1))),  # Glorot with gain sqrt 2
            "down_right": ("uniform", sqrt(12 / (1 + 768 / 8))),
            "up_left": ("uniform", sqrt(12 / (768 / 8 + 1))),
            "up_right": ("uniform", sqrt(12 / (1 + 24 / 8))),
            "bias": ZERO,
            "gain": ZERO,
        },
    ),
    ("said", {}, {"theta": ZERO, "lambda": ("constant", 1.0)}),
    ("full", {}, {"": ZERO}),
]


@pytest.mark.parametrize(("name", "settings", "expected"), EXPECTED)
def test_initial_values_follow_the_papers(
    name: str, settings: dict[str, object], expected: dict[str, tuple[str, float]]
) -> None:
    shape = KNOWN_SHAPES["tiny" if name == "full" else "roberta-base"]
    method = build_method(settings_for({"name": name, **settings}), shape, seed=0)
    start = method.initial(np.random.default_rng(0))
    assert list(start) == list(method.parameters())
    for end, (distribution, size) in expected.items():
        parts = [value.reshape(-1) for key, value in start.items() if key.endswith(end)]
        values = np.concatenate(parts)
        if distribution == "constant":
            assert (values == size).all(), end
            continue
        assert abs(values.mean()) < 5 * size / sqrt(len(values)), end
        if distribution == "normal":
            close = 5 / sqrt(len(values))
            assert values.std() == pytest.approx(size, rel=close), end
            assert abs(values).max() > 2 * size, end
        else:
            assert abs(values).max() == pytest.approx(size, rel=0.02), end
            assert abs(values).max() <= size, end
            assert values.std() == pytest.approx(size / sqrt(3), rel=0.05), end


def test_every_method_has_an_initial_value_case() -> None:
    assert {name for name, *_ in EXPECTED} == set(REGISTRY)


@pytest.mark.parametrize(
    ("name", "defaults"),
    [
        ("slash", {"d": 1024, "position": "output", "layers": "all", "init": "normal"}),
        ("lora", {"rank": 1, "alpha": 8.0, "sites": ("q", "v")}),
        ("vera", {"rank": 256, "d_initial": 0.1}),
        ("mam", {"length": 16, "bottleneck": 16, "scale": 2.0}),
        ("compacter", {"n": 4, "rank": 1, "reduction": 32, "plus_plus": False}),
        ("scaled_parallel_adapter", {"scale": 2.0, "position": "ffn", "train_scale": False}),
    ],
)
def test_default_settings_equal_the_papers(name: str, defaults: dict[str, object]) -> None:
    """He et al. for GLUE; Compacter's code; VeRA section 4."""
    settings = settings_for({"name": name}).model_dump()
    assert {key: settings[key] for key in defaults} == defaults
