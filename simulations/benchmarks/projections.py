"""Regenerated projections against projections in memory: time and memory.

Measures SLaSh's projections of a backbone, forward and backward, alternating in one process; then
whole steps (gradients of a batch) through the backbone with random weights, which take the same
time as trained ones. Memory is the peak of a fresh process that runs the passes of one side; with
--device cuda, the memory that they allocate on the device. The script fails unless both sides agree
bit for bit: in their results on a CPU, in their entries on CUDA.

Example:
    python -m simulations.benchmarks.projections
    python -m simulations.benchmarks.projections --backbone roberta-large --d 10000
    python -m simulations.benchmarks.projections --backbone roberta-large --d 10000 --device cuda
"""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import median
from typing import Any, cast

import torch

from fedpeft.backbones.known import KNOWN_SHAPES
from fedpeft.methods.base import Method
from fedpeft.projection import Projection
from fedpeft.projection.choice import operator
from fedpeft.projection.fused import Fused
from fedpeft.projection.operators import Mode
from simulations.benchmarks.common import (
    Report,
    Row,
    alternate,
    arguments_of,
    child_json,
    compare,
    record,
    script,
    timed,
)
from simulations.benchmarks.memory import resident
from simulations.benchmarks.parts.projection_steps import (
    method_of,
    operators_of,
    passes,
    random_model,
    step_of,
)

STEP_TARGET = 1.05  # time of a step on a GPU
SAVED_TARGET = 900  # MB at roberta-large, d = 10,000
SIDES: tuple[Mode, Mode] = ("regenerated", "stored")
Pair = tuple[list[float], list[float]]
CHECKED = 256  # columns whose entries are compared on CUDA


def check(method: Method[Any], groups: int, device: torch.device) -> None:
    """Compare the sides bit for bit: results, or on CUDA the entries of some columns.

    Raises:
        SystemExit: they differ.
    """
    if device.type == "cpu":
        made, kept = (passes(operators_of(method, m, device), groups, device) for m in SIDES)
        same = torch.equal(made, kept)
    else:
        first = method.projections()[0]
        assert isinstance(first, Projection)
        part = replace(first, columns=min(first.columns, CHECKED))
        entries = torch.from_numpy(part.transposed().T.copy())
        same = torch.equal(
            operator(part, device, torch.float32, "regenerated").matrix().cpu(), entries
        )
    if not same:
        raise SystemExit("regenerated projections are not the stored ones: nothing to compare")


def milliseconds(
    one: Callable[[], Any], other: Callable[[], Any], device: torch.device, repeats: int
) -> Pair:
    """Return the wall-clock milliseconds of both, alternating, after warm-up."""

    def done(call: Callable[[], Any]) -> None:
        call()
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    done(one)
    done(other)
    return alternate(
        lambda: 1e3 * timed(lambda: done(one))[0].wall,
        lambda: 1e3 * timed(lambda: done(other))[0].wall,
        repeats,
    )


def memory_process(arguments: Sequence[str]) -> None:
    """Run the passes of one side in this process and print its peak memory in MB as JSON."""
    mode, backbone, d, groups = arguments
    operators = operators_of(method_of(backbone, int(d)), cast(Mode, mode), torch.device("cpu"))
    passes(operators, int(groups), torch.device("cpu"))
    print(json.dumps(resident("VmHWM")))


def peak(mode: Mode, options: Namespace) -> float:
    """Return the peak memory of one side, MB: of a fresh process, or allocated on the GPU.

    Raises:
        RuntimeError: the process failed.
    """
    if options.device == "cuda":
        device, method = torch.device("cuda"), method_of(options.backbone, options.d)
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        passes(operators_of(method, mode, device), options.groups, device)
        return (torch.cuda.max_memory_allocated() - before) / 1e6
    code = "import sys; from simulations.benchmarks import projections as module; "
    sizes = [options.backbone, str(options.d), str(options.groups)]
    return float(child_json(f"{code}module.memory_process(sys.argv[1:])", mode, *sizes))


def measure(options: Namespace) -> Report:
    """Check that the sides agree, then measure them."""
    method = method_of(options.backbone, options.d)
    check(method, options.groups, torch.device(options.device))
    figures = {"passes, ms": passes_in_turns(method, options)}
    if options.batch:
        figures["step, ms"] = steps_in_turns(method, options)
    peaks = [(peak(SIDES[0], options), peak(SIDES[1], options)) for _ in range(options.repeats)]
    figures["peak memory, MB"] = [one for one, _ in peaks], [other for _, other in peaks]
    return report(figures, method, options)


def passes_in_turns(method: Method[Any], options: Namespace) -> Pair:
    """Time the projections alone, and free their memory."""
    device = torch.device(options.device)
    made, kept = (operators_of(method, mode, device) for mode in SIDES)
    return milliseconds(
        lambda: passes(made, options.groups, device),
        lambda: passes(kept, options.groups, device),
        device,
        options.repeats,
    )


def steps_in_turns(method: Method[Any], options: Namespace) -> Pair:
    """Time whole steps, both sides on one backbone."""
    device = torch.device(options.device)
    model = random_model(method.shape, device)
    made, kept = (step_of(method, mode, model, options) for mode in SIDES)
    return milliseconds(made, kept, device, options.repeats)


def report(figures: dict[str, Pair], method: Method[Any], options: Namespace) -> Report:
    """Return the table of medians and ratios, and the savings."""
    table: list[Row] = [compare(figure, SIDES, *sides) for figure, sides in figures.items()]
    made, kept = (median(side) for side in figures["peak memory, MB"])
    entries = sum(projection.rows * projection.columns for projection in method.projections())
    first, device = method.projections()[0], torch.device(options.device)
    kernel = Fused.suits(first, device, torch.float32)
    facts = {
        "MB of the stored projections": entries * 4 / 1e6,
        "MB saved": kept - made,
        "made by": "the kernel" if kernel else f"{torch.get_num_threads()} threads of the CPU",
        "target": f"on a GPU, roberta-large, d = 10,000: step at most {STEP_TARGET}, "
        f"at least {SAVED_TARGET} MB saved",
        "step": f"{options.batch} texts of {options.tokens} tokens for each of the groups"
        if options.batch
        else "not measured",
    }
    if options.device == "cuda":
        facts["GPU"] = torch.cuda.get_device_name()
    names = ("backbone", "d", "groups", "device", "autocast", "repeats")
    settings = {name: getattr(options, name) for name in names}
    return Report(settings | {"threads": torch.get_num_threads()}, table, facts, figures)


def main(arguments: Sequence[str] | None = None) -> Report | None:
    """Run the benchmark from its command line; None if the device is missing."""
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = arguments_of(__doc__)
    parser.add_argument("--backbone", default="minilm", choices=KNOWN_SHAPES)
    parser.add_argument("--d", type=int, default=1024)
    parser.add_argument("--groups", type=int, default=1, help="task vectors trained together (1)")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--batch", type=int, default=16, help="texts a group; 0: no steps (16)")
    parser.add_argument("--tokens", type=int, default=64, help="tokens of each text (64)")
    parser.add_argument("--autocast", default="off", choices=("off", "bfloat16", "float16"))
    options = parser.parse_args(arguments)
    if options.device == "cuda" and not torch.cuda.is_available():
        print("cuda: not measured, torch finds no such device here")
        return None
    result = measure(options)
    case = f"{options.device}, {options.backbone}, d = {options.d}, {options.groups} groups"
    record("projections", case, result, arguments, options.results)
    return result


if __name__ == "__main__":
    script(main)
