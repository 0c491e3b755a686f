"""Whether torch.compile pays: gradients of a step compiled beside the same as they are.

The whole forward pass of a step is compiled, hooks and realisation included, for any length of
text (``dynamic=True``). The gradients of both must agree, else the script fails. Start-up is what
the first steps of every length take longer than later ones; fedpeft does not compile, and has to
only where the gain of a run's steps is clearly above that.

Example:
    python -m simulations.benchmarks.compiled
    python -m simulations.benchmarks.compiled --backbone roberta-base --device cuda
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median

import numpy as np
import torch
from torch import Tensor

from fedpeft.config import Experiment
from fedpeft.model import TaskModel
from fedpeft.runtime import runtime_of
from fedpeft.tasks.batching import Batch, collate
from fedpeft.tasks.encoding import Encoded
from simulations.benchmarks.common import (
    Report,
    alternate,
    arguments_of,
    compare,
    record,
    script,
    slash_d,
    timed,
)

SAME = 1e-3  # most that the gradients may differ, relative
Gradient = Callable[[Batch], Tensor]


def batches_of(model: TaskModel, options: Namespace) -> list[Batch]:
    """Return a batch of random texts of each of the lengths."""
    draw, found = np.random.default_rng(0), []
    rows, vocabulary = options.batch, model.backbone.shape.vocabulary
    for tokens in options.tokens:
        texts = Encoded(
            draw.integers(5, vocabulary - 1, rows * tokens).astype(np.int32),
            np.zeros(rows * tokens, np.uint8),
            np.arange(rows + 1) * tokens,
            np.full(rows, -1, np.int32),
            draw.integers(0, 2, rows),
        )
        device = model.backbone.device
        found.append(collate([texts], [np.arange(rows)], 1, device, model.dtype))
    return found


def gradients_of(model: TaskModel, backend: str | None) -> Gradient:
    """Return what computes a step's gradient [1, P], compiled unless ``backend`` is None."""
    start = torch.from_numpy(model.initial(0))[None].to(model.backbone.device)

    def loss(vectors: Tensor, batch: Batch) -> Tensor:
        return model.losses(model.outputs(model.realise(vectors), batch), batch).sum()

    forward = torch.compile(loss, dynamic=True, backend=backend) if backend else loss

    def gradient(batch: Batch) -> Tensor:
        leaf = start.clone().requires_grad_()
        return torch.autograd.grad(forward(leaf, batch), leaf)[0].cpu()  # waits for the device

    return gradient


def milliseconds(gradient: Gradient, batch: Batch) -> float:
    """Return how long a step's gradient takes."""
    return timed(partial(gradient, batch))[0].wall * 1e3


def measure(backbone: str, options: Namespace) -> Report:
    """Time both on one backbone.

    Raises:
        SystemExit: their gradients differ.
    """
    overrides = [
        f"backbone={backbone}",
        f"method.d={slash_d(backbone)}",
        "task.train_limit=16",
        "task.eval_limit=8",
        f"engine.device={options.device}",
        f"engine.autocast={options.autocast}",
        f"engine.threads={options.threads}",
    ]
    model = runtime_of(Experiment.load("", overrides).to_toml()).model
    plain, compiled = gradients_of(model, None), gradients_of(model, options.backend)
    batches = batches_of(model, options)
    first: dict[str, list[float]] = {"plain": [], "compiled": []}
    for batch in batches:
        took, expected = timed(partial(plain, batch))
        slow, found = timed(partial(compiled, batch))
        first["plain"].append(took.wall)
        first["compiled"].append(slow.wall)
        apart = float((found - expected).norm() / expected.norm())
        if not apart <= (SAME if options.autocast == "off" else 100 * SAME):
            raise SystemExit(f"compiled gradients are {apart:.2g} apart: not the same")
    table, raw = [], {"first steps": first}
    gains = []
    for tokens, batch in zip(options.tokens, batches, strict=True):
        both = alternate(
            partial(milliseconds, plain, batch),
            partial(milliseconds, compiled, batch),
            options.repeats,
        )
        table.append(
            compare(f"{options.batch} x {tokens} tokens", ("plain ms", "compiled ms"), *both)
        )
        raw[f"{tokens} tokens"] = dict(zip(("plain", "compiled"), both, strict=True))
        gains.append((median(both[0]) - median(both[1])) / 1e3)
    start_up, gain = sum(first["compiled"]) - sum(first["plain"]), float(np.mean(gains))
    facts = {
        "ratio": "plain / compiled, of each pair of steps",
        "start-up s": round(start_up, 1),
        "steps until it has paid": round(start_up / gain) if gain > 0 else "never",
    }
    return Report({"repeats": options.repeats, "overrides": " ".join(overrides)}, table, facts, raw)


def main(arguments: Sequence[str] | None = None) -> list[Report]:
    """Run the benchmark from its command line."""
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = arguments_of(__doc__)
    parser.add_argument("--backbone", nargs="+", default=["tiny", "minilm"])
    parser.add_argument("--batch", type=int, default=16, help="texts of a step (16)")
    parser.add_argument("--tokens", type=int, nargs="+", default=[16, 24, 64], help="of the texts")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--autocast", default="off", choices=["off", "bfloat16"])
    parser.add_argument("--threads", type=int, default=0, help="0 = all cores")
    parser.add_argument("--backend", default="inductor", help="of torch.compile (inductor)")
    options = parser.parse_args(arguments)
    reports = []
    for backbone in options.backbone:
        reports.append(measure(backbone, options))
        record("compiled", f"{backbone}, {options.device}", reports[-1], arguments, options.results)
    return reports


if __name__ == "__main__":
    script(main)
