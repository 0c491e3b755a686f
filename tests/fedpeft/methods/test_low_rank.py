"""LoRA, VeRA and Uni-LoRA against a literal forward; two task vectors in a batch."""

from __future__ import annotations

import pytest
import torch
from literal import Change, Params, Seen, assert_literal
from models import build_model
from torch import Tensor

from fedpeft.backbones.loading import Backbone
from fedpeft.methods.lora import low_rank_shapes

#: What the matrix at each site reads.
READS = {
    "q": "attn_in",
    "k": "attn_in",
    "v": "attn_in",
    "attn_out": "heads",
    "ffn_mid": "attn_norm",
    "ffn_out": "ffn_in",
}


def low_rank(params: Params, sites: tuple[str, ...], scale: float) -> Change:
    """h + scale * B A x."""

    def change(site: str, layer: int, hidden: Tensor, seen: Seen) -> Tensor:
        if site not in sites:
            return hidden
        down, up = params[f"{layer}.{site}.A"], params[f"{layer}.{site}.B"]
        return hidden + scale * seen[READS[site]] @ down.T @ up.T

    return change


@pytest.mark.parametrize(
    ("settings", "sites"),
    [
        ({}, ("q", "v")),
        ({"sites": "q,v"}, ("q", "v")),
        ({"sites": ["ffn"]}, ("ffn_mid", "ffn_out")),
        ({"sites": "o, q"}, ("q", "attn_out")),
        ({"sites": ["k", "q", "ffn", "o", "v"]}, tuple(READS)),
    ],
)
def test_lora_matches_its_equation(
    encoder: Backbone, settings: dict[str, object], sites: tuple[str, ...]
) -> None:
    model = build_model(encoder, "lora", rank=3, alpha=12.0, **settings)
    assert model.method.sites == sites
    assert_literal(model, lambda params: {"change": low_rank(params, sites, 4.0)})


def test_vera_matches_its_equation(encoder: Backbone) -> None:
    """h + b * (B (d * (A x))), one A and one B for all blocks."""
    model = build_model(encoder, "vera", rank=5)
    down, up = (
        torch.from_numpy(p.transposed().T.copy()).double() * (2 / p.columns) ** 0.5
        for p in model.method.projections()
    )
    assert down.shape == (5, 24) and up.shape == (24, 5)

    def written(params: Params) -> dict[str, Change]:
        def change(site: str, layer: int, hidden: Tensor, seen: Seen) -> Tensor:
            if site not in ("q", "v"):
                return hidden
            d, b = params[f"{layer}.{site}.d"], params[f"{layer}.{site}.b"]
            return hidden + b * ((d * (seen["attn_in"] @ down.T)) @ up.T)

        return {"change": change}

    assert_literal(model, written, scale=1.0)


def test_uni_lora_matches_its_equation(encoder: Backbone) -> None:
    """Entry k of the concatenated matrices is theta[j_k] / sqrt(count of j_k)."""
    model = build_model(encoder, "uni_lora", rank=2, d=40)
    (selection,) = model.method.projections()
    picked = selection.picked().tolist()
    shapes = low_rank_shapes(encoder.shape.places(("q", "v")), 2, encoder.shape)

    def written(params: Params) -> dict[str, Change]:
        entries = [params["theta"][j] / picked.count(j) ** 0.5 for j in picked]
        matrices = {}
        for name, (rows, columns) in shapes.items():
            matrices[name] = torch.stack(entries[: rows * columns]).view(rows, columns)
            del entries[: rows * columns]
        assert not entries
        return {"change": low_rank(matrices, ("q", "v"), 1.0)}

    assert_literal(model, written, scale=3.0)
