"""Heads that start from the names of the classes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from models import build_model, random_vectors, small_backbone, task_model

from fedpeft.errors import UserError
from fedpeft.experiment.config import Experiment
from fedpeft.heads import Head, Labelled, LowRank
from fedpeft.heads.states import LOGIT, label_weights
from fedpeft.runtime import Runtime

LABELS = tuple(f"{word}_{other}" for word in ("good", "bad", "the") for other in ("a", "of", "is"))
SYNTHETIC = ["backbone=tiny", "method.d=8", "task.train_limit=8", "head.labels=true"]


def labelled(representation: str, labels: tuple[str, ...] = LABELS) -> Labelled:
    return Labelled(LowRank(len(labels), 24, 2), labels, representation)


@pytest.mark.parametrize("family", ["bert", "roberta"])
@pytest.mark.parametrize("representation", ["mask", "cls", "mean", "unit"])
def test_a_labels_weights_are_its_centered_representation(family: str, representation: str) -> None:
    """The oracle runs transformers' model on one label at a time."""
    backbone = small_backbone(family)
    tokenizer, read = backbone.tokenizer, []
    for label in LABELS:
        text = label.replace("_", " ")
        text += f" {tokenizer.mask_token}" if representation == "mask" else ""
        tokens = tokenizer(text, return_tensors="pt")
        with torch.no_grad():
            (states,) = backbone.model(**tokens).last_hidden_state
        place = (tokens["input_ids"][0] == tokenizer.mask_token_id).int().argmax()
        mean = states.mean(0)
        one = {"mask": states[place], "cls": states[0], "mean": mean}
        one["unit"] = mean * (24**0.5 / mean.norm())
        read.append(one[representation])
    centered = torch.stack(read) - torch.stack(read).mean(0)
    actual = label_weights(labelled(representation), backbone)
    assert (centered * actual).sum(1).mean() == pytest.approx(LOGIT)
    expected = centered * (actual.norm() / centered.norm())
    torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-9)


def test_more_labels_than_a_pass_takes_change_no_row() -> None:
    backbone = small_backbone("bert")
    many = label_weights(labelled("mean", LABELS * 8), backbone)
    few = label_weights(labelled("mean"), backbone)
    torch.testing.assert_close(many, few.repeat(8, 1), rtol=1e-9, atol=1e-9)


def test_the_weights_start_as_those_of_the_labels() -> None:
    backbone = small_backbone("bert")
    weights = labelled("mean")
    method = build_model(backbone, "slash").method
    model = task_model(backbone, method, Head("classes", weights))
    start = torch.from_numpy(model.parameters.initial(0))[None]
    fixed = label_weights(weights, backbone)
    torch.testing.assert_close(model.realise(start).head_weight[0], fixed, rtol=0, atol=1e-12)
    vectors = random_vectors(model, 2)
    values, realised = model.layout.unpack(vectors), model.realise(vectors)
    expected = values["head.a"] @ values["head.b"] + values["head.scale"][:, :, None] * fixed
    torch.testing.assert_close(realised.head_weight, expected, rtol=0, atol=1e-12)


def test_layout_and_digests_do_not_depend_on_the_labels() -> None:
    runtime = Runtime(Experiment.load("", SYNTHETIC))
    renamed = replace(runtime.info, labels=("one", "other"))
    other = Runtime(runtime.experiment, known=renamed)
    assert runtime.parameters.layout.digest == other.parameters.layout.digest
    assert runtime.parameters.projection_digest == other.parameters.projection_digest
    assert runtime.plan["labels"] != other.plan["labels"]  # the handshake compares the names
    assert runtime.parameters.layout.named("head") == ["head.weight", "head.scale", "head.bias"]


def test_a_score_has_no_labels() -> None:
    runtime = Runtime(Experiment.load("", [*SYNTHETIC, "task.name=synthetic/similarity"]))
    with pytest.raises(UserError, match=r"head.labels = true: a score has no classes"):
        _ = runtime.parameters
