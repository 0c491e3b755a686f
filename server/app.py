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
from fedpeft.tasks import Task, metrics
from fedpeft.trained import describe_vector
from fedpeft.training import evaluate
from fedpeft.vector import decode, encode
from server.exchange import exchange
from server.ledger import ByteLedger
from server.nodes import Node, Nodes
from server.result import describe_result
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
    experiment, info = run.runtime.experiment, run.runtime.task.info
    if run.number < experiment.federation.rounds and run.number % experiment.output.eval_every:
        return {"score": None, "eval_loss": None, "metrics": None, "evaluated": None}
    if experiment.federation.evaluation == "clients":
        statistics, loss_sum = measure_at_clients(run, clients, vector)
        extra = metrics.unsummable_scores(info.kind)
    else:
        run.folder.report(phase="evaluate", round=run.number, done=0, total=1)
        found = evaluate(run.runtime.model, vector, run.runtime.dev)
        statistics, loss_sum = found.statistics, found.loss_sum
        extra = metrics.unsummable_scores(info.kind, found.outputs, run.runtime.dev.labels)
    scores = metrics.scores(statistics, info.kind) | extra
    count = metrics.examples_of(statistics, info.kind)
    loss = loss_sum / count if np.isfinite(loss_sum) else None  # JSON knows no infinity
    return {"score": scores[info.metric], "eval_loss": loss, "metrics": scores, "evaluated": count}


def measure_at_clients(
    run: Round, clients: Mapping[int, Node], vector: np.ndarray
) -> tuple[np.ndarray, float]:
    """Have every client evaluate its share of the dev set; return summed statistics and loss.

    Raises:
        RunFailed: no client answered.
    """
    task = run.runtime.task
    replies, failed = run.ask("evaluate", vector, clients)
    good = check_all(replies, failed, lambda reply: check_measured(reply, task))
    for client, reason in sorted(failed.items()):
        log.warning("round %d: client %d did not evaluate: %s", run.number, client, reason)
    if not good:
        raise RunFailed(f"round {run.number}: no client evaluated")
    statistics = np.sum([found[0] for found in good.values()], axis=0)
    return statistics, sum(found[1] for found in good.values())


def check_measured(reply: Message, task: Task) -> tuple[np.ndarray, float]:
    """Return (statistics, summed loss) of a client's evaluation.

    Raises:
        ValueError: not so many statistics, one that is not finite, or counts that cannot be.
    """
    kind, array = task.info.kind, reply.content["arrays"]["statistics"].numpy()
    size = metrics.statistics_size(kind, task.classes)
    statistics = decode(array, "float64", size, "float64")
    metrics.check_statistics(statistics, kind)
    loss_sum = float(reply.content["metrics"]["loss-sum"])
    if not np.isfinite(loss_sum):
        raise ValueError(f"evaluation loss is {loss_sum}")
    return statistics, loss_sum
