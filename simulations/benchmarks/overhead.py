"""What the local engine costs over a bare loop that trains the same batches.

The bare loop is plain PyTorch, written below: the same clients, rounds, start vector, batches and
final evaluation, on the same backbone in the same process with the same threads, but no Flower,
no messages, no ledger, no files and no group axis. It must end in the same vector, else the
comparison is void and the script fails. Backbone and data are loaded before; the engine's time is
all the rest of a run: partition, run folder, handshake, rounds, evaluation and result.

Example:
    python -m simulations.benchmarks.overhead
    python -m simulations.benchmarks.overhead --backbone minilm tiny
    python -m simulations.benchmarks.overhead --glue ../shared/data/glue
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from statistics import median

import numpy as np
import torch
from safetensors.numpy import load_file
from torch import Tensor
from torch.nn import functional
from torch.nn.utils import clip_grad_norm_
from torch.nn.utils.rnn import pad_sequence

from clients.partitioning import partition
from fedpeft import training
from fedpeft.config import Experiment
from fedpeft.projection import Projection
from fedpeft.runtime import Runtime, runtime_of
from fedpeft.tasks.encoding import Encoded
from server.runfolder import VECTOR
from simulations.benchmarks.common import (
    APART,
    CLOSE,
    Report,
    Timing,
    alternate,
    arguments_of,
    compare,
    difference,
    record,
    slash_d,
    timed,
)
from simulations.run import prepare, simulate

TARGET = 1.10  # engine / bare loop, wall clock, with minilm
EVALUATED = 64  # dev examples: one batch, so that the evaluation both do hides nothing


@dataclass(frozen=True)
class Client:
    """A client's examples as a plain loop would hold them."""

    examples: Encoded
    tokens: list[Tensor]  # token ids of each text
    lengths: Tensor  # [n]
    read: Tensor  # [n], position that the head reads
    labels: Tensor  # [n]

    @classmethod
    def of(cls, examples: Encoded) -> Client:
        """Cut the examples into a tensor for each text."""
        cuts = np.split(examples.tokens, examples.offsets[1:-1])
        return cls(
            examples,
            [torch.from_numpy(tokens.astype(np.int64)) for tokens in cuts],
            torch.from_numpy(examples.lengths),
            torch.from_numpy(examples.read.astype(np.int64)),
            torch.from_numpy(examples.labels),
        )


class BareLoop:
    """Federated SLaSh (Gupta et al. 2023, section 2) as one would write it for one experiment."""

    def __init__(self, experiment: Experiment, runtime: Runtime):
        self.experiment, self.runtime = experiment, runtime
        self.encoder, self.pad_id = runtime.backbone.model, runtime.backbone.tokenizer.pad_token_id
        projections = [w for w in runtime.model.method.projections() if isinstance(w, Projection)]
        d = projections[0].columns
        self.weights = [torch.from_numpy(w.transposed()) / sqrt(d) for w in projections]
        classes = runtime.info.classes
        self.sizes = [d, runtime.backbone.shape.width * classes, classes]
        self.shifts: list[Tensor] = []
        rows = partition(runtime.task, experiment)
        self.clients = [Client.of(runtime.train.select(each)) for each in rows]

    def run(self) -> np.ndarray:
        """Train all rounds and evaluate; return the final vector [P]."""
        vector = self.runtime.model.initial(self.experiment.seed)
        counts = [len(client.tokens) for client in self.clients]
        with self.hooked():
            for number in range(1, self.experiment.federation.rounds + 1):
                trained = [self.train(i, vector, number) for i in range(len(self.clients))]
                vector = np.average(trained, axis=0, weights=counts).astype(vector.dtype)
        training.evaluate(self.runtime.model, vector, self.runtime.dev)
        return vector

    def train(self, index: int, start: np.ndarray, number: int) -> np.ndarray:
        """Train one client in one round."""
        client, local = self.clients[index], self.experiment.local
        rounds = self.experiment.federation.rounds
        when = training.When(self.experiment.seed, number, rounds)
        plan = training.plan_batches(
            index, client.examples, local, when
        )  # the engine's own batches
        vector = torch.from_numpy(start.copy()).requires_grad_()
        optimizer = torch.optim.AdamW([vector], betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0)
        for step, rows in enumerate(plan):
            done = (number - 1 + step / len(plan)) / rounds
            optimizer.param_groups[0]["lr"] = (local.lr or 0.0) * (1 - done)  # linear to 0
            optimizer.zero_grad()
            self.loss(vector, client, torch.from_numpy(rows)).backward()
            clip_grad_norm_([vector], local.max_grad_norm)
            optimizer.step()
        return vector.detach().numpy()

    def loss(self, vector: Tensor, client: Client, rows: Tensor) -> Tensor:
        """Return the mean loss of a batch."""
        z, weight, bias = vector.split(self.sizes)
        self.shifts = [z @ projection for projection in self.weights]
        tokens = pad_sequence([client.tokens[i] for i in rows], True, self.pad_id)  # [B, T]
        mask = (torch.arange(tokens.shape[1]) < client.lengths[rows, None]).long()
        states = self.encoder(input_ids=tokens, attention_mask=mask).last_hidden_state
        if self.experiment.representation == "mean":
            share = mask[:, :, None].to(states.dtype)
            read = (states * share).sum(1) / share.sum(1)
        else:
            read = states[torch.arange(len(rows)), client.read[rows]]
        scores = read @ weight.view(len(bias), -1).T + bias
        return functional.cross_entropy(scores, client.labels[rows])

    @contextmanager
    def hooked(self) -> Iterator[None]:
        """Add shift l before the last LayerNorm of block l while the context is open."""
        handles = [
            block.output.LayerNorm.register_forward_pre_hook(
                lambda _, inputs, layer=layer: (inputs[0] + self.shifts[layer],)
            )
            for layer, block in enumerate(self.encoder.encoder.layer)
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()


def run_engine(experiment: Experiment, folder: Path) -> Path:
    """Run the experiment as ``fedpeft simulate`` does, without display and plots."""
    run, _ = prepare(experiment, folder)
    simulate(run, experiment)
    return folder / VECTOR


def experiment_of(backbone: str, options: argparse.Namespace) -> Experiment:
    """Return the experiment that both sides run."""
    task = ["task.name=sst2", f"task.path={options.glue}"] if options.glue else []
    return Experiment.load(
        "",
        [
            f"backbone={backbone}",
            *task,
            f"task.train_limit={options.clients * options.examples}",
            f"task.eval_limit={EVALUATED}",
            f"method.d={slash_d(backbone)}",
            f"federation.clients={options.clients}",
            f"federation.rounds={options.rounds}",
            f"engine.threads={options.threads}",
            "engine.device=cpu",
            f"output.eval_every={options.rounds + 1}",  # the last round is always evaluated
            "output.plots=false",
        ],
    )


def measure(experiment: Experiment, repeats: int) -> Report:
    """Time both sides in turns, after one run of each to warm up.

    Raises:
        SystemExit: the two do not end in the same vector.
    """
    runtime = runtime_of(experiment.to_toml())
    loop = BareLoop(experiment, runtime)
    with tempfile.TemporaryDirectory() as scratch:
        folders = (Path(scratch) / str(number) for number in range(repeats + 1))
        found = load_file(run_engine(experiment, next(folders)))["vector"]
        expected = loop.run()
        apart = difference(found, expected, runtime.model.initial(experiment.seed))
        if not apart <= CLOSE:
            raise SystemExit(f"the bare loop ends {apart:.2g} apart from the engine: not the same")
        engine, bare = alternate(
            lambda: timed(lambda: run_engine(experiment, next(folders)))[0],
            lambda: timed(loop.run)[0],
            repeats,
        )
    return _report(experiment, engine, bare, apart, len(expected))


def _report(
    experiment: Experiment, engine: list[Timing], bare: list[Timing], apart: float, size: int
) -> Report:
    names = ("engine", "bare loop")
    table = [
        compare("wall s", names, [each.wall for each in engine], [each.wall for each in bare]),
        compare("CPU s", names, [each.cpu for each in engine], [each.cpu for each in bare]),
    ]
    federation = experiment.federation
    messages = federation.clients * federation.rounds
    extra = median(a.wall - b.wall for a, b in zip(engine, bare, strict=True))
    facts = {
        "ratio": "engine / bare loop, of each pair of runs",
        "ms of the engine's own for a client and round": 1e3 * extra / messages,
        APART: apart,
        "target for minilm": f"wall ratio at most {TARGET}",
    }
    settings = {
        "backbone": experiment.backbone,
        "task": experiment.task.name,
        "clients": federation.clients,
        "examples a client": experiment.task.train_limit // federation.clients,
        "rounds": federation.rounds,
        "batch": experiment.local.batch_size,
        "vector": size,
        "torch threads": torch.get_num_threads(),
        "repeats": len(engine),
    }
    raw = {"engine": [vars(each) for each in engine], "bare loop": [vars(each) for each in bare]}
    return Report(settings, table, facts, raw)


def main(arguments: Sequence[str] | None = None) -> list[Report]:
    """Run the benchmark from its command line."""
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = arguments_of(__doc__)
    parser.add_argument("--backbone", nargs="+", default=["minilm"], help="minilm (default), tiny")
    parser.add_argument("--glue", type=Path, help="folder of GLUE files: SST-2 for synthetic data")
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--examples", type=int, default=64, help="of each client (64)")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--threads", type=int, default=0, help="torch threads (0: torch decides)")
    options = parser.parse_args(arguments)
    logging.getLogger("flwr").setLevel(logging.ERROR)  # as fedpeft.cli does
    reports = []
    for backbone in options.backbone:
        experiment = experiment_of(backbone, options)
        reports.append(measure(experiment, options.repeats))
        case = f"{backbone}, {experiment.task.name}"
        record("overhead", case, reports[-1], arguments, options.results)
    return reports


if __name__ == "__main__":
    main()
