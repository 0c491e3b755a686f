"""Prefix tuning against attention over [P_k, K] and [P_v, V]."""

from __future__ import annotations

import torch
from literal import Params, assert_literal
from models import build_model

from fedpeft.backbones.loading import Backbone


def test_prefix_is_prepended_to_keys_and_values(encoder: Backbone) -> None:
    def written(params: Params) -> dict[str, object]:
        blocks = range(encoder.shape.layers)
        return {
            "prefix": [(params[f"{i}.prefix_keys"], params[f"{i}.prefix_values"]) for i in blocks]
        }

    assert_literal(build_model(encoder, "prefix", length=3), written, scale=1.0)


def test_mlp_generates_the_prefix_of_all_blocks(encoder: Backbone) -> None:
    """embedding -> hidden -> tanh -> 2 L width, as in the code of He et al.: k_0 v_0 k_1 v_1 ..."""

    def written(params: Params) -> dict[str, object]:
        inner = torch.tanh(params["embedding"] @ params["hidden.weight"].T + params["hidden.bias"])
        flat = inner @ params["out.weight"].T + params["out.bias"]  # [l, 2 L width]
        parts = [flat[:, 24 * i : 24 * i + 24] for i in range(6)]
        return {"prefix": list(zip(parts[0::2], parts[1::2], strict=True))}

    assert_literal(build_model(encoder, "prefix", length=3, hidden=5), written, scale=1.0)
