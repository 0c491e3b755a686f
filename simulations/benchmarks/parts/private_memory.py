"""Memory of a large virtual batch in DP-SGD, a part of the privacy benchmark.

Compares the gradient of a virtual batch with that of its largest physical batch, by torch's
profiler and as peak resident memory of fresh processes, which repeat the physical batch once per
part of the virtual one. MALLOC_MMAP_THRESHOLD_ makes glibc return large arrays, so that the peak
does not include freed memory.
"""

from __future__ import annotations

import argparse
import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from statistics import median
from typing import Any

import numpy as np
from torch.profiler import ProfilerActivity, profile

from fedpeft.batches.passes import parts_by_length
from fedpeft.experiment.config import parsed
from fedpeft.privacy.noise import SecureNoise
from fedpeft.runtime import Runtime, runtime_of
from simulations.benchmarks.common import Report, Row, alternate, child
from simulations.benchmarks.memory import resident
from simulations.benchmarks.parts.private_steps import (
    experiment_of,
    how,
    physical_batch,
    settings_of,
    virtual_batch,
)

MEASURED = ("slash", "houlsby")  # houlsby has 595,200 numbers on minilm, and the head
RETURNED = {"MALLOC_MMAP_THRESHOLD_": str(128 * 1024)}  # glibc's initial value, now fixed


def parts_of(runtime: Runtime, batch: int) -> list[np.ndarray]:
    """Return the physical batches of all examples, split by length as in a private step."""
    every, overhead = np.arange(len(runtime.train)), runtime.model.costs.per_pass
    return [part for (part,) in parts_by_length([runtime.train], [every], overhead, batch)]


def side(runtime: Runtime, batch: int, part: int | None) -> Callable[[], object]:
    """Return the measured function: the gradient of all examples, or of one part of them."""
    private = how(runtime, SecureNoise(), batch, len(runtime.train))
    parts = parts_of(runtime, batch)
    if part is None:
        step, rows = virtual_batch(runtime, private), np.concatenate(parts)
    else:
        step, rows = physical_batch(runtime, private), parts[part]
    return lambda: step(rows)


def memory_process(arguments: Sequence[str]) -> None:
    """Run one side in this process and print its peak memory in MB."""
    toml, batch, *part = arguments
    runtime = runtime_of(parsed(toml))
    call = side(runtime, int(batch), int(part[0]) if part else None)
    SecureNoise().normal(1)  # its imports do not count as memory of a batch
    for _ in parts_of(runtime, int(batch)) if part else [None]:
        call()
    print(resident("VmHWM"))


def peak_of_process(environment: Mapping[str, str], *arguments: str) -> float:
    """Return the peak resident memory in MB of a fresh process; see ``memory_process``."""
    module = "simulations.benchmarks.parts.private_memory"
    command = child(
        f"import sys; from {module} import memory_process as do; do(sys.argv[1:])", *arguments
    )
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, **environment}
    )
    if done.returncode:
        raise RuntimeError(f"memory of a batch: {done.stderr[-2000:]}")
    return float(done.stdout.splitlines()[-1])


def allocated(call: Callable[[], object]) -> float:
    """Return the peak MB that torch allocated during a call, minus those before it."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        call()
    events = [e for e in profiled.profiler.kineto_results.events() if e.name() == "[memory]"]
    events.sort(key=lambda event: event.start_ns())
    return max(accumulate(event.nbytes() for event in events)) / 1e6


def torch_peaks(runtime: Runtime, batch: int) -> tuple[float, list[float]]:
    """Return ``allocated`` of the virtual batch, and of each of its physical batches alone."""
    parts = range(len(parts_of(runtime, batch)))
    return (
        allocated(side(runtime, batch, None)),
        [allocated(side(runtime, batch, part)) for part in parts],
    )


def memory_report(options: argparse.Namespace) -> Report:
    """Measure the memory of a virtual batch and of its largest physical batch."""
    table: list[Row] = []
    raw: dict[str, Any] = {}
    for name in MEASURED:
        experiment = experiment_of(name, options.virtual, options)
        runtime = runtime_of(experiment)
        virtual, physical = torch_peaks(runtime, options.batch)
        largest = int(np.argmax(physical))
        figures = {
            "torch": ([virtual], [physical[largest]]),
            "resident": both_peaks(experiment.to_toml(), options, largest, RETURNED),
            "resident, malloc's default": both_peaks(experiment.to_toml(), options, largest, {}),
        }
        for figure, sides in figures.items():
            row = memory_row(f"{name}: {figure}", *sides, runtime.model.layout.size)
            table.append(row)
            raw[row["figure"]] = sides
    facts = {
        "torch": "the most that its allocator had given out at once; the same in every run",
        "target": "more MB at most 2 P floats, and for processes the spread of equal runs",
    }
    settings = settings_of(options) | {"virtual batch": options.virtual}
    return Report(settings, table, facts, raw)


def both_peaks(
    toml: str, options: argparse.Namespace, part: int, environment: Mapping[str, str]
) -> tuple[list[float], list[float]]:
    """Return the peaks of processes with the virtual batch and with one part of it, alternating."""
    batch = str(options.batch)
    return alternate(
        lambda: peak_of_process(environment, toml, batch),
        lambda: peak_of_process(environment, toml, batch, str(part)),
        options.repeats,
    )


def memory_row(figure: str, virtual: Sequence[float], physical: Sequence[float], size: int) -> Row:
    """Return a row of medians in MB; the spread is the largest difference between repeats."""
    return {
        "figure": figure,
        "P": size,
        "virtual MB": round(median(virtual), 2),
        "physical MB": round(median(physical), 2),
        "more MB": round(median(virtual) - median(physical), 3),
        "2 P floats MB": round(2 * size * 4 / 1e6, 3),
        "spread MB": round(max(max(side) - min(side) for side in (virtual, physical)), 3),
    }
