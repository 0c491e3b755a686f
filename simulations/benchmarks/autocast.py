"""Speedup of bfloat16 on this CPU (`engine.autocast`), and the reason for float32 attention.

Steps: training of one client with and without autocast, alternating. Attention: forward and
backward of one block's attention in bfloat16, PyTorch's against fedpeft's
(`fedpeft.backbones.attention`).

Example:
    python -m simulations.benchmarks.autocast --glue ../shared/data/glue
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from fedpeft.backbones.attention import SDPA, Attention
from fedpeft.experiment.config import Experiment
from fedpeft.randomness import When
from fedpeft.runtime import runtime_of
from fedpeft.training import train_cohort
from simulations.benchmarks.common import (
    Report,
    Row,
    alternate,
    arguments_of,
    compare,
    record,
    script,
    timed,
)

TOKENS = (16, 64, 128)
TEXTS, HEADS, WIDTH = 8, 12, 32  # a batch of the default size on MiniLM
CALLS = 20
Raw = dict[str, object]


class _Layer(torch.nn.Module):
    """Attributes of a module that transformers' attention reads."""

    is_causal = False


def step_row(task: str, method: str, options: argparse.Namespace, raw: Raw) -> Row:
    """Time one client's training in bfloat16 and in float32."""

    def side(autocast: str) -> Callable[[], float]:
        settings = [
            f"backbone={options.backbone}",
            f"task.name={task}",
            f"task.path={options.glue}" if options.glue else "",
            f"task.train_limit={options.examples}",
            "task.eval_limit=16",
            "task.max_length=64",
            f"method.name={method}",
            f"engine.autocast={autocast}",
            f"engine.threads={options.threads}",
            "engine.device=cpu",
            "engine.cache_mb=0",
        ]
        experiment = Experiment.load("", [*filter(None, settings)])

        def train() -> float:
            runtime = runtime_of(experiment)
            start, local = runtime.parameters.initial(0), runtime.experiment.local
            took, _ = timed(
                lambda: train_cohort(
                    runtime.model, start, [runtime.train], [0], local, When(0, 1, 1)
                )
            )
            return took.wall

        train()
        return train

    above, below = alternate(side("bfloat16"), side("off"), options.repeats)
    raw[f"{task}, {method}"] = {"bfloat16": above, "float32": below}
    return compare(f"training, {task}, {method}", ("s bfloat16", "s float32"), above, below)


def attention_row(tokens: int, options: argparse.Namespace, raw: Raw) -> Row:
    """Time a block's attention and its gradient, PyTorch's and fedpeft's, in bfloat16."""
    draw = torch.Generator().manual_seed(0)
    shape = (TEXTS, HEADS, tokens, WIDTH)
    states = [torch.randn(shape, generator=draw).bfloat16().requires_grad_() for _ in range(3)]
    lengths = torch.randint(tokens // 2, tokens + 1, (TEXTS, 1), generator=draw)
    mask = (torch.arange(tokens) < lengths)[:, None, None].expand(TEXTS, 1, tokens, tokens)

    def side(attend: Attention) -> Callable[[], float]:
        def calls() -> None:
            for _ in range(CALLS):
                output, _ = attend(_Layer(), *states, mask, dropout=0.0, scaling=WIDTH**-0.5)
                output.sum().backward()

        calls()
        return lambda: 1000 * timed(calls)[0].wall / CALLS

    pytorch, fedpeft = side(sdpa_attention_forward), side(AttentionInterface()[SDPA])
    above, below = alternate(pytorch, fedpeft, options.repeats)
    raw[f"{tokens} tokens"] = {"PyTorch": above, "ours": below}
    return compare(f"attention, {tokens} tokens", ("ms PyTorch", "ms ours"), above, below)


def main(arguments: Sequence[str] | None = None) -> list[Report]:
    """Run the benchmark from its command line."""
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = arguments_of(__doc__)
    parser.add_argument("--backbone", default="minilm", help="minilm (default), tiny")
    parser.add_argument("--glue", type=Path, help="folder of GLUE files; default: synthetic texts")
    parser.add_argument("--examples", type=int, default=200, help="examples of the client (200)")
    parser.add_argument("--threads", type=int, default=1, help="torch threads (1)")
    parser.add_argument("--methods", nargs="+", default=["slash", "lora", "bitfit", "full"])
    options = parser.parse_args(arguments)
    tasks = ("sst2", "mrpc") if options.glue else ("synthetic/sentiment",)
    about = {name: getattr(options, name) for name in ("backbone", "examples", "threads")}
    torch.set_num_threads(options.threads)
    raw: Raw = {}
    table = [step_row(task, method, options, raw) for task in tasks for method in options.methods]
    training = Report({**about, "repeats": options.repeats}, table, {}, raw)
    record("autocast", f"training, {options.backbone}", training, arguments, options.results)
    raw = {}
    table = [attention_row(tokens, options, raw) for tokens in TOKENS]
    shape = {"texts": TEXTS, "heads": HEADS, "width": WIDTH, "repeats": options.repeats}
    attention = Report(shape, table, {}, raw)
    record("autocast", "attention", attention, arguments, options.results)
    return [training, attention]


if __name__ == "__main__":
    script(main)
