"""Evaluation of a task vector, at the server or at the clients."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping

import numpy as np
from flwr.app import Message

from fedpeft.adversary import attack_success
from fedpeft.errors import RunFailed
from fedpeft.nested import is_small
from fedpeft.tasks import TaskInfo, caveats, metrics
from fedpeft.tasks.text_metrics import generates
from fedpeft.training import evaluate
from fedpeft.transfer import encode_down
from fedpeft.wire.formats import decode
from fedpeft.wire.messages import RECORD, EvaluateReply, from_fields, start_name
from server.byte_ledger import ByteLedger
from server.checkpoints import START
from server.downlink import start_of
from server.exchange import check_replies
from server.participants import Participants
from server.records import Measured
from server.reported import max_loss, read_float
from server.run import Run

log = logging.getLogger(__name__)


def measure(
    run: Run,
    number: int,
    vector: np.ndarray,
    memory: Mapping[str, np.ndarray],
    participants: Participants,
    ledger: ByteLedger,
    last: bool = False,
) -> Measured:
    """Evaluate the task vector after a round; all None if ``output.eval_every`` skips the round.

    Args:
        run: the run.
        number: of the round, from 1.
        vector: the task vector [P].
        memory: arrays of the checkpoint.
        participants: their clients evaluate if ``federation.evaluation`` is "clients".
        ledger: counts the bytes of the round.
        last: whether the run ends with this round, which is then evaluated in any case.
    """
    experiment, info = run.experiment, run.runtime.info
    last = last or number == experiment.federation.rounds
    if not last and number % experiment.output.eval_every:
        return {"score": None, "eval_loss": None, "metrics": None, "evaluated": None, "caveats": {}}
    if experiment.federation.evaluation == "clients":
        statistics, loss_sum, found = measure_at_clients(
            run, number, vector, memory, participants, ledger
        )
        extra = metrics.unsummable_scores(info.kind)
    else:
        run.folder.report("evaluate", number, 0, 1)
        evaluation = evaluate(run.runtime.model, vector, run.runtime.dev)
        statistics, loss_sum = evaluation.statistics, evaluation.loss_sum
        found = caveats.named(evaluation.counts)
        extra = metrics.unsummable_scores(info.kind, evaluation.outputs, run.runtime.dev.labels)
        if experiment.adversary.fraction and experiment.adversary.attack == "backdoor":
            extra = {**extra, "attack_success": attack_success(run.runtime, vector)}
    scores = {
        name: _finite(value)
        for name, value in (metrics.scores(statistics, info.kind) | extra).items()
    }
    if not math.isfinite(loss_sum):  # NaN counts as the first class, or as no correlation
        found = {**found, caveats.NOT_FINITE: 1}
        log.warning("round %d: %s", number, caveats.NO_SCORE)
        scores = dict.fromkeys(scores)
    count = metrics.examples_of(statistics, info.kind)
    loss = _finite(loss_sum / count)
    return {
        "score": scores[info.metric],
        "eval_loss": loss,
        "metrics": scores,
        "evaluated": count,
        "caveats": found,
    }


def _finite(value: float | None) -> float | None:
    """Return a value for JSON, which has no NaN and no infinity."""
    return value if value is not None and math.isfinite(value) else None


def measure_at_clients(
    run: Run,
    number: int,
    vector: np.ndarray,
    memory: Mapping[str, np.ndarray],
    participants: Participants,
    ledger: ByteLedger,
) -> tuple[np.ndarray, float, dict[str, float]]:
    """Let clients evaluate their shares of the dev set.

    Return summed statistics, summed loss, and caveats.

    Raises:
        RunFailed: no client replied.
    """
    info = run.runtime.info
    clients = participants.join(participants.to_evaluate(number), ledger, number)
    head, start = memory.get(START), start_of(run.runtime, memory)
    sent = {
        client: encode_down(run.runtime, number, vector, is_small(run.experiment, client), head)
        for client in clients
    }
    replies, failed = run.ask("evaluate", number, sent, clients, ledger, start=start)
    participants.hold(replies, start=start_name(start))
    participants.hear("evaluate", number, clients, failed)
    task = run.experiment.task
    longest = task.max_target if info.kind == "text" else task.max_length
    checked = check_replies(
        replies, failed, lambda client, reply: check_measured(reply, info, longest)
    )
    for client, reason in sorted(failed.items()):
        log.warning("round %d: client %d did not evaluate: %s", number, client, reason)
        name = f" ({clients[client].name})" if clients[client].name else ""
        run.folder.note(f"client {client}{name} did not evaluate: {reason}")
    if not checked:
        reasons = "; ".join(f"client {client}: {failed[client]}" for client in sorted(failed)[:3])
        raise RunFailed(f"round {number}: no client evaluated ({reasons or 'none is connected'})")
    statistics, losses, counts = zip(*checked.values(), strict=True)
    missing = {caveats.MISSING: len(failed)} if failed else {}
    return np.sum(statistics, axis=0), sum(losses), caveats.named(np.sum(counts, axis=0)) | missing


def check_measured(
    reply: Message, info: TaskInfo, max_length: int
) -> tuple[np.ndarray, float, np.ndarray]:
    """Return statistics, summed loss, and counts of what was cut, of a client's evaluation.

    The content is not trusted.

    Raises:
        ValueError: wrong number of statistics or counts, a NaN or infinity, impossible counts, or a
            loss out of range.
    """
    kind, sent = info.kind, from_fields(EvaluateReply, reply.content.get(RECORD))
    size = metrics.statistics_size(kind, info.classes)
    statistics = decode(sent.statistics, "float64", size, "float64")
    counts = np.zeros(len(caveats.COUNTS))
    if sent.counts:
        counts = decode(sent.counts, "float64", len(counts), "float64")
    unread = counts[caveats.COUNTS.index("words_unread")]
    metrics.check_statistics(statistics, kind, max_length, generates(info.metric), unread)
    examples = metrics.examples_of(statistics, kind)
    caveats.check_counts(counts, examples)
    return statistics, read_float(vars(sent), "loss_sum", 0, examples * max_loss(kind)), counts
