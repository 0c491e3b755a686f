"""What a large device can do: a cohort beside clients one by one, and the share of its peak rate.

Made for a GPU; on a CPU the figures are those of a CPU, and the table says so.

- cohort: clients of 8 examples that take one step, trained together and one after the other, SLaSh
  on a RoBERTa of random weights. The vectors of both must agree, else the script fails.
- rate: floating-point operations a second of SLaSh's steps, counted by torch as they run
  (``FlopCounterMode``), beside those of products of square matrices in the same number format.

Example:
    python -m simulations.benchmarks.throughput --device cuda
    python -m simulations.benchmarks.throughput --sizes tiny tiny --clients 4 --autocast off
"""

from __future__ import annotations

import sys
import tempfile
from argparse import Namespace
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

from fedpeft.runtime import Runtime, runtime_of
from fedpeft.tasks.batching import collate
from fedpeft.training import When, train_cohort
from simulations.benchmarks.common import (
    CLOSE,
    Report,
    Row,
    alternate,
    arguments_of,
    compare,
    difference,
    record,
    script,
    timed,
)
from simulations.benchmarks.parts.random_roberta import (
    SIZES,
    STEPS,
    experiment_of,
    save_backbone,
    texts_of,
)
from simulations.benchmarks.table5 import SAME

EXAMPLES = 8  # of each client
COHORT_TARGET, RATE_TARGET = 5.0, 0.40  # on a GPU: least ratios


def seconds(call: Callable[[], object], device: str, times: int = 1) -> float:
    """Return the seconds of one call, when the device has done its work."""

    def done() -> None:
        for _ in range(times):
            call()
        if device == "cuda":
            torch.cuda.synchronize()

    return timed(done)[0].wall / times


def cohort_row(runtime: Runtime, options: Namespace) -> tuple[Row, Any]:
    """Time a cohort beside the same clients one by one.

    Raises:
        SystemExit: they end in other vectors.
    """
    model, experiment = runtime.model, runtime.experiment
    local = experiment.local.model_copy(update={"steps": 1, "batch_size": EXAMPLES})
    everything, when = texts_of(Namespace(**{**vars(options), "batch": EXAMPLES})), When(0, 1, 1)
    count = len(everything)
    data = [
        everything.select((np.arange(EXAMPLES) + client) % count)
        for client in range(options.clients)
    ]
    start, clients = model.initial(experiment.seed), [*range(options.clients)]

    def together() -> np.ndarray:
        return train_cohort(model, start, data, clients, local, when).vectors

    def serial() -> np.ndarray:
        found = (
            train_cohort(model, start, [own], [client], local, when).vectors
            for client, own in zip(clients, data, strict=True)
        )
        return np.concatenate([*found])

    apart = difference(together(), serial(), np.broadcast_to(start, (len(clients), len(start))))
    if not apart <= max(CLOSE, SAME[options.autocast]):
        raise SystemExit(f"the cohort ends {apart:.2g} apart from its clients: not the same")
    both = alternate(
        lambda: len(clients) * EXAMPLES / seconds(together, options.device),
        lambda: len(clients) * EXAMPLES / seconds(serial, options.device),
        options.repeats,
    )
    names = ("examples a second", "of the other")
    row = compare(f"{len(clients)} clients together / one by one", names, *both)
    return row | {"at least": COHORT_TARGET}, both


def rate_row(runtime: Runtime, options: Namespace) -> tuple[Row, Any]:
    """Time SLaSh's steps beside products of matrices, both in operations a second."""
    model, texts = runtime.model, texts_of(options)
    vectors = torch.from_numpy(model.initial(0))[None].to(options.device)
    rows = np.arange(options.batch)
    batch = collate([texts], [rows], 1, options.device, model.dtype)
    with FlopCounterMode(display=False) as counter:
        model.gradients(vectors, batch)
    numbers = torch.float32 if options.autocast == "off" else getattr(torch, options.autocast)
    square = torch.randn(options.matrix, options.matrix).to(options.device, numbers)
    operations = 2 * options.matrix**3

    def step() -> None:
        model.gradients(vectors, batch)

    def product() -> None:
        square @ square

    for call in (step, product):
        call()
    both = alternate(
        lambda: counter.get_total_flops() / seconds(step, options.device, STEPS) / 1e12,
        lambda: operations / seconds(product, options.device, 10) / 1e12,
        options.repeats,
    )
    row = compare("steps / matrix products", ("Tflop/s", "of the other"), *both)
    return row | {"at least": RATE_TARGET}, both


def measure(part: str, size: str, options: Namespace) -> Report:
    """Measure one part on a backbone of its size."""
    options.size = size
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "backbone"
        save_backbone(size, folder)
        runtime = runtime_of(experiment_of("slash", str(folder), options).to_toml())
        row, raw = {"cohort": cohort_row, "rate": rate_row}[part](runtime, options)
    on_cuda = options.device == "cuda"
    facts = {
        "device": torch.cuda.get_device_name() if on_cuda else "cpu",
        "CUDA": "measured" if on_cuda else "not measured; the target is for a GPU",
    }
    names = ("size", "batch", "tokens", "clients", "autocast", "matrix", "threads", "repeats")
    return Report({key: getattr(options, key) for key in names}, [row], facts, {part: raw})


def main(arguments: Sequence[str] | None = None) -> list[Report]:
    """Run the benchmark from its command line."""
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = arguments_of(__doc__)
    sizes = ["base", "large"]
    parser.add_argument(
        "--sizes", nargs=2, default=sizes, choices=SIZES, help="of cohort and rate (base large)"
    )
    parser.add_argument("--clients", type=int, default=32, help="of a cohort (32)")
    parser.add_argument("--batch", type=int, default=32, help="of the steps whose rate is measured")
    parser.add_argument("--tokens", type=int, default=128, help="of each text (128)")
    parser.add_argument("--matrix", type=int, default=8192, help="rows of the square matrices")
    parser.add_argument("--threads", type=int, default=0, help="torch threads (0: torch decides)")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--autocast", default="bfloat16", choices=SAME)
    options = parser.parse_args(arguments)
    reports = []
    for part, size in zip(("cohort", "rate"), options.sizes, strict=True):
        reports.append(measure(part, size, options))
        case = f"{part}, roberta-{size}, {options.device}"
        record("throughput", case, reports[-1], arguments, options.results)
    return reports


if __name__ == "__main__":
    script(main)
