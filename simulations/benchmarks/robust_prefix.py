"""Robust prefix tuning (Yang and Liu 2022): accuracy on perturbed texts with and without it.

For each seed a prefix is trained in one place on examples that the seed draws. Then the texts of
the dev set are perturbed, and classified with the trained prefix, and with an extra prefix for each
batch (``simulations.benchmarks.parts.robust_prefix``). The attack reads the probabilities of the
trained prefix. Learning rate and number of blocks of the extra prefix are those that score best on
held-out training examples with typos, of the first seed; the dev set chooses nothing.

Finished seeds are kept in --work and not repeated.

Example: python -m simulations.benchmarks.robust_prefix --glue ../shared/data/glue
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np

from fedpeft.experiment.config import Experiment
from fedpeft.files import write_json
from fedpeft.randomness import When, generator
from fedpeft.runtime import Runtime, forget_runtimes, runtime_of
from fedpeft.tasks import Examples
from fedpeft.training import outputs_of, train_cohort
from simulations.benchmarks.common import Report, Row, arguments_of, record, script
from simulations.benchmarks.parts.codec_pairs import interval
from simulations.benchmarks.parts.perturbations import dropped, with_typos, worst_typos
from simulations.benchmarks.parts.robust_prefix import Standard, Tuning, robust_outputs, standard_of

SHARE = 0.3  # of the words with a typo, or dropped
TURNS = 2  # typos of the attack
SETTINGS = [
    "method.name=prefix",
    "task.max_length=64",
    "local.warmup=0.06",
    "engine.threads=1",
    "engine.autocast=bfloat16",
    "output.plots=false",
]
LRS, BLOCKS = (0.003, 0.01, 0.05), (0,)  # tried for the extra prefix; the authors: 0.05, 0.15


@dataclass(frozen=True)
class Subject:
    """A trained prefix, its standard, and texts that it was not trained on."""

    runtime: Runtime
    vector: np.ndarray
    standard: Standard
    held_out: Examples

    def plain(self, examples: Examples) -> np.ndarray:
        """Return logits [n, C] with the trained prefix."""
        return outputs_of(self.runtime.model, self.vector, self.runtime.encode(examples))

    def robust(self, examples: Examples, tuning: Tuning) -> np.ndarray:
        """Return logits [n, C] with an extra prefix for each batch."""
        texts = self.runtime.encode(examples)
        return robust_outputs(self.runtime.model, self.vector, texts, self.standard, tuning)

    def confidence(self, texts: Sequence[str], labels: np.ndarray) -> np.ndarray:
        """Return the probability [n] that the trained prefix gives each text's label."""
        logits = self.plain(Examples(list(texts), None, labels))
        powers = np.exp(logits - logits.max(1, keepdims=True))
        chosen: np.ndarray = (powers / powers.sum(1, keepdims=True))[np.arange(len(texts)), labels]
        return chosen


def trained(options: argparse.Namespace, seed: int) -> Subject:
    """Train a prefix and compute its standard on the same examples."""
    count = options.examples + options.held_out
    path = [f"task.path={options.glue}/SST-2"] if options.glue else []
    sizes = [f"task.train_limit={count}", f"task.eval_limit={options.texts}"]
    shared = [*SETTINGS, *path, *sizes, f"task.name={options.task}", f"seed={seed}"]
    how = [f"local.epochs={options.epochs}", f"backbone={options.backbone}"]
    experiment = Experiment.load("", [*shared, *how])
    runtime = runtime_of(experiment)
    rows = generator(seed, "held-out").permutation(len(runtime.task.train))
    texts = runtime.task.train.select(rows[: options.examples])
    data, when = runtime.encode(texts), When(seed, 1, 1)
    start = runtime.parameters.initial(seed)
    result = train_cohort(runtime.model, start, [data], [0], experiment.local, when)
    standard = standard_of(runtime.model, result.vectors[0], data, options.share)
    rest = runtime.task.train.select(rows[options.examples :])
    return Subject(runtime, result.vectors[0], standard, rest)


def perturbed(subject: Subject, examples: Examples, seed: int) -> dict[str, Examples]:
    """Return the examples as they are and in each perturbation."""
    texts, labels = [str(text) for text in examples.text], examples.labels
    typos, drops, attack = (generator(seed, name) for name in ("typos", "drops", "attack"))
    made = {
        "clean": texts,
        "typos": [with_typos(text, SHARE, typos) for text in texts],
        "dropped words": [dropped(text, SHARE, drops) for text in texts],
        "worst typos": worst_typos(texts, labels, subject.confidence, TURNS, attack),
    }
    return {name: Examples(changed, None, labels) for name, changed in made.items()}


def accuracy(logits: np.ndarray, examples: Examples) -> float:
    """Return the share of correct classes."""
    return float((logits.argmax(1) == examples.labels).mean())


def chosen(subject: Subject, steps: int, seed: int) -> tuple[Tuning, dict[str, float]]:
    """Return the tuning that scores best on held-out texts with typos, and all scores."""
    draw = generator(seed, "typos of held-out texts")
    texts = [with_typos(str(text), SHARE, draw) for text in subject.held_out.text]
    typos = Examples(texts, None, subject.held_out.labels)
    scores = {"none": accuracy(subject.plain(typos), typos)}
    tunings = {}
    for lr, blocks in product(LRS, BLOCKS):
        name = f"lr {lr}, {blocks or 'all'} blocks"
        tunings[name] = Tuning(steps=steps, lr=lr, blocks=blocks)
        scores[name] = accuracy(subject.robust(typos, tunings[name]), typos)
    return tunings[max(tunings, key=lambda name: scores[name])], scores


def measured(subject: Subject, tuning: Tuning, seed: int) -> dict[str, Any]:
    """Return the accuracies of one seed, ``perturbation -> [plain, robust]``, and seconds."""
    made = perturbed(subject, subject.runtime.task.dev, seed)
    results: dict[str, Any] = {}
    for name, examples in made.items():
        begun = time.process_time()
        plain = accuracy(subject.plain(examples), examples)
        between = time.process_time()
        robust = accuracy(subject.robust(examples, tuning), examples)
        took = [between - begun, time.process_time() - between]
        results[name] = {"accuracy": [plain, robust], "seconds": took}
        print(f"seed {seed}, {name}: {plain:.4f} -> {robust:.4f}", flush=True)
    return results


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Run the unfinished seeds; return the tuning, the scores that chose it, and all results."""
    options.work.mkdir(parents=True, exist_ok=True)
    state = options.work / "state.json"
    done: dict[str, Any] = json.loads(state.read_text()) if state.exists() else {"seeds": {}}
    for seed in range(options.seeds):
        if str(seed) in done["seeds"]:
            continue
        forget_runtimes()
        subject = trained(options, seed)
        if "tuning" not in done:
            tuning, done["choice"] = chosen(subject, options.steps, seed)
            done["tuning"] = asdict(tuning)
            print(f"chosen: {tuning}, {done['choice']}", flush=True)
        results = measured(subject, Tuning(**done["tuning"]), seed)
        directions = [along.shape[1] for along in subject.standard.directions]
        kept = {"correct": subject.standard.examples, "directions": directions}
        done["seeds"][str(seed)] = {"results": results, **kept}
        write_json(state, done)
    return done


def report(options: argparse.Namespace) -> Report:
    """Run the benchmark and build its table."""
    done = run(options)
    seeds = [done["seeds"][str(seed)] for seed in range(options.seeds)]
    table = [_row(name, [one["results"][name] for one in seeds]) for name in seeds[0]["results"]]
    tuning = Tuning(**done["tuning"])
    facts = {
        "extra prefix": f"{tuning.steps} steps of Adam, lr {tuning.lr}, "
        f"{tuning.blocks or 'all'} blocks, {tuning.batch} texts a batch",
        "chosen on": f"{options.held_out} held-out training texts with typos, first seed; "
        + ", ".join(f"{name}: {score:.3f}" for name, score in done["choice"].items()),
        "standard": f"directions behind each block, first seed: {seeds[0]['directions']}, of "
        f"{seeds[0]['correct']} correctly classified examples",
        "perturbations": f"typos: two inner letters swapped in {SHARE:.0%} of the words; dropped "
        f"words: {SHARE:.0%}; worst typos: a greedy attack with {TURNS} typos",
        "gain": "points of accuracy; 95 % t interval over the seeds",
    }
    keys = ("task", "backbone", "examples", "epochs", "texts", "seeds", "share")
    return Report({key: getattr(options, key) for key in keys}, table, facts, done)


def _row(name: str, results: Sequence[dict[str, Any]]) -> Row:
    plain, robust = np.array([one["accuracy"] for one in results]).T
    gains = 100 * (robust - plain)
    row: Row = {
        "texts": name,
        "prefix": round(mean(plain), 4),
        "robust prefix": round(mean(robust), 4),
        "gain": round(mean(gains), 2),
        "seeds better": f"{int((gains > 0).sum())} of {len(gains)}",
    }
    if len(gains) > 1:
        low, high = interval(gains) if stdev(gains) else (gains[0], gains[0])
        row["interval"] = f"{low:+.2f} to {high:+.2f}"
    one, other = (sum(run["seconds"][at] for run in results) for at in (0, 1))
    return {**row, "times the CPU seconds": round(other / one, 1)}


def main(arguments: Sequence[str] | None = None) -> Report:
    """Run the benchmark from its command line."""
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = arguments_of(__doc__, None)
    parser.add_argument("--task", default="sst2")
    parser.add_argument("--backbone", default="minilm")
    parser.add_argument("--glue", default="", help="folder of GLUE; default: download")
    parser.add_argument("--examples", type=int, default=2000, help="training examples (2000)")
    parser.add_argument("--epochs", type=int, default=3, help="epochs of training (3)")
    parser.add_argument("--held-out", type=int, default=300, help="examples to choose with (300)")
    parser.add_argument("--texts", type=int, default=0, help="texts of the dev set; 0 = all")
    parser.add_argument("--share", type=float, default=0.95, help="variance kept (0.95)")
    parser.add_argument("--steps", type=int, default=10, help="steps of the extra prefix (10)")
    parser.add_argument("--seeds", type=int, default=5, help="seeds (5)")
    parser.add_argument("--work", type=Path, default=Path("runs/robust-prefix"))
    options = parser.parse_args(arguments)
    made = report(options)
    record("robust_prefix", options.task, made, arguments, options.results)
    return made


if __name__ == "__main__":
    script(main)
