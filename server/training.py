"""The training of a round: the clients asked, their checked updates, and who failed."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence, Sized
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from flwr.app import Message

from fedpeft import sums
from fedpeft.errors import RunFailed
from fedpeft.experiment.robust import needed
from fedpeft.nested import is_small
from fedpeft.randomness import generator
from fedpeft.tasks.caveats import ROUNDING, rounding_remark
from fedpeft.wire.failures import Failure, FailureKind
from fedpeft.wire.messages import RECORD, TrainReply, from_fields, start_name
from server.asynchronous import Collector
from server.byte_ledger import ByteLedger
from server.downlink import Broadcast, broadcast, start_of
from server.exchange import check_replies
from server.nodes import Node
from server.records import FailedClient, Outcome
from server.run import Run
from server.secure import SecureRound
from server.state import Flight, ServerState
from server.unmasking import Masked
from server.updates import (
    STEPS,
    Update,
    check_steps,
    check_update,
    expected_steps,
    max_norm,
    read_statements,
)

log = logging.getLogger(__name__)
CLIP_NORM = "secure.clip_norm"  # name in the checkpoint


@dataclass(frozen=True)
class Trained:
    """Result of the training of a round.

    Attributes:
        sent: the task vector as sent to the clients.
        nodes: of the clients that replied or failed.
        updates: valid updates by client.
        failed: failures by client.
        memory: arrays for the checkpoint.
        flights: asynchronous requests that still wait, see ``ServerState``.
        sums: clients of each sum under masks, who all have its mean as their update.
        caveats: what rounding did to the updates, see ``fedpeft.tasks.caveats``.
    """

    sent: Broadcast
    nodes: dict[int, Node]
    updates: dict[int, Update]
    failed: dict[int, Failure]
    memory: dict[str, np.ndarray] = field(default_factory=dict)
    flights: dict[str, Flight] | None = None
    sums: Sequence[Sequence[int]] = ()
    caveats: Mapping[str, float] = field(default_factory=dict)

    @property
    def different(self) -> dict[int, Update]:
        """Updates by client; of clients whose updates were summed, that of one for all."""
        if not self.sums:
            return self.updates
        valid = ([c for c in clients if c in self.updates] for clients in self.sums)
        return {clients[0]: self.updates[clients[0]] for clients in valid if clients}

    @property
    def late(self) -> list[int]:
        """Clients whose reply nobody waited for."""
        return sorted(c for c, why in self.failed.items() if why.kind is FailureKind.LATE)

    def outcome(self) -> Outcome:
        """Return the numbers and reasons for the round's line."""
        late = self.late
        failed: list[FailedClient] = []
        for client in sorted(self.failed.keys() - late):
            node, reason = self.nodes.get(client), self.failed[client].text
            named: FailedClient = {"client": client, "reason": reason}
            if node and node.name:
                named = {"client": client, "name": node.name, "reason": reason}
            failed.append(named)
        return {"clients": len(self.updates), "failed": failed, "late": late}


def train(run: Run, state: ServerState, ledger: ByteLedger) -> Trained:
    """Train clients for the next round and check their updates.

    Args:
        run: the run.
        state: the state before the round.
        ledger: counts the bytes of the round.

    Raises:
        RunFailed: fewer valid updates than ``federation.min_success``.
    """
    number, federation = state.round + 1, run.experiment.federation
    if federation.mode == "async":
        trained = _next_replies(run, state, ledger)
    else:
        trained = (_summed_round if federation.secure else _whole_round)(run, state, ledger)
    failed = trained.failed
    steps = state.memory.get(STEPS, np.zeros(federation.clients, dtype=np.int64))
    updates, steps = check_steps(trained.updates, failed, steps)
    for client, reason in sorted(failed.items()):
        if reason.kind is not FailureKind.LATE:
            log.warning("round %d: client %d failed: %s", number, client, reason)
    require_enough(run, number, updates, failed, len(trained.nodes))
    reported = {STEPS: steps} if steps.any() else {}
    memory = trained.memory | trained.sent.memory() | reported
    return replace(trained, updates=updates, memory=memory)


def _whole_round(run: Run, state: ServerState, ledger: ByteLedger) -> Trained:
    """Ask the clients of a round, and wait for all of them or for the deadline."""
    number, federation = state.round + 1, run.experiment.federation
    sampled = state.participants.join(choose(run, state), ledger, number)
    sent = broadcast(run.runtime, state.memory, number, state.vector)
    sent_to = {client: sent.to(small=is_small(run.experiment, client)) for client in sampled}
    vectors = {client: sent_to[client].payload(node.reference) for client, node in sampled.items()}
    start = start_of(run.runtime, state.memory)
    replies, failed = run.ask("train", number, vectors, sampled, ledger, sent.name, start)
    state.participants.hold(replies, reference=sent.name, start=start_name(start))
    state.participants.hear("train", number, sampled, failed)
    limit = max_norm(federation, state.vector.size, state.participants.deployed)

    def check(client: int, reply: Message) -> Update:
        start, examples = sent_to[client].received, sampled[client].examples
        return check_update(run.runtime, number, client, reply, start, examples, limit)

    return Trained(sent, sampled, check_replies(replies, failed, check), failed)


def _summed_round(run: Run, state: ServerState, ledger: ByteLedger) -> Trained:
    """Ask the clients of a round, and learn only means of their updates.

    Each client that took part gets the mean of its sum as its update. A round that lost too many
    clients has none, and the vector stays as it is.
    """
    number, experiment, size = state.round + 1, run.experiment, state.vector.size
    sampled = state.participants.join(choose(run, state), ledger, number)
    sent = broadcast(run.runtime, state.memory, number, state.vector)
    most = max(expected_steps(experiment.local, node.examples) for node in sampled.values())
    first = np.array([sums.first_clip_norm(experiment, size, most)])
    clip_norm = float(state.memory.get(CLIP_NORM, first)[0])
    secure = SecureRound(run, number, ledger, sampled, clip_norm)
    members = secure.prepare()
    if not members:
        return Trained(sent, sampled, {}, secure.failed, {CLIP_NORM: np.array([clip_norm])})
    vectors = {client: sent.payload(node.reference) for client, node in members.items()}
    replies, _ = secure.train(vectors, sent.name)
    state.participants.hold(replies, reference=sent.name)
    state.participants.hear("train", number, sampled, secure.failed)

    def check(client: int, reply: Message) -> tuple[Masked, list[dict[str, Any]]]:
        sent_back = from_fields(TrainReply, reply.content.get(RECORD))
        statements = read_statements(experiment, sent_back, sampled[client].examples)
        return secure.read_masked(client, sent_back), statements

    checked = check_replies(replies, secure.failed, check)
    summed = secure.unmask({client: masked for client, (masked, _) in checked.items()})
    updates = {
        client: _update_of(run, sent, one.mean, checked[client][1])
        for one in summed
        for client in one.clients
    }
    caveats = {}
    if summed:  # the median, because a malicious client may lie about its norm
        norm = float(np.median([one.mean.norm for one in summed]))
        fewest = min(len(one.clients) for one in summed)
        if error := sums.rounding_error(experiment, size, fewest, clip_norm, norm):
            caveats[ROUNDING] = error
        for remark in rounding_remark(caveats, experiment):
            log.warning("round %d: %s", number, remark)
        clip_norm = sums.next_clip_norm(experiment, clip_norm, norm)
    memory = {CLIP_NORM: np.array([clip_norm])}
    listed, updates = [one.clients for one in summed], dict(sorted(updates.items()))
    return Trained(sent, sampled, updates, secure.failed, memory, sums=listed, caveats=caveats)


def _update_of(
    run: Run, sent: Broadcast, mean: sums.Mean, statements: list[dict[str, Any]]
) -> Update:
    """Return the mean of a sum as the update of one of its clients."""
    vector = (sent.received + mean.change).astype(sent.received.dtype)
    loss = mean.loss if run.experiment.privacy.unit == "none" else None
    return Update(vector, loss, statements)


def _next_replies(run: Run, state: ServerState, ledger: ByteLedger) -> Trained:
    """Take the next replies of clients that train all the time."""
    collector = Collector(run, state, ledger)
    collector.collect()
    found = collector.nodes, collector.updates, collector.failed
    state.participants.hear("train", collector.number, collector.nodes, collector.failed)
    return Trained(collector.newest, *found, collector.memory(), collector.flights)


def silent_nodes(run: Run, state: ServerState, trained: Trained) -> list[Node]:
    """Return the nodes that may have trained without a valid reply, or whose update is lost.

    After the last round, these are also those that nobody waits for any more.
    """
    privacy, spent = run.experiment.privacy, FailureKind.SPENT
    # Of two units the first may be charged before the second is refused.
    partly = {spent} if privacy.examples and privacy.charges_clients else set()
    nodes = [
        trained.nodes[client]
        for client, why in trained.failed.items()
        if why.kind.may_have_trained or why.kind in partly
    ]
    if state.round + 1 < run.experiment.federation.rounds:
        return nodes
    return nodes + [flight.node for flight in (trained.flights or {}).values()]


def choose(run: Run, state: ServerState) -> list[int]:
    """Return the clients of the next round; by Poisson sampling if the server protects them.

    With noise of the clients for whole clients, those that have spent the least privacy come first,
    so that no client takes part more often than the noise was calibrated for. The choice follows
    from public numbers: no amplification by sampling is accounted for.
    """
    number, least = state.round + 1, run.experiment.federation.min_success
    clients = run.clock.within_reach(state.participants.to_train(number), least)
    if state.central:
        return state.central.sample(clients, number)
    asked, seed = run.experiment.clients_asked, run.experiment.seed
    if run.experiment.privacy.distributed and STEPS in state.memory:
        return least_spent(clients, state.memory[STEPS][clients], seed, number, asked)
    return sample(clients, seed, number, asked)


def least_spent(
    pool: np.ndarray, steps: np.ndarray, seed: int, number: int, count: int
) -> list[int]:
    """Return the clients with the fewest privacy steps so far, in order; ties are drawn.

    Args:
        pool: clients that can be asked, in order, int64 [n].
        steps: that each of them has reported, int64 [n].
        seed, number, count: see ``sample``.
    """
    ties = generator(seed, "sample", number).random(len(pool))
    first = np.lexsort((ties, steps))[:count]
    return sorted(pool[first].tolist())


def sample(pool: np.ndarray, seed: int, number: int, count: int) -> list[int]:
    """Return the clients of a round, drawn by a generator of (seed, round), in order.

    Args:
        pool: clients that can be asked, in order, int64 [n].
        seed: of the experiment.
        number: of the round, from 1.
        count: number of clients; fewer if the pool is smaller.
    """
    draw = generator(seed, "sample", number)
    return sorted(draw.choice(pool, min(count, len(pool)), replace=False).tolist())


def require_enough(
    run: Run, number: int, updates: Sized, failed: Mapping[int, Failure], asked: int
) -> None:
    """Raise RunFailed if a round has too few valid updates to go on.

    A client without budget is not a failure of the run. With central privacy a Poisson sample may
    be small, and the end of a run must not reveal who failed.
    """
    federation, spent = run.experiment.federation, len(without_budget(run, failed))
    if not updates and any(why.kind is FailureKind.LOST for why in failed.values()):
        return  # the next round trains again
    least = max(federation.min_success - spent, int(spent < len(failed)))
    why = f"federation.min_success is {federation.min_success}"
    # Sums are counted where they are made, see ``SecureRound.unmask``.
    hidden = federation.secure
    if updates and not hidden and (for_rule := needed(federation)) > federation.min_success:
        least = for_rule
        why = f"federation.strategy = '{federation.strategy}' needs {for_rule}"
    if len(updates) < least and not run.experiment.privacy.central:
        reasons = "; ".join(f"client {c}: {failed[c]}" for c in sorted(failed)[:3])
        raise RunFailed(
            f"round {number}: {len(updates)} of {asked} clients succeeded, {why} ({reasons})"
        )


def without_budget(run: Run, failed: Mapping[int, Failure]) -> list[int]:
    """Return the clients whose privacy budget is spent; only clients with a ledger have one."""
    privacy = run.experiment.privacy
    charges = privacy.examples or privacy.charges_clients
    return [c for c, why in failed.items() if charges and why.kind is FailureKind.SPENT]
