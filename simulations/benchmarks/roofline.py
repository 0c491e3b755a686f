"""Share of the machine's matrix rate that training, DP-SGD and evaluation reach, by part.

FLOPs are those that frozen passes need: products of the blocks forward, and back to their inputs in
the blocks above the first change, without padding. The matrix rate is that of plain products of the
same shapes and the mean number of tokens of a batch, measured before and after. All phases of a
step count. On a CPU, seconds are CPU seconds per thread, so that other programs matter less. Parts
are shares of profiled runs. On CUDA, give a backbone and texts that fill the device; parts are
shares of the kernels' time, "busy" is that time's share of the whole, and MB is the largest memory
allocated. Evaluation passes more texts at once there, at a higher rate. Precision "tf32" sets
PyTorch to round the factors of float32 products.

Example:
    python -m simulations.benchmarks.roofline --glue ../shared/data/glue
    python -m simulations.benchmarks.roofline --glue ../shared/data/glue --method lora full
    python -m simulations.benchmarks.roofline --device cuda --backbone random-large --batch 64
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import mean, median

import torch

from fedpeft.experiment.config import Experiment
from fedpeft.randomness import When
from fedpeft.runtime import Runtime, runtime_of
from fedpeft.training import evaluate, plan_batches, train_cohort
from simulations.benchmarks.common import Report, Row, arguments_of, record, script, slash_d
from simulations.benchmarks.parts.private_steps import how, private_step, seeded
from simulations.benchmarks.parts.random_roberta import backbone_of
from simulations.benchmarks.parts.step_parts import (
    matrix_rate,
    needed,
    parts_of,
    peak,
    seconds,
    tokens_of_batches,
)

TARGETS = "training 55 % in float32, 45 % in bfloat16; DP-SGD at most 1.10 of training"


@dataclass(frozen=True)
class Case:
    """One kind of work in one precision: its call, and what it needs."""

    work: str
    precision: str
    call: Callable[[], object]
    gflop: float
    runtime: Runtime


def experiment_of(method: str, precision: str, options: argparse.Namespace) -> Experiment:
    """Return the experiment of one method in one precision."""
    task = [f"task.name={options.task}", f"task.path={options.glue}"] if options.glue else []
    d = [f"method.d={slash_d(options.backbone)}"] if method == "slash" else []
    return Experiment.load(
        "",
        [
            f"backbone={backbone_of(options.backbone)}",
            *task,
            f"task.train_limit={options.examples}",
            "task.eval_limit=16",
            f"task.max_length={options.tokens}",
            f"method.name={method}",
            *d,
            f"local.batch_size={options.batch}",
            f"engine.autocast={'off' if precision == 'tf32' else precision}",
            f"engine.threads={options.threads}",
            f"engine.device={options.device}",
            "engine.cache_mb=0",
        ],
    )


def cases_of(method: str, precision: str, options: argparse.Namespace) -> list[Case]:
    """Return the works of one method in one precision, over the same texts."""
    runtime = runtime_of(experiment_of(method, precision, options))
    model, local, data = runtime.model, runtime.experiment.local, runtime.train
    start, when = runtime.parameters.initial(0), When(0, 1, 1)
    needs, lengths = needed(model), data.lengths.tolist()

    def private() -> None:
        noise = seeded(runtime)
        step = private_step(runtime, how(runtime, noise, local.batch_size, local.batch_size))
        for rows in plan_batches(0, data, local, when):
            step(rows)

    calls: dict[str, Callable[[], object]] = {
        "training": partial(train_cohort, model, start, [data], [0], local, when),
        "DP-SGD": private,
        "evaluation": partial(evaluate, model, start, data),
    }
    if not model.method.grouped:
        del calls["DP-SGD"]

    def within(call: Callable[[], object]) -> object:
        with rounded(precision):
            return call()

    return [
        Case(
            work,
            precision,
            partial(within, call),
            needs.flops(lengths, work != "evaluation") / 1e9,
            runtime,
        )
        for work, call in calls.items()
    ]


@contextmanager
def rounded(precision: str) -> Iterator[None]:
    """Let PyTorch round the factors of float32 products to TF32, for the precision "tf32"."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if precision == "tf32" else before)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def rate_of(case: Case) -> float:
    """Return the matrix rate in the case's precision, in GFLOP/s."""
    model, lengths = case.runtime.model, case.runtime.train.lengths.tolist()
    tokens = tokens_of_batches(lengths, case.runtime.experiment.local.batch_size)
    dtype = getattr(torch, case.precision, torch.float32)
    with rounded(case.precision):
        return matrix_rate(needed(model).shapes, tokens, dtype, model.backbone.device)


def measure(method: str, options: argparse.Namespace) -> Report:
    """Measure all works of a method in all precisions, alternating."""
    cases = [
        case for precision in options.precision for case in cases_of(method, precision, options)
    ]
    device = cases[0].runtime.backbone.device
    for case in cases:
        case.call()
    before = {case.precision: rate_of(case) for case in cases}
    spent: dict[str, list[float]] = {f"{case.work} {case.precision}": [] for case in cases}
    for _ in range(options.repeats):
        for case in cases:
            spent[f"{case.work} {case.precision}"].append(seconds(case.call, device))
    after = {case.precision: rate_of(case) for case in cases}
    parts = {
        f"{case.work} {case.precision}": parts_of(case.call, device, options.repeats)
        for case in cases
    }
    memory = [peak(case.call, device) for case in cases]
    rate = {precision: mean((before[precision], after[precision])) for precision in before}
    table = [
        _row(case, median(spent[key]), rate[case.precision], parts[key], most)
        for key, most, case in zip(spent, memory, cases, strict=True)
    ]
    facts = {"targets": TARGETS}
    for precision in before:
        name = _named(precision)
        facts[f"GFLOP/s of plain products, {name}, before and after"] = (
            f"{before[precision]:.0f}, {after[precision]:.0f}"
        )
        if f"DP-SGD {precision}" in spent:
            pairs = zip(spent[f"DP-SGD {precision}"], spent[f"training {precision}"], strict=True)
            facts[f"DP-SGD / training, {name}"] = f"{median(a / b for a, b in pairs):.3f}"
    lengths = cases[0].runtime.train.lengths
    settings = {
        "backbone": options.backbone,
        "method": method,
        "task": cases[0].runtime.experiment.task.name,
        "examples": len(lengths),
        "tokens a text": round(float(lengths.mean()), 1),
        "batch": options.batch,
        "device": str(device),
        "torch threads": torch.get_num_threads(),
        "repeats": options.repeats,
    }
    raw = {"seconds": spent, "before": before, "after": after, "parts": parts}
    return Report(settings, table, facts, raw)


def _row(
    case: Case, spent: float, rate: float, parts: dict[str, float], memory: float | str
) -> Row:
    total, cuda = sum(parts.values()), case.runtime.backbone.device.type == "cuda"
    return {
        "work": f"{case.work}, {_named(case.precision)}",
        "GFLOP needed": round(case.gflop, 3),
        "s": round(spent, 3),
        "GFLOP/s": round(case.gflop / spent, 1),
        "share of the matrix rate": round(case.gflop / spent / rate, 3),
        **({"busy %": round(100 * total / spent, 1), "MB": memory} if cuda else {}),
        **{f"{name} %": round(100 * part / total, 1) for name, part in parts.items()},
    }


def _named(precision: str) -> str:
    return "float32" if precision == "off" else precision


def _device(name: str) -> str:
    """Return the device's name; a CPU's with the instructions that its matrix rate depends on."""
    if name != "cpu":
        return name
    capabilities = getattr(torch.cpu, "get_capabilities", dict[str, bool])()  # torch 2.13
    tiles = " AMX" if capabilities.get("amx_bf16") else ""
    return f"cpu {torch.backends.cpu.get_cpu_capability()}{tiles}"


def options_of(doc: str | None, arguments: Sequence[str]) -> argparse.Namespace:
    """Return the options of a command line; ``doc`` describes its script."""
    parser = arguments_of(doc, repeats=3)
    text = "minilm (default), tiny, a hub name, or random-base or random-large for RoBERTa's sizes"
    parser.add_argument("--backbone", default="minilm", help=text)
    parser.add_argument("--glue", type=Path, help="folder of GLUE files; default: synthetic texts")
    parser.add_argument("--task", default="sst2", help="GLUE task (sst2)")
    parser.add_argument("--method", nargs="+", default=["slash"], help="methods (slash)")
    text = "off, tf32, bfloat16 (off and bfloat16)"
    parser.add_argument("--precision", nargs="+", default=["off", "bfloat16"], help=text)
    parser.add_argument("--examples", type=int, default=160, help="texts (160)")
    parser.add_argument("--tokens", type=int, default=128, help="most tokens of a text (128)")
    parser.add_argument("--batch", type=int, default=16, help="texts a step (16)")
    parser.add_argument("--device", default="cpu", help="cpu (default), cuda")
    parser.add_argument("--threads", type=int, default=1, help="torch threads (1)")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> list[Report]:
    """Run the benchmark from its command line."""
    arguments = sys.argv[1:] if arguments is None else arguments
    options = options_of(__doc__, arguments)
    reports = []
    for method in options.method:
        reports.append(measure(method, options))
        task = reports[-1].settings["task"]
        case = f"{method}, {options.backbone}, {task}, {_device(options.device)}"
        record("roofline", case, reports[-1], arguments, options.results)
    return reports


if __name__ == "__main__":
    script(main)
