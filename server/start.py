"""The start of a run: its score, and a head that comes from sums over the clients' features.

The start is round 0. For a head from sums, the clients of the first round send the moments of their
features, the server makes the head of them in closed form, and the checkpoint of round 0 holds the
result. A run that continues never asks again.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from flwr.app import Message

from fedpeft.heads.moments import Moments
from fedpeft.starting import decode_moments, merged, started_vector
from fedpeft.tasks.metrics import undefined
from fedpeft.wire.messages import RECORD, TrainReply, from_fields
from server.byte_ledger import ByteLedger
from server.checkpoints import NOW, START, check_finite
from server.evaluation import measure
from server.exchange import check_replies
from server.run import Run
from server.state import ServerState
from server.training import choose, require_enough

log = logging.getLogger(__name__)


def begin(run: Run, state: ServerState) -> ServerState:
    """Return the state that round 1 starts from; write it and its score to the run's folder.

    Raises:
        RunFailed: fewer than ``federation.min_success`` clients sent valid moments, or the head
            made of them is not finite.
    """
    sums = run.experiment.head.start == "sums"
    # Clients are not asked for the score of a head that is random.
    asks = run.experiment.federation.evaluation == "clients"
    unmade = sums and START not in state.memory
    unscored = (sums or not asks) and not state.round and run.folder.started() is None
    ledger = ByteLedger()
    if not asks and (line := undefined(run.runtime.info, run.runtime.dev.labels)):
        log.warning("%s", line.removeprefix("warning: "))
    if NOW in state.memory and not state.round:
        run.clock.seek(float(state.memory[NOW]))
    if unmade or (unscored and asks):
        state.participants.refresh(ledger, 0)
    if unmade:
        state, ledger = _from_sums(run, state, ledger), ByteLedger()
    if unscored:
        measured = measure(run, 0, state.vector, state.memory, state.participants, ledger)
        run.folder.save_bytes(ledger.lines(0))
        run.folder.save_start_score(measured)
    return state


def started(memory: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the arrays of the start, which the checkpoints of all rounds keep."""
    return {START: memory[START]} if START in memory else {}


def _from_sums(run: Run, state: ServerState, ledger: ByteLedger) -> ServerState:
    """Ask the clients of round 1 for moments, and store the state with a head made of them."""
    participants = state.participants
    run.folder.pin(participants.identity)
    sampled = participants.join(choose(run, state), ledger, 0)
    replies, failed = run.ask("start", 0, dict.fromkeys(sampled, b""), sampled, ledger)

    total: list[Moments] = []  # one by one: moments of a thousand clients take gigabytes

    def add(client: int, reply: Message) -> None:
        code = from_fields(TrainReply, reply.content.get(RECORD)).vector
        part = decode_moments(run.runtime, client, code, sampled[client].examples)
        total[:] = [merged(total[0], part) if total else part]

    parts = check_replies(replies, failed, add)
    for client, reason in sorted(failed.items()):
        log.warning("start: client %d failed: %s", client, reason)
        name = f" ({sampled[client].name})" if sampled[client].name else ""
        run.folder.note(f"client {client}{name} sent no sums for the start: {reason}", 0)
    require_enough(run, 0, parts, failed, len(sampled))
    vector = started_vector(run.runtime, total[0])
    head = vector[vector.size - run.runtime.parameters.shared.head_size :]
    memory = {**state.memory, START: head}
    check_finite(run.runtime, 0, vector, memory)
    if run.virtual is not None:
        memory[NOW] = np.array(run.virtual)
    begun = replace(state, vector=vector, memory=memory)
    run.folder.save_start(ledger.lines(0), begun)
    return begun
