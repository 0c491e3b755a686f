"""Adapters against the equations of Houlsby, Pfeiffer, He (section 3.3) and Compacter."""

from __future__ import annotations

import copy

import pytest
import torch
from literal import Change, Params, Seen, assert_literal
from models import build_model
from torch import Tensor
from torch.nn.functional import gelu, relu

from fedpeft.backbones.loading import Backbone


def bottleneck(params: Params, at: str, x: Tensor) -> Tensor:
    """f(x W_down) W_up with biases."""
    inner = relu(x @ params[f"{at}.down"].T + params[f"{at}.down_bias"])
    return inner @ params[f"{at}.up"].T + params[f"{at}.up_bias"]


def test_houlsby_is_sequential_before_both_residuals(encoder: Backbone) -> None:
    def written(params: Params) -> dict[str, Change]:
        def change(site: str, layer: int, hidden: Tensor, seen: Seen) -> Tensor:
            if site not in ("attn_out", "ffn_out"):
                return hidden
            return hidden + bottleneck(params, f"{layer}.{site}", hidden)

        return {"change": change}

    assert_literal(build_model(encoder, "houlsby"), written)


def test_pfeiffer_applies_the_last_layer_norm_twice(encoder: Backbone) -> None:
    """LN(u + x + f(LN(u + x))), u the FFN's output and x its residual."""

    def written(params: Params) -> dict[str, Change]:
        def change(site: str, layer: int, hidden: Tensor, seen: Seen) -> Tensor:
            if site != "ffn_sum":
                return hidden
            return hidden + bottleneck(params, f"{layer}.ffn_sum", seen["normed_sum"])

        return {"change": change}

    assert_literal(build_model(encoder, "pfeiffer"), written)


PLACES = {"attention": ("heads", "attn_in"), "ffn": ("ffn_out", "attn_norm")}


@pytest.mark.parametrize("position", PLACES)
@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("parallel_adapter", {}),
        ("scaled_parallel_adapter", {"scale": 4.0}),
        ("scaled_parallel_adapter", {"scale": 4.0, "train_scale": True}),
    ],
)
def test_parallel_adapter_reads_the_input_of_its_sub_layer(
    encoder: Backbone, name: str, settings: dict[str, object], position: str
) -> None:
    """The scale, fixed or trained, multiplies the whole up-projection."""
    changed, read = PLACES[position]

    def written(params: Params) -> dict[str, Change]:
        def change(site: str, layer: int, hidden: Tensor, seen: Seen) -> Tensor:
            if site != changed:
                return hidden
            s = params.get(f"{layer}.scale", settings.get("scale", 1.0))
            return hidden + s * bottleneck(params, f"{layer}.{changed}", seen[read])

        return {"change": change}

    model = build_model(encoder, name, bottleneck=3, position=position, **settings)
    assert ("0.scale" in dict(model.layout.entries)) == settings.get("train_scale", False)
    assert_literal(model, written)


def test_multihead_adapter_changes_each_head(encoder: Backbone) -> None:
    """head_i + ReLU(q_i P_k^T) P_v."""

    def written(params: Params) -> dict[str, Change]:
        def change(site: str, layer: int, hidden: Tensor, seen: Seen) -> Tensor:
            if site != "heads":
                return hidden
            heads = []
            for i in range(3):
                part = slice(8 * i, 8 * i + 8)
                keys, values = params[f"{layer}.keys"][:, part], params[f"{layer}.values"][:, part]
                heads.append(hidden[..., part] + relu(seen["q"][..., part] @ keys.T) @ values)
            return torch.cat(heads, dim=-1)

        return {"change": change}

    assert_literal(build_model(encoder, "multihead_parallel_adapter"), written)


def test_mam_is_a_prefix_plus_a_scaled_parallel_adapter(encoder: Backbone) -> None:
    def written(params: Params) -> dict[str, object]:
        def change(site: str, layer: int, hidden: Tensor, seen: Seen) -> Tensor:
            if site != "ffn_out":
                return hidden
            return hidden + 4 * bottleneck(params, f"{layer}.ffn_out", seen["attn_norm"])

        prefix = [(params[f"{i}.prefix_keys"], params[f"{i}.prefix_values"]) for i in range(3)]
        return {"change": change, "prefix": prefix}

    assert_literal(build_model(encoder, "mam", length=3, bottleneck=5, scale=4.0), written)


def kronecker_sum(rule: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """sum_i A_i (x) (s_i t_i)."""
    return sum(torch.kron(A, s @ t) for A, s, t in zip(rule, left, right, strict=True))


@pytest.mark.parametrize("layer_norms", [False, True])
@pytest.mark.parametrize("plus_plus", [False, True])
@pytest.mark.parametrize("rank", [1, 2])
def test_compacter_is_an_adapter_of_kronecker_sums(
    encoder: Backbone, rank: int, plus_plus: bool, layer_norms: bool
) -> None:
    sites = ["ffn_out"] if plus_plus else ["attn_out", "ffn_out"]
    norms = {"attn_norm": "attention.output", "ffn_norm": "output"}

    def written(params: Params) -> dict[str, object]:
        def change(site: str, layer: int, hidden: Tensor, seen: Seen) -> Tensor:
            if site not in sites:
                return hidden
            at = f"{layer}.{site}"
            down, up = (
                kronecker_sum(
                    params["rule"], params[f"{at}.{name}_left"], params[f"{at}.{name}_right"]
                )
                for name in ("down", "up")
            )
            assert down.shape == (4, 24) and up.shape == (24, 4)
            inner = gelu(hidden @ down.T + params[f"{at}.down_bias"])
            return hidden + inner @ up.T + params[f"{at}.up_bias"]

        other = copy.deepcopy(encoder.model)
        places = {"0.embed_norm": "embeddings"}
        for i in range(3):
            places |= {f"{i}.{site}": f"encoder.layer.{i}.{path}" for site, path in norms.items()}
        for at, path in places.items() if layer_norms else ():
            norm = other.get_submodule(f"{path}.LayerNorm")
            norm.weight += params[f"{at}.gain"]
            norm.bias += params[f"{at}.bias"]
        return {"change": change, "model": other}

    settings = {"plus_plus": plus_plus, "layer_norms": layer_norms, "rank": rank}
    model = build_model(encoder, "compacter", n=2, reduction=6, **settings)
    assert_literal(model, written, scale=0.7)
