"""Write the folder that all sides of ``peers`` read (see ``peer_model``)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from math import sqrt
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from clients.data.partitioning import partition
from fedpeft.experiment.config import Experiment
from fedpeft.projection import Projection
from fedpeft.randomness import When
from fedpeft.runtime import Runtime, runtime_of
from fedpeft.training import plan_batches


def save_backbone(name: str, folder: Path) -> None:
    """Write a backbone's weights and tokenizer in the form that every side reads."""
    backbone = runtime_of(Experiment.load("", [f"backbone={name}"])).backbone
    backbone.model.save_pretrained(folder)
    backbone.tokenizer.save_pretrained(folder)


def prepare(overrides: Sequence[str], folder: Path) -> np.ndarray:
    """Write the files that ``peer_model`` reads; return the initial vector [P]."""
    experiment = Experiment.load("", overrides)
    runtime = runtime_of(experiment)
    start, layout = runtime.parameters.initial(experiment.seed), runtime.model.layout
    fixed = [w for w in runtime.model.method.projections() if isinstance(w, Projection)]
    d, classes = fixed[0].columns, runtime.info.classes
    z, weight, bias = np.split(start, [d, layout.size - classes])
    arrays = {f"W{k}": w.transposed() / np.float32(sqrt(d)) for k, w in enumerate(fixed)}
    arrays |= {"z": z, "weight": weight.reshape(classes, -1), "bias": bias}
    texts = runtime.train
    arrays |= {"tokens": texts.tokens, "offsets": texts.offsets, "labels": texts.labels}
    save_file(
        {name: np.ascontiguousarray(array) for name, array in arrays.items()},
        folder / "arrays.safetensors",
    )
    local, federation = experiment.local, experiment.federation
    settings = {
        "lr": local.lr,
        "max_grad_norm": local.max_grad_norm,
        "batch": local.batch_size,
        "clients": federation.clients,
        "rounds": federation.rounds,
        "pad_id": runtime.backbone.tokenizer.pad_token_id,
    }
    (folder / "settings.json").write_text(json.dumps(settings))
    (folder / "plan.json").write_text(json.dumps(plan_of(experiment, runtime)))
    return start


def plan_of(experiment: Experiment, runtime: Runtime) -> list[list[list[list[int]]]]:
    """Return the engine's batches of example indices, [round][client][step]."""
    owned = partition(runtime.task, experiment)
    rounds = experiment.federation.rounds
    return [
        [
            [
                rows[batch].tolist()
                for batch in plan_batches(
                    client,
                    runtime.train.select(rows),
                    experiment.local,
                    When(experiment.seed, number, rounds),
                )
            ]
            for client, rows in enumerate(owned)
        ]
        for number in range(1, rounds + 1)
    ]
