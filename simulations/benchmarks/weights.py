"""Memory and time of the forms of the frozen weights, and of gradient checkpointing.

Each form runs in a process of its own, which loads the backbone, trains some steps of SLaSh on
random texts, and evaluates logits of one fixed task vector. The peak is that of the steps: Linux
resets it after loading, which holds the float32 weights for a moment. Times are CPU seconds of the
median step, as other programs may share the machine; forms take turns. Backbones: MiniLM, which is
also trained over a few clients for a score, and a random GPT-2 of base size.

Example:
    python -m simulations.benchmarks.weights --glue ../shared/data/glue
"""

from __future__ import annotations

import ctypes
import json
import sys
import tempfile
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from fedpeft.backbones.compact import weight_bytes
from fedpeft.batches.encoded import Encoded
from fedpeft.experiment.config import Experiment
from fedpeft.runtime import runtime_of
from simulations.benchmarks.common import (
    Report,
    Row,
    arguments_of,
    child_json,
    record,
    script,
    slash_d,
    timed,
)
from simulations.benchmarks.memory import resident
from simulations.simulation import prepare, simulate

FORMS = ("float32", "bfloat16", "int8", "int4")
_GPT2 = {"n_embd": 768, "n_layer": 12, "n_head": 12, "vocab_size": 50_257, "n_positions": 1024}


def measure_process(arguments: Sequence[str]) -> None:
    """Train some steps in this process; print memory, times and logits as JSON."""
    options = Namespace(**json.loads(arguments[0]))
    engine = [f"engine.weights={options.form}", f"engine.checkpointing={options.checkpointing}"]
    fixed = [
        "engine.threads=1",
        "engine.device=cpu",
        "representation=mean",
        f"method.d={options.d}",
    ]
    experiment = Experiment.load("", [f"backbone={options.backbone}", *engine, *fixed])
    model = runtime_of(experiment).model
    texts = _texts(options)
    vectors = torch.from_numpy(model.parameters.initial(0))[None]
    vectors = vectors + 0.1 * torch.randn(vectors.shape, generator=torch.Generator().manual_seed(1))
    batch = model.collate([texts], [np.arange(options.batch)])
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # the peak from here on
    loaded = resident("VmRSS")
    seconds = [timed(lambda: model.gradients(vectors, batch))[0].cpu for _ in range(options.steps)]
    peak = resident("VmHWM")
    with torch.no_grad():
        outputs = model.outputs(model.realise(vectors), batch)
    figures = {
        "weights": weight_bytes(model.backbone.model) / 1e6,
        "peak": peak,
        "steps": peak - loaded,
        "seconds": median(seconds),
        "logits": outputs.flatten().tolist(),
    }
    print(json.dumps(figures))


def _texts(options: Namespace) -> Encoded:
    """Return random texts of equal length."""
    draw, total = np.random.default_rng(0), options.batch * options.tokens
    return Encoded(
        draw.integers(5, 300, total, dtype=np.int32),
        np.zeros(total, dtype=np.uint8),
        np.arange(options.batch + 1, dtype=np.int64) * options.tokens,
        np.full(options.batch, -1, dtype=np.int32),
        draw.integers(0, 2, options.batch, dtype=np.int64),
    )


def score_process(arguments: Sequence[str]) -> None:
    """Train over some clients in this process, and print the score as JSON."""
    options = Namespace(**json.loads(arguments[0]))
    task = [f"task.name={options.task}", *([f"task.path={options.glue}"] if options.glue else [])]
    experiment = Experiment.load(
        "",
        [
            *task,
            f"backbone={options.backbone}",
            f"engine.weights={options.form}",
            f"task.train_limit={options.examples}",
            f"task.eval_limit={options.examples}",
            f"method.d={options.d}",
            "federation.clients=2",
            f"federation.rounds={options.rounds}",
            f"output.eval_every={options.rounds}",
            "output.plots=false",
            "engine.threads=1",
            "engine.device=cpu",
        ],
    )
    with tempfile.TemporaryDirectory() as scratch:
        folder, _ = prepare(experiment, Path(scratch) / "run")
        print(json.dumps({"score": simulate(folder, experiment)["score"]}))


def _in_process(function: str, **options: Any) -> dict[str, Any]:
    code = (
        f"import sys; from simulations.benchmarks.weights import {function} as f; f(sys.argv[1:])"
    )
    return dict(child_json(code, json.dumps(options)))


def report_of(backbone: str, options: Namespace, scores: dict[str, float]) -> Report:
    """Measure every form of a backbone, with checkpointing and without."""
    cases = [(form, again) for form in options.forms for again in (False, True)]
    d = slash_d(Path(backbone).name)
    shared = {key: getattr(options, key) for key in ("batch", "tokens", "steps")}
    runs: dict[tuple[str, bool], list[dict[str, Any]]] = {case: [] for case in cases}
    for _ in range(options.repeats):
        for form, again in cases:
            figures = _in_process(
                "measure_process", backbone=backbone, d=d, form=form, checkpointing=again, **shared
            )
            runs[form, again].append(figures)
    table = [_row(case, runs, scores) for case in cases]
    settings = {"backbone": Path(backbone).name, "method": f"slash, d = {d}", "torch threads": 1}
    raw = {f"{form}{', checkpointing' * again}": runs[form, again] for form, again in cases}
    return Report({**settings, **shared, "repeats": options.repeats}, table, {}, raw)


def _row(
    case: tuple[str, bool],
    runs: dict[tuple[str, bool], list[dict[str, Any]]],
    scores: dict[str, float],
) -> Row:
    """Return a row of the table, with ratios to float32 without checkpointing."""
    (form, again), plain = case, runs["float32", False]
    figures = {key: median(run[key] for run in runs[case]) for key in ("weights", "peak", "steps")}
    ratios = [
        run["seconds"] / other["seconds"] for run, other in zip(runs[case], plain, strict=True)
    ]
    logits, exact = (np.array(each[0]["logits"]) for each in (runs[case], plain))
    return {
        "weights": form,
        "checkpointing": "yes" if again else "no",
        "MB of weights": round(figures["weights"], 1),
        "peak MB": round(figures["peak"]),
        "MB of a step": round(figures["steps"]),
        "time of a step, ratio": round(median(ratios), 2),
        "largest change of a logit": f"{np.abs(logits - exact).max():.1e}",
        "score": "-" if again or form not in scores else round(scores[form], 4),
    }


def save_gpt2(folder: Path) -> None:
    """Write a random GPT-2 of base size with the tokenizer of ``tiny``."""
    from transformers import GPT2Config, GPT2Model

    from fedpeft.backbones.tiny import tiny_tokenizer

    torch.manual_seed(0)
    GPT2Model(GPT2Config(**_GPT2)).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)


def main(arguments: Sequence[str] | None = None) -> list[Report]:
    """Run the benchmark from its command line."""
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = arguments_of(__doc__, repeats=3)
    parser.add_argument("--backbones", nargs="+", default=["minilm", "gpt2"])
    parser.add_argument("--forms", nargs="+", default=FORMS[:3], choices=FORMS)
    parser.add_argument("--batch", type=int, default=16, help="texts of a step")
    parser.add_argument("--tokens", type=int, default=64, help="tokens of a text")
    parser.add_argument("--steps", type=int, default=3, help="steps of each process")
    parser.add_argument("--glue", type=Path, help="folder of GLUE files; default: synthetic texts")
    parser.add_argument("--examples", type=int, default=400, help="examples to train and evaluate")
    parser.add_argument("--rounds", type=int, default=4, help="rounds before the score")
    options = parser.parse_args(arguments)
    task = "sst2" if options.glue else "synthetic/sentiment"
    reports = []
    with tempfile.TemporaryDirectory() as scratch:
        for name in options.backbones:
            backbone, scores = name, {}
            if name == "gpt2":
                backbone = str(Path(scratch) / name)
                save_gpt2(Path(backbone))
            else:
                common = {"backbone": name, "task": task, "glue": str(options.glue or "")}
                common |= {
                    "d": slash_d(name),
                    "examples": options.examples,
                    "rounds": options.rounds,
                }
                for form in options.forms:
                    scores[form] = _in_process("score_process", form=form, **common)["score"]
            reports.append(report_of(backbone, options, scores))
            if scores:
                about = f"{options.examples} examples, 2 clients, {options.rounds} rounds"
                reports[-1].facts["score"] = f"of {task}: {about}"
            record("weights", name, reports[-1], arguments, options.results)
    return reports


if __name__ == "__main__":
    script(main)
