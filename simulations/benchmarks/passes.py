"""Milliseconds of single passes by their number of tokens, and of ragged texts padded and packed.

SLaSh on a RoBERTa with random weights. Texts have equal lengths, or uniformly random ones of which
the shortest have a quarter of the tokens. Training is forward and backward. The constants of
``fedpeft.batches.passes`` and ``evaluation_batch`` rest on such times.

Example:
    python -m simulations.benchmarks.passes --most 1024
    python -m simulations.benchmarks.passes --device cuda --autocast bfloat16
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median

import numpy as np
import torch

from fedpeft.batches.encoded import Encoded
from fedpeft.model import TaskModel
from fedpeft.runtime import runtime_of
from simulations.benchmarks.common import Report, Row, arguments_of, record, script
from simulations.benchmarks.parts.random_roberta import (
    LONGEST,
    SIZES,
    backbone_of,
    experiment_of,
    random_texts,
)
from simulations.benchmarks.parts.step_parts import seconds


def measure(options: Namespace) -> Report:
    """Measure passes of 1, 4, 16, ... texts of each length."""
    experiment = experiment_of("slash", backbone_of(f"random-{options.size}"), options)
    runtime = runtime_of(experiment)
    vector = torch.from_numpy(runtime.parameters.initial(0))[None]
    vectors = vector.to(runtime.backbone.device)
    table, draw = [], np.random.default_rng(0)
    for tokens in options.tokens:
        count = 1
        while count * tokens <= options.most:
            table.append(_row(runtime.model, vectors, [tokens] * count, options.repeats))
            count *= 4
        ragged = draw.integers(max(1, tokens // 4), tokens + 1, max(2, count // 4))
        table.append(_row(runtime.model, vectors, ragged.tolist(), options.repeats))
    settings = {name: value for name, value in vars(options).items() if name != "results"}
    facts = {"figures": "milliseconds; medians"}
    return Report(settings, table, facts, {"rows": table})


def _row(model: TaskModel, vectors: torch.Tensor, lengths: list[int], repeats: int) -> Row:
    texts, equal = random_texts(lengths), len({*lengths}) == 1
    batch = model.collate([texts], [np.arange(len(lengths))])

    def evaluate() -> None:
        with torch.inference_mode():
            model.outputs(model.realise(vectors), batch)

    train = partial(_train, model, vectors, texts)
    return {
        "texts": len(lengths),
        "tokens a text": lengths[0] if equal else f"{min(lengths)} to {max(lengths)}",
        "tokens": sum(lengths),
        "training, padded": _milliseconds(partial(train, False), model, repeats),
        "training, packed": "-" if equal else _milliseconds(partial(train, True), model, repeats),
        "evaluation, padded": _milliseconds(evaluate, model, repeats),
    }


def _train(model: TaskModel, vectors: torch.Tensor, texts: Encoded, packed: bool) -> None:
    model.gradients(vectors, model.collate([texts], [np.arange(len(texts))], packed))


def _milliseconds(call: Callable[[], None], model: TaskModel, repeats: int) -> float:
    """Return the median of ``repeats`` calls after two others."""
    spent = [seconds(call, model.backbone.device) for _ in range(repeats + 2)][2:]
    return round(1e3 * median(spent), 2)


def main(arguments: Sequence[str] | None = None) -> Report:
    """Run the benchmark from its command line."""
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = arguments_of(__doc__)
    parser.add_argument("--size", default="base", choices=SIZES, help="of RoBERTa (base)")
    parser.add_argument("--tokens", type=int, nargs="+", default=[16, 64, 128], help="of a text")
    parser.add_argument("--most", type=int, default=16_384, help="tokens of a pass (16384)")
    parser.add_argument("--device", default="cpu", help="cpu (default), cuda")
    parser.add_argument("--autocast", default="off", choices=("off", "bfloat16"))
    parser.add_argument("--threads", type=int, default=1, help="torch threads (1)")
    options = parser.parse_args(arguments)
    if not 1 <= min(options.tokens) <= max(options.tokens) <= min(options.most, LONGEST):
        parser.error(f"expected --tokens from 1 to {LONGEST} and to --most")
    report = measure(options)
    case = f"roberta-{options.size}, {options.device}, autocast {options.autocast}"
    record("passes", case, report, arguments, options.results)
    return report


if __name__ == "__main__":
    script(main)
