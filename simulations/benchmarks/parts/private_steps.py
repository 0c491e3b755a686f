"""Steps compared by the privacy benchmark, from rows of a client's data to a new vector.

Every step of a method starts from the same task vector and has a separate optimizer and vector.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedpeft.batches.batch import Batch
from fedpeft.experiment.config import Experiment
from fedpeft.optimization.gradients import mean_gradients
from fedpeft.optimization.optimizers import build_optimizer, clip_rows
from fedpeft.privacy.accounting import Mechanism
from fedpeft.privacy.dpsgd import DPSGD, clipped_sums, private_gradients
from fedpeft.privacy.noise import Noise, SeededNoise
from fedpeft.randomness import When, generator
from fedpeft.runtime import Runtime
from fedpeft.training import train_cohort
from simulations.benchmarks.common import slash_d, timed
from simulations.benchmarks.parts.random_roberta import backbone_of

SAME = 1e-4  # largest relative difference of Opacus's gradients from fedpeft's

#: Argument: indices of the examples of a batch.
Step = Callable[[np.ndarray], object]


def experiment_of(name: str, examples: int, options: argparse.Namespace) -> Experiment:
    """Return the experiment of one method, for one client with so many examples."""
    task = ["task.name=sst2", f"task.path={options.glue}"] if options.glue else []
    d = slash_d(options.backbone)
    extra = {"slash": [f"method.d={d}"], "jr_warp": [f"method.d={64 if d == 'max' else d}"]}
    device = f"engine.device={options.device}"
    fixed = ["representation=mean", "engine.threads=1", device, "task.eval_limit=16"]
    return Experiment.load(
        "",
        [
            f"backbone={backbone_of(options.backbone)}",
            *task,
            f"method.name={name}",
            *extra.get(name, []),
            *fixed,
            f"task.train_limit={examples}",
        ],
    )


def settings_of(options: argparse.Namespace) -> dict[str, Any]:
    """Return the settings of a report."""
    return {
        "backbone": options.backbone,
        "task": "sst2" if options.glue else "synthetic/sentiment",
        "device": options.device,
        "physical batch": options.batch,
        "torch threads": 1,
        "repeats": options.repeats,
    }


def start_of(runtime: Runtime) -> Tensor:
    """Return a task vector [1, P] where no gradient is zero, as LoRA's are at its start."""
    draw = generator(runtime.experiment.seed, "benchmark-start")
    start = runtime.parameters.initial(runtime.experiment.seed)
    moved = start + 0.02 * draw.standard_normal(start.shape, start.dtype)
    return torch.from_numpy(moved)[None].to(runtime.backbone.device)


def synchronize() -> None:
    """Wait for what was queued on a GPU."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def batch_of(runtime: Runtime, rows: np.ndarray) -> Batch:
    """Return some of the client's examples as a batch."""
    model = runtime.model
    return model.collate([runtime.train], [rows])


def plain_step(runtime: Runtime) -> Step:
    """Return a step without privacy, as ``fedpeft.training`` does it."""
    vectors, local = start_of(runtime), runtime.experiment.local
    optimizer, rates = build_optimizer(local, vectors), [local.lr or 0.0]
    model, data, total = runtime.model, [runtime.train], torch.empty_like(vectors)

    def step(rows: np.ndarray) -> None:
        gradients, _ = mean_gradients(model, vectors, data, [rows], total)
        optimizer.step(vectors, clip_rows(gradients, local.max_grad_norm), rates)

    return step


def how(runtime: Runtime, noise: Noise, batch: int, expected: int) -> DPSGD:
    """Return DP-SGD with clip 1 and noise multiplier 1, in physical batches of ``batch``."""
    mechanism = Mechanism(1.0, expected / len(runtime.train), 1)
    return DPSGD(mechanism, 1.0, "flat", batch, noise)


def private_step(runtime: Runtime, private: DPSGD) -> Step:
    """Return a step of DP-SGD, as ``fedpeft.training`` does it."""
    vectors, local, model = start_of(runtime), runtime.experiment.local, runtime.model
    optimizer, rates = build_optimizer(local, vectors), [local.lr or 0.0]

    def step(rows: np.ndarray) -> None:
        gradients = private_gradients(model, vectors, [runtime.train], [rows], [private])
        optimizer.step(vectors, gradients, rates)

    return step


def training(
    runtime: Runtime, batch: int, noise: Noise | None = None, steps: int = 8
) -> Callable[[], float]:
    """Return a function that times local training, with its own batches, in seconds per step."""
    local = runtime.experiment.local.model_copy(update={"steps": steps, "batch_size": batch})
    start, data = start_of(runtime).cpu().numpy(), [runtime.train]
    private = None
    if noise:
        mechanism = Mechanism(1.0, batch / len(runtime.train), steps)
        private = [DPSGD(mechanism, 1.0, "flat", batch, noise)]

    def call() -> float:
        timing, _ = timed(
            lambda: train_cohort(runtime.model, start, data, [0], local, When(0, 1, 1), private)
        )
        return timing.wall / steps

    return call


def virtual_batch(runtime: Runtime, private: DPSGD) -> Step:
    """Return the gradient of a DP-SGD step, without an optimizer and its state."""
    vectors, model = start_of(runtime), runtime.model
    return lambda rows: private_gradients(model, vectors, [runtime.train], [rows], [private])


def physical_batch(runtime: Runtime, private: DPSGD) -> Step:
    """Return the clipped and summed gradients of one physical batch."""
    vectors, model = start_of(runtime), runtime.model
    return lambda rows: clipped_sums(
        model.example_gradients(vectors, batch_of(runtime, rows))[0], len(vectors), private
    )


def seeded(runtime: Runtime) -> Noise:
    """Return the reproducible noise."""
    return SeededNoise(generator(runtime.experiment.seed, "benchmark-noise"))


def opacus_step(runtime: Runtime, rows: np.ndarray) -> tuple[Step, float]:
    """Return Opacus's step, and the relative difference of its gradients on ``rows``.

    Raises:
        SystemExit: too far.
    """
    from simulations.benchmarks.parts.opacus_step import OpacusStep

    model, start = runtime.model, start_of(runtime)
    other = OpacusStep(model, start[0], len(rows), runtime.experiment.local.lr or 0.0)
    batch = batch_of(runtime, rows)
    expected, actual = model.example_gradients(start, batch)[0], other.example_gradients(batch)
    apart = float((actual - expected).norm() / expected.norm())
    if not apart <= SAME:
        name = runtime.experiment.method.name
        raise SystemExit(f"{name}: Opacus's gradients are {apart:.2g} apart: not the same")
    return lambda rows: other.step(batch_of(runtime, rows)), apart
