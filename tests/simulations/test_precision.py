"""Lower precision inside the backbone: what stays in float32, and that a run learns the same."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedpeft.backbones.lowered import lowered
from fedpeft.experiment.config import Experiment
from fedpeft.runs.folder import RunFolder
from fedpeft.runtime import runtime_of

Quick = Callable[..., Experiment]
Run = Callable[..., tuple[RunFolder, dict[str, Any]]]


@pytest.mark.parametrize("method", ["slash", "lora"])
def test_products_are_in_bfloat16_and_all_else_is_not(quick: Quick, method: str) -> None:
    toml = quick("engine.autocast=bfloat16").to_toml()
    runtime = runtime_of(Experiment.load(toml, [f"method.name={method}"]))
    model = runtime.model
    seen: dict[str, set[torch.dtype]] = defaultdict(set)

    def note(module: torch.nn.Module, inputs: object, output: torch.Tensor) -> None:
        seen[type(module).__name__].add(output.dtype)

    lowest = lowered(model.backbone, torch.bfloat16)
    leaves = [layer for layer in lowest.modules() if not [*layer.children()]]
    handles = [layer.register_forward_hook(note) for layer in leaves]
    try:
        batch = model.collate([runtime.train], [np.arange(4)])
        vectors = torch.from_numpy(model.parameters.initial(0))[None].to(model.backbone.device)
        gradients, losses = model.gradients(vectors, batch)
    finally:
        for handle in handles:
            handle.remove()
    assert seen["Linear"] >= {torch.bfloat16}
    assert seen["LayerNorm"] == seen["Embedding"] == {torch.float32}
    assert gradients.dtype == losses.dtype == torch.float32
    realised = model.realise(vectors)
    tensors = [t for change in realised.modifications for t in change.tensors().values()]
    head = [realised.head_weight, realised.head_bias]
    assert {tensor.dtype for tensor in [*tensors, *head]} == {torch.float32}


def test_a_run_in_bfloat16_learns_what_one_in_float32_does(
    quick: Quick, run: Run, final_vector: Callable[[Path], np.ndarray]
) -> None:
    settings = ("method.d=64", "local.lr=0.02", "local.epochs=2", "federation.rounds=6")
    folders, results = zip(
        *(run(quick(*settings, f"engine.autocast={a}"), a) for a in ("off", "bfloat16")),
        strict=True,
    )
    exact, coarse = (final_vector(folder.path) for folder in folders)
    start = runtime_of(quick(*settings)).parameters.initial(0)
    apart = np.linalg.norm(coarse - exact) / np.linalg.norm(exact - start)
    assert 0 < apart < 0.25, apart
    losses = [[line["loss"] for line in folder.rounds()] for folder in folders]
    assert losses[0][-1] < 0.9 * losses[0][0]  # it did learn
    assert losses[1] == pytest.approx(losses[0], rel=0.05)
    assert abs(results[0]["score"] - results[1]["score"]) <= 0.075  # three of forty examples
