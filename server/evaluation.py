"""Measuring a task vector, at the server or at the clients."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import numpy as np
from flwr.app import Message

from fedpeft.errors import RunFailed
from fedpeft.tasks import TaskInfo, metrics
from fedpeft.training import evaluate
from fedpeft.vector import decode
from server.nodes import Node
from server.round import Round, check_all

log = logging.getLogger(__name__)


def measure(
    run: Round, clients: Mapping[int, Node], vector: np.ndarray, last: bool = False
) -> dict[str, Any]:
    """Evaluate a task vector; all null in a round that ``output.eval_every`` leaves out.

    Never in the ``last`` round, which is usually that of ``federation.rounds``.
    """
    experiment, info = run.runtime.experiment, run.runtime.info
    last = last or run.number == experiment.federation.rounds
    if not last and run.number % experiment.output.eval_every:
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
    info = run.runtime.info
    replies, failed = run.ask("evaluate", vector, clients)
    good = check_all(replies, failed, lambda reply: check_measured(reply, info))
    for client, reason in sorted(failed.items()):
        log.warning("round %d: client %d did not evaluate: %s", run.number, client, reason)
        name = f" ({clients[client].name})" if clients[client].name else ""
        run.folder.note(f"client {client}{name} did not evaluate: {reason}")
    if not good:
        reasons = "; ".join(f"client {client}: {failed[client]}" for client in sorted(failed)[:3])
        raise RunFailed(f"round {run.number}: no client evaluated ({reasons or 'none was there'})")
    statistics = np.sum([found[0] for found in good.values()], axis=0)
    return statistics, sum(found[1] for found in good.values())


def check_measured(reply: Message, info: TaskInfo) -> tuple[np.ndarray, float]:
    """Return (statistics, summed loss) of a client's evaluation.

    Raises:
        ValueError: not so many statistics, one that is not finite, or counts that cannot be.
    """
    kind, array = info.kind, reply.content["arrays"]["statistics"].numpy()
    size = metrics.statistics_size(kind, info.classes)
    statistics = decode(array, "float64", size, "float64")
    metrics.check_statistics(statistics, kind)
    loss_sum = float(reply.content["metrics"]["loss-sum"])
    if not np.isfinite(loss_sum):
        raise ValueError(f"evaluation loss is {loss_sum}")
    return statistics, loss_sum
