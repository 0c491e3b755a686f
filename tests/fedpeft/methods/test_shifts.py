"""SLaSh and JR-WARP against the equations of Gupta et al. 2023, and the bare encoder."""

from __future__ import annotations

import pytest
import torch
from literal import (
    Params,
    Seen,
    assert_literal,
    at_text,
    both_batches,
    engine_states,
    literal_encoder,
)
from models import batch_of, build_model, random_vectors
from torch import Tensor

from fedpeft.backbones.loading import Backbone
from fedpeft.model import TaskModel

PLACES = {"output": "ffn_out", "intermediate": "ffn_mid", "attention": "attn_norm"}


def matrices(model: TaskModel) -> list[Tensor]:
    """Return W of every projection, with entries of variance 1/d."""
    projections = model.method.projections()
    return [
        torch.from_numpy(p.transposed().T.copy()).double() / p.columns**0.5 for p in projections
    ]


def test_without_modifications_the_literal_encoder_is_the_backbone(encoder: Backbone) -> None:
    model = build_model(encoder, "linear")
    for batch in both_batches(model):
        texts = batch.input_ids, batch.attention_mask, batch.token_type_ids
        expected = at_text(literal_encoder(encoder.model, *texts), batch.attention_mask)
        actual = engine_states(model, random_vectors(model, 1), batch)
        torch.testing.assert_close(actual, expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("position", PLACES)
@pytest.mark.parametrize("init", ["normal", "uniform", "zeros"])
def test_slash_shifts_by_the_projections_of_z(encoder: Backbone, position: str, init: str) -> None:
    model = build_model(encoder, "slash", d=9, position=position, init=init)

    def written(params: Params) -> dict[str, object]:
        def change(site: str, layer: int, hidden: Tensor, seen: Seen) -> Tensor:
            z_l = matrices(model)[layer] @ params["z"]
            return hidden + z_l if site == PLACES[position] else hidden

        return {"change": change}

    assert_literal(model, written, scale=1.0)


@pytest.mark.parametrize(
    ("layers", "chosen"), [("1-2", [1, 2]), ("2, 0", [0, 2]), ([1], [1]), ("upper half", [1, 2])]
)
def test_slash_shifts_the_selected_blocks(
    small: Backbone, layers: object, chosen: list[int]
) -> None:
    model = build_model(small, "slash", d="max", layers=layers)
    assert model.method.d == 24 * len(chosen)

    def written(params: Params) -> dict[str, object]:
        shifts = dict(zip(chosen, [W @ params["z"] for W in matrices(model)], strict=True))

        def change(site: str, layer: int, hidden: Tensor, seen: Seen) -> Tensor:
            return hidden + shifts[layer] if site == "ffn_out" and layer in shifts else hidden

        return {"change": change}

    assert_literal(model, written, scale=1.0)


def test_slash_projection_of_a_block_does_not_depend_on_the_selection(small: Backbone) -> None:
    every = build_model(small, "slash", d=9).method.projections()
    last = build_model(small, "slash", d=9, layers="2").method.projections()
    assert last == [every[2]]


def test_slash_with_identity_shifts_by_z_itself(small: Backbone) -> None:
    model = build_model(small, "slash", d=24, init="identity")
    vectors = random_vectors(model, 2)
    shifts = model.realise(vectors).modifications
    assert len(shifts) == 3
    assert all(torch.equal(shift.value, vectors[:, :24]) for shift in shifts)


@pytest.mark.parametrize("length", [1, 3])
def test_jr_warp_moves_a_prompt_through_the_blocks(encoder: Backbone, length: int) -> None:
    model = build_model(encoder, "jr_warp", d=9, length=length)

    def written(params: Params) -> dict[str, object]:
        first, *later = [(W @ params["z"]).view(length, 24) for W in matrices(model)]

        def before_the_next_block(site: str, layer: int, hidden: Tensor, seen: Seen) -> Tensor:
            if site != "ffn_norm" or layer == len(later):
                return hidden
            return torch.cat([hidden[:, :length] + later[layer], hidden[:, length:]], dim=1)

        return {"change": before_the_next_block, "prompt": first}

    assert_literal(model, written, scale=1.0)


def test_jr_warp_reads_the_mask_after_the_prompt(small: Backbone) -> None:
    batch = batch_of(small, 1, 4, "mask")
    right = build_model(small, "jr_warp", d=4, length=2)
    original = build_model(small, "jr_warp", d=4, length=2, reference_compat=True)
    realised = right.realise(random_vectors(right, 1))
    hidden, _ = right.hidden_states(realised.modifications, batch)
    for model, offset in ((right, 2), (original, 0)):
        read = hidden[torch.arange(4), batch.read + offset]
        expected = read @ realised.head_weight[0].T + realised.head_bias[0]
        torch.testing.assert_close(model.outputs(realised, batch), expected, rtol=0, atol=1e-12)
