"""The Flower ServerApp: read ``main`` top to bottom for the whole life of a run.

Its run config: ``experiment`` (TOML) and ``out`` (the run folder, made before the run). A run
whose folder has a checkpoint goes on from there, to the same bits.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp

from fedpeft.errors import RunFailed
from fedpeft.randomness import generator
from fedpeft.runtime import Runtime, runtime_of
from fedpeft.tasks.base import Kind
from fedpeft.tasks.metrics import scores, spearman
from fedpeft.training import evaluate
from fedpeft.vector import decode, encode
from server.exchange import exchange
from server.ledger import ByteLedger
from server.nodes import Node, Nodes
from server.result import describe_result, describe_vector
from server.runfolder import Checkpoint, RunFolder
from server.strategies import aggregate, build_strategy, restore_strategy, strategy_state

log = logging.getLogger(__name__)
app = ServerApp()
Checked = TypeVar("Checked")


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run a federation from its first round, or from its checkpoint, to its result."""
    folder = RunFolder(Path(str(context.run_config["out"])))
    runtime = runtime_of(str(context.run_config["experiment"]))
    experiment = runtime.experiment
    folder.pin(runtime.identity)
    strategy = build_strategy(experiment.federation)
    state = folder.checkpoint() or Checkpoint(0, runtime.model.initial(experiment.seed))
    restore_strategy(strategy, state.strategy)
    nodes = Nodes(grid, experiment, runtime.identity)
    nodes.wait()
    for number in range(state.round + 1, experiment.federation.rounds + 1):
        started = time.monotonic()
        run = Round(number, grid, runtime, folder, ByteLedger())
        nodes.refresh(run.ledger)
        asked = sample(nodes.clients, experiment.seed, number, experiment.clients_per_round)
        good, failed = train(run, asked, state.vector)
        weights = [weight(asked[c], experiment.federation.weighting) for c in good]
        updates = [(good[c].message, good[c].vector, w) for c, w in zip(good, weights, strict=True)]
        vector = aggregate(strategy, number, state.vector, updates)
        if not np.isfinite(vector).all():
            raise RunFailed(
                f"round {number}: the aggregated vector is not finite; "
                f"federation.max_update_norm limits what a client can add"
            )
        line = {
            "round": number,
            "clients": len(good),
            "failed": [{"client": c, "reason": failed[c]} for c in sorted(failed)],
            "loss": float(np.average([good[c].loss for c in good], weights=weights)),
            **measure(run, nodes.clients, vector),
            "seconds": time.monotonic() - started,
            "bytes": run.ledger.round_bytes(),
            "epsilon": None,
        }
        for client in failed:
            nodes.forget(client)
        seconds = state.seconds + time.monotonic() - started
        state = Checkpoint(number, vector, strategy_state(strategy), seconds)
        folder.save_round(line, run.ledger.lines(number), state)
    folder.report("finished", state.round, 1, 1)
    result = describe_result(runtime, folder, state)
    folder.finish(result, state.vector, describe_vector(runtime))


@dataclass(frozen=True)
class Round:
    """One round, counted from 1, and what it has sent so far."""

    number: int
    grid: Grid
    runtime: Runtime
    folder: RunFolder
    ledger: ByteLedger

    def ask(
        self, kind: str, vector: np.ndarray, clients: Mapping[int, Node]
    ) -> tuple[dict[int, Message], dict[int, str]]:
        """Send the task vector to clients; return their replies, and why others gave none."""
        experiment = self.runtime.experiment
        content = RecordDict(
            {
                "arrays": ArrayRecord({"vector": Array(encode(vector, experiment.wire.codec))}),
                "config": ConfigRecord({"experiment": self.runtime.digest, "round": self.number}),
            }
        )
        return exchange(
            self.grid,
            kind,
            content,
            {client: node.node_id for client, node in clients.items()},
            self.ledger,
            experiment.federation.timeout,
            lambda done, total: self.folder.report(
                phase=kind, round=self.number, done=done, total=total
            ),
        )


@dataclass(frozen=True)
class Update:
    """A client's checked reply: the task vector [P] it trained, and its mean training loss."""

    message: Message
    vector: np.ndarray
    loss: float


def sample(clients: Mapping[int, Node], seed: int, number: int, count: int) -> dict[int, Node]:
    """Return the clients of a round, drawn by a generator of (seed, round), in client order."""
    pool = sorted(clients)
    draw = generator(seed, "sample", number)
    chosen = draw.choice(pool, min(count, len(pool)), replace=False)
    return {client: clients[client] for client in sorted(chosen.tolist())}


def weight(node: Node, weighting: str) -> float:
    """Return how much a client counts in the average."""
    return float(node.examples) if weighting == "examples" else 1.0


def train(
    run: Round, asked: Mapping[int, Node], vector: np.ndarray
) -> tuple[dict[int, Update], dict[int, str]]:
    """Have clients train; return the good updates in client order, and why others failed.

    Raises:
        RunFailed: fewer good updates than ``federation.min_success``.
    """
    replies, failed = run.ask("train", vector, asked)
    good = check_all(replies, failed, lambda reply: check_update(run.runtime, reply, vector))
    for client, reason in sorted(failed.items()):
        log.warning("round %d: client %d failed: %s", run.number, client, reason)
    needed = run.runtime.experiment.federation.min_success
    if len(good) < needed:
        reasons = "; ".join(f"client {c}: {failed[c]}" for c in sorted(failed)[:3])
        raise RunFailed(
            f"round {run.number}: {len(good)} of {len(asked)} clients succeeded, "
            f"federation.min_success is {needed} ({reasons})"
        )
    return good, failed


def check_all(
    replies: Mapping[int, Message], failed: dict[int, str], check: Callable[[Message], Checked]
) -> dict[int, Checked]:
    """Return what ``check`` makes of the replies; a client it refuses goes to ``failed``."""
    good = {}
    for client, reply in replies.items():
        try:
            good[client] = check(reply)
        except ValueError as error:
            failed[client] = f"refused: {error}"
        except Exception as error:  # a reply may hold anything
            failed[client] = f"refused: {type(error).__name__}: {error}"
    return good


def check_update(runtime: Runtime, reply: Message, start: np.ndarray) -> Update:
    """Return what a reply says; nothing in it is trusted.

    Raises:
        ValueError: wrong experiment, length or number format, a NaN, too large an update.
    """
    experiment, content = runtime.experiment, reply.content
    if content["config"]["experiment"] != runtime.digest:
        raise ValueError("the reply belongs to another experiment")
    array = content["arrays"]["vector"].numpy()
    vector = decode(array, experiment.wire.codec, len(start), str(start.dtype))
    limit = experiment.federation.max_update_norm
    norm = float(np.linalg.norm(vector - start))
    if limit and norm > limit:
        raise ValueError(f"update norm {norm:.4g} is above federation.max_update_norm = {limit:g}")
    loss = float(content["metrics"]["loss"])
    if not np.isfinite(loss):
        raise ValueError(f"training loss is {loss}")
    return Update(reply, vector, loss)


def measure(run: Round, clients: Mapping[int, Node], vector: np.ndarray) -> dict[str, Any]:
    """Evaluate a task vector; all null in a round that ``output.eval_every`` leaves out."""
    experiment, task = run.runtime.experiment, run.runtime.task
    last = run.number == experiment.federation.rounds
    if not last and run.number % experiment.output.eval_every:
        return {"score": None, "eval_loss": None, "metrics": None, "evaluated": None}
    if experiment.federation.evaluation == "clients":
        statistics, loss, extra = measure_at_clients(run, clients, vector)
    else:
        statistics, loss, extra = measure_here(run, vector)
    metrics = scores(statistics, task.info.kind) | extra
    return {
        "score": metrics[task.info.metric],
        "eval_loss": loss if np.isfinite(loss) else None,  # JSON knows no infinity
        "metrics": metrics,
        "evaluated": examples_of(statistics, task.info.kind),
    }


def examples_of(statistics: np.ndarray, kind: Kind) -> int:
    """Return how many examples are in summable statistics (fedpeft.tasks.metrics)."""
    return int(statistics.sum() if kind == "classes" else statistics[0])


def measure_here(
    run: Round, vector: np.ndarray
) -> tuple[np.ndarray, float, dict[str, float | None]]:
    """Evaluate on the server's copy of the dev set: statistics, mean loss, further metrics."""
    run.folder.report(phase="evaluate", round=run.number, done=0, total=1)
    runtime, dev = run.runtime, run.runtime.dev
    found = evaluate(runtime.model, vector, dev)
    extra: dict[str, float | None] = {}
    if runtime.task.info.kind == "score":
        extra["spearman"] = spearman(found.outputs[:, 0], dev.labels)
    return found.statistics, found.loss_sum / len(dev), extra


def measure_at_clients(
    run: Round, clients: Mapping[int, Node], vector: np.ndarray
) -> tuple[np.ndarray, float, dict[str, float | None]]:
    """Have every client evaluate its share of the dev set, and sum what they found.

    Raises:
        RunFailed: no client answered.
    """
    kind = run.runtime.task.info.kind
    numbers = run.runtime.task.classes**2 if kind == "classes" else 6
    replies, failed = run.ask("evaluate", vector, clients)
    good = check_all(replies, failed, lambda reply: check_measured(reply, numbers, kind))
    for client, reason in sorted(failed.items()):
        log.warning("round %d: client %d did not evaluate: %s", run.number, client, reason)
    if not good:
        raise RunFailed(f"round {run.number}: no client evaluated")
    statistics = np.sum([found[0] for found in good.values()], axis=0)
    loss = sum(found[1] for found in good.values()) / examples_of(statistics, kind)
    # Spearman needs all the pairs in one place.
    extra: dict[str, float | None] = {"spearman": None} if kind == "score" else {}
    return statistics, loss, extra


def check_measured(reply: Message, numbers: int, kind: Kind) -> tuple[np.ndarray, float]:
    """Return (statistics, summed loss) of a client's evaluation.

    Raises:
        ValueError: not so many statistics, one that is not finite, or counts that are none.
    """
    array, metrics = reply.content["arrays"]["statistics"], reply.content["metrics"]
    statistics = decode(array.numpy(), "float64", numbers, "float64")
    counts = statistics if kind == "classes" else statistics[:1]
    if (counts < 0).any() or (counts % 1).any() or not counts.sum():
        raise ValueError("the statistics are no counts of examples")
    loss_sum = float(metrics["loss-sum"])
    if not np.isfinite(loss_sum):
        raise ValueError(f"evaluation loss is {loss_sum}")
    return statistics, loss_sum
