"""Seconds per step and memory of six methods, as in table 5 of Gupta et al. (2023).

RoBERTa base and large with random weights, which cost the same as trained ones. Each method trains
with fedpeft and in a loop over the Hugging Face encoder without fedpeft (``parts.table5_loop``:
LoRA by peft, Houlsby's adapter, SLaSh and JR-WARP as small modules, BitFit and full fine-tuning on
the encoder's weights), both from the same initial vector, on the same batches of texts of equal
length, with AdamW and no dropout. The script fails unless their losses agree.

- s a step: of both, in alternating turns in one process. A turn is one round of a client: each side
  makes an optimizer for it, and fedpeft copies the task vector. "of full" is relative to full
  fine-tuning.
- MB: the peak of a fresh process of each side; on CUDA the memory allocated by torch.
- paper: the ratios to full fine-tuning in the table, on QNLI with batch 8 on a Quadro RTX 8000.

fedpeft's cache of hidden states, which would make SLaSh faster, is disabled.

Example:
    python -m simulations.benchmarks.table5
    python -m simulations.benchmarks.table5 --device cuda --batch 8 --tokens 128 --autocast bfloat16
"""

from __future__ import annotations

import json
import sys
import tempfile
from argparse import Namespace
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch

from fedpeft.batches.encoded import Encoded
from fedpeft.randomness import When
from fedpeft.runtime import Runtime, runtime_of
from fedpeft.training import plan_batches, train_cohort
from simulations.benchmarks.common import (
    Report,
    Row,
    alternate,
    arguments_of,
    child_json,
    compare,
    positive,
    record,
    script,
    timed,
)
from simulations.benchmarks.memory import resident
from simulations.benchmarks.parts.random_roberta import (
    LONGEST,
    SIZES,
    experiment_of,
    random_texts,
    save_backbone,
)
from simulations.benchmarks.parts.table5_loop import LOOPS, Loop

FULL = "full"
#: Largest relative difference of the losses of the first turn.
SAME = {"off": 5e-6, "bfloat16": 3e-2}
#: The same of later turns: Adam amplifies rounding from turn to turn (1e-3 after six turns: base
#: with full, large with SLaSh).
GROWN = 1e-2
#: Method -> (seconds, GB) in table 5; it lacks JR-WARP.
PAPER = {
    "base": {
        FULL: (1227, 5.8),
        "bitfit": (819, 3.3),
        "lora": (1026, 4.9),
        "houlsby": (1385, 4.8),
        "slash": (558, 3.3),
    },
    "large": {
        FULL: (3291, 15.6),
        "bitfit": (2083, 8.6),
        "lora": (2019, 13.0),
        "houlsby": (2289, 13.1),
        "slash": (1764, 9.3),
    },
}


class Ours:
    """Trains one method with fedpeft."""

    def __init__(self, runtime: Runtime):
        self.runtime, self.vector = runtime, runtime.parameters.initial(runtime.experiment.seed)

    def train(self, texts: Encoded) -> float:
        """Continue training; return the mean loss."""
        local, when = self.runtime.experiment.local, When(0, 1, 1)
        trained = train_cohort(self.runtime.model, self.vector, [texts], [0], local, when)
        self.vector = trained.vectors[0]
        return float(trained.losses[0])


def prepared(name: str, folder: str, options: Namespace) -> tuple[Runtime, Encoded]:
    """Return the runtime of a method, and texts of equal length for the steps of a turn."""
    local = [f"local.steps={options.steps}", f"local.batch_size={options.batch}"]
    texts = random_texts([options.tokens] * (options.steps * options.batch))
    return runtime_of(experiment_of(name, folder, options, *local)), texts


def other_of(runtime: Runtime, options: Namespace) -> Loop:
    """Return the reference loop; it loads only the method and head of the runtime."""
    experiment = runtime.experiment
    folder = Path(experiment.backbone)
    return Loop(folder, runtime.parameters, experiment.seed, options.device, options.autocast)


def time_method(name: str, folder: str, options: Namespace) -> tuple[list[float], list[float]]:
    """Return the seconds per step of fedpeft and of the loop, alternating, after warm-up.

    Raises:
        SystemExit: their losses are not the same.
    """
    runtime, texts = prepared(name, folder, options)
    local = runtime.experiment.local
    plan = plan_batches(0, texts, local, When(0, 1, 1))
    ours, other = Ours(runtime), other_of(runtime, options)
    losses: list[list[float]] = [[], []]  # one figure per turn

    def seconds(side: int) -> float:
        def turn() -> None:
            trained = ours.train(texts) if side == 0 else other.train(texts, plan, local)
            losses[side].append(trained)  # a Python number: waits for the GPU

        return timed(turn)[0].wall / options.steps

    seconds(0), seconds(1)
    both = alternate(lambda: seconds(0), lambda: seconds(1), options.repeats)
    most = SAME[options.autocast]
    for turn, (one, two) in enumerate(zip(*losses, strict=True)):
        if not abs(one - two) <= (max(most, GROWN) if turn else most) * losses[0][0]:
            raise SystemExit(f"{name}: losses are {one:.6g} and {two:.6g}: not the same")
    return both


def process(arguments: Sequence[str]) -> None:
    """Run one part in this process and print its figures as JSON: "time", "ours" or "other"."""
    part, name, folder, settings = arguments
    options = Namespace(**json.loads(settings))
    if part == "time":
        print(json.dumps(time_method(name, folder, options)))
        return
    runtime, texts = prepared(name, folder, options)
    if part == "ours":
        Ours(runtime).train(texts)
    else:
        local = runtime.experiment.local
        plan = plan_batches(0, texts, local, When(0, 1, 1))
        other_of(runtime, options).train(texts, plan, local)
    on_cuda = options.device == "cuda"
    print(json.dumps(torch.cuda.max_memory_allocated() / 1e6 if on_cuda else resident("VmHWM")))


def in_process(part: str, name: str, folder: Path, options: Namespace) -> Any:
    """Return the output of ``process`` in a fresh process."""
    settings = {key: getattr(options, key) for key in SETTINGS}
    code = "import sys; from simulations.benchmarks.table5 import process; process(sys.argv[1:])"
    return child_json(code, part, name, str(folder), json.dumps(settings))


SETTINGS = ("size", "batch", "tokens", "steps", "threads", "device", "autocast", "repeats")


def measure(options: Namespace) -> Report:
    """Measure every method."""
    names = [FULL, *(name for name in options.methods if name != FULL)]
    raw: dict[str, Any] = {"time": {}, "ours": {}, "other": {}}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "backbone"
        save_backbone(options.size, folder)
        for name in names:
            for part in raw:
                raw[part][name] = in_process(part, name, folder, options)
    table = [row_of(name, raw, PAPER.get(options.size, {})) for name in names]
    facts = {
        "ratio": "ours / the loop, of each pair of turns",
        "memory": "allocated on the GPU" if options.device == "cuda" else "resident",
        "CUDA": "measured" if options.device == "cuda" else "not measured",
    }
    settings = {key: getattr(options, key) for key in SETTINGS}
    return Report(settings, table, facts, raw)


def row_of(name: str, raw: dict[str, Any], paper: dict[str, tuple[int, float]]) -> Row:
    """Return a method's row."""
    ours, other = raw["time"][name]
    row = compare(name, ("s a step", "s of the loop"), ours, other)
    row["of full"] = round(row["s a step"] / median(raw["time"][FULL][0]), 3)
    row["paper, time of full"] = share(paper, name, 0)
    row["MB"], row["MB of the loop"] = round(raw["ours"][name]), round(raw["other"][name])
    row["MB ratio"] = round(raw["ours"][name] / raw["other"][name], 3)
    row["MB of full"] = round(raw["ours"][name] / raw["ours"][FULL], 3)
    row["paper, GB of full"] = share(paper, name, 1)
    return row


def share(paper: dict[str, tuple[int, float]], name: str, place: int) -> float | str:
    """Return the paper's ratio of a method to full fine-tuning; "-" if it has none."""
    return round(paper[name][place] / paper[FULL][place], 3) if name in paper else "-"


def main(arguments: Sequence[str] | None = None) -> list[Report]:
    """Run the benchmark from its command line."""
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = arguments_of(__doc__)
    names: Iterable[str] = LOOPS
    parser.add_argument("--sizes", nargs="+", default=["base", "large"], choices=SIZES)
    parser.add_argument("--methods", nargs="+", default=[*names], choices=names)
    parser.add_argument("--batch", type=positive, default=4)
    parser.add_argument("--tokens", type=positive, default=64, help="tokens of each text (64)")
    parser.add_argument("--steps", type=positive, default=3, help="of one side in a turn (3)")
    parser.add_argument("--threads", type=int, default=0, help="torch threads (0: torch decides)")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--autocast", default="off", choices=SAME)
    options = parser.parse_args(arguments)
    if options.tokens > LONGEST:
        parser.error(f"--tokens {options.tokens}: expected at most {LONGEST}")
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: torch finds no GPU")
    reports = []
    for size in options.sizes:
        options.size = size
        reports.append(measure(options))
        case = f"roberta-{size}, {options.device}, autocast {options.autocast}"
        record("table5", case, reports[-1], arguments, options.results)
    return reports


if __name__ == "__main__":
    script(main)
