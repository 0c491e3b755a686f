"""The Flower ServerApp: a state, a function that plays one round, and a loop.

Run config: ``experiment`` (TOML) and ``out``, the run folder, which must exist; in a deployment the
run's name. A run with a checkpoint in its folder continues from it, to the same bits.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from flwr.app import Context, Message
from flwr.serverapp import Grid, ServerApp

from fedpeft.budget import chosen, message_bytes
from fedpeft.errors import RunFailed
from fedpeft.nested import is_small
from fedpeft.privacy.ledger import BudgetSpent
from fedpeft.privacy.statement import so_far
from fedpeft.randomness import generator
from fedpeft.runtime import COMMON, Runtime, parsed, runtime_of
from fedpeft.trained import describe_vector
from server.byte_ledger import ByteLedger
from server.central_privacy import CentralPrivacy
from server.checkpoints import Checkpoint
from server.combining import combine
from server.deployed import opened, registry, run_name, state_folder
from server.downlink import Broadcast, broadcast
from server.evaluation import measure
from server.exchange import budget_spent, check_replies
from server.nested import completed
from server.nodes import Node, Nodes
from server.participants import Participants
from server.records import RoundLine
from server.result import describe_result
from server.roster import read_roster, write_roster
from server.run import Run
from server.runfolder import RunFolder
from server.state import ServerState
from server.updates import STEPS, Update, check_steps, check_update, max_norm, mean_loss
from server.wire_bytes import WireMeter

log = logging.getLogger(__name__)
app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Open the folder of a run and play all rounds that are left."""
    with opened(context) as folder:
        runtime = runtime_of(parsed(str(context.run_config["experiment"])))
        pin_identity(folder, runtime)
        run = Run(grid, runtime, folder, run_name(folder))
        state = start(run)
        while state.round < run.experiment.federation.rounds and not state.ended:
            state = play_round(run, state)
        finish(run, state)


def pin_identity(folder: RunFolder, runtime: Runtime) -> None:
    """Store the digests that determine the run's bits, or compare them with the stored ones.

    A server that evaluates loads backbone and data here, so that it fails before clients spend
    privacy if they are invalid. Other servers need neither.
    """
    evaluates = runtime.experiment.federation.evaluation == "server"
    folder.pin(runtime.identity if evaluates else runtime.plan)
    if evaluates:
        _ = runtime.dev


def start(run: Run) -> ServerState:
    """Return the state of the checkpoint, or of a new run, once enough nodes are connected."""
    experiment, folder, parameters = run.experiment, run.folder, run.runtime.parameters
    limit = message_bytes(experiment, run.runtime.info)
    log.info("%s: at most %d bytes up per client and round", chosen(experiment), limit)
    central = CentralPrivacy.of(experiment, folder.path)
    initial = parameters.initial_shared(experiment.seed)
    saved = folder.checkpoint() or Checkpoint(0, initial)
    if central:
        central.restore(saved.memory, saved.round)
    last = folder.rounds()[-1] if saved.round else None
    nodes = Nodes(run.grid, registry())
    wanted = experiment.federation.clients
    nodes.wait(
        experiment.federation,
        lambda connected, missing: folder.report("wait", 1, connected, wanted, missing),
    )
    common = {key: value for key, value in folder.pinned().items() if key in COMMON}
    numbers = {entry.node_id: client for client, entry in read_roster(folder.path).items()}
    return ServerState(
        saved.round,
        saved.vector,
        saved.memory,
        saved.seconds,
        privacy=so_far({**last} if last else None, []),
        participants=Participants(nodes, experiment, common, numbers, run.name, folder.note),
        wire=WireMeter(state_folder()),
        central=central,
    )


def play_round(run: Run, state: ServerState) -> ServerState:
    """Play the next round, write it to the run's folder, and return the state after it.

    If privacy budgets do not allow the round, write nothing and change only ``ended``.
    """
    began, number, ledger = time.monotonic(), state.round + 1, ByteLedger()
    participants, central = state.participants, state.central
    participants.refresh(ledger, number)
    run.folder.pin(participants.identity)
    try:
        participants.require_budget()
        statements = [central.charge(number, state.vector)] if central else []
    except BudgetSpent as error:
        return replace(state, ended=str(error))

    sampled = choose(run, state)
    sent = broadcast(run.runtime, state.memory, number, state.vector)
    updates, failed, steps = train(run, state, sent, sampled, ledger)
    participants.retire(without_budget(run, failed))
    if not updates and not participants.with_budget:
        return replace(state, ended=failed[min(failed)])

    comparable = completed(run, sent, updates, sampled)
    vector, memory = combine(run, state, sent.received, comparable, sampled)
    measured = measure(run, number, vector, participants, ledger)
    statements += [spent for update in updates.values() for spent in update.statements]
    privacy = so_far(state.privacy, statements)

    ledger.wire = state.wire.since_last(
        {client: node.node_id for client, node in participants.clients.items()}
    )
    seconds = time.monotonic() - began
    line: RoundLine = {
        "round": number,
        "clients": len(updates),
        "failed": [{"client": c, "reason": failed[c]} for c in sorted(failed)],
        "loss": mean_loss(updates, sampled, run.experiment.federation.weighting),
        **measured,
        "seconds": seconds,
        "bytes": ledger.round_bytes(),
        "epsilon": privacy["epsilon"],
        "privacy": privacy["privacy"],
    }
    memory |= {STEPS: steps} if steps.any() else {}
    memory |= sent.memory() | (central.state() if central else {})
    total = state.seconds + seconds
    after = replace(
        state, round=number, vector=vector, memory=memory, seconds=total, privacy=privacy
    )
    run.folder.save_round(line, ledger.lines(number), after)
    if participants.deployed:
        write_roster(run.folder.path, participants, updates, failed)
    participants.forget(failed)
    return after


def choose(run: Run, state: ServerState) -> dict[int, Node]:
    """Return the clients of the next round; by Poisson sampling if the server protects them."""
    number = state.round + 1
    clients = state.participants.to_train(number)
    if state.central:
        return state.central.sample(clients, number)
    return sample(clients, run.experiment.seed, number, run.experiment.clients_per_round)


def sample(clients: Mapping[int, Node], seed: int, number: int, count: int) -> dict[int, Node]:
    """Return the clients of a round, drawn by a generator of (seed, round), in client order."""
    pool = sorted(clients)
    draw = generator(seed, "sample", number)
    chosen = draw.choice(pool, min(count, len(pool)), replace=False)
    return {client: clients[client] for client in sorted(chosen.tolist())}


def train(
    run: Run,
    state: ServerState,
    sent: Broadcast,
    sampled: Mapping[int, Node],
    ledger: ByteLedger,
) -> tuple[dict[int, Update], dict[int, str], np.ndarray]:
    """Request training from clients and check their updates.

    Args:
        run: the run.
        state: the state before the round.
        sent: the task vector as sent to the clients.
        sampled: the clients of the round.
        ledger: counts the bytes of the round.

    Returns:
        Valid updates and reasons of failures, both by client, and the privacy steps that each
        client has reported, shape [clients].

    Raises:
        RunFailed: fewer valid updates than ``federation.min_success``.
    """
    number, federation = state.round + 1, run.experiment.federation
    sent_to = {client: sent.to(small=is_small(run.experiment, client)) for client in sampled}
    vectors = {client: sent_to[client].payload(node.reference) for client, node in sampled.items()}
    replies, failed = run.ask("train", number, vectors, sampled, ledger, sent.name)
    state.participants.hold(replies, sent.name)
    state.participants.hear("train", number, sampled, failed)
    limit = max_norm(federation, state.vector.size, state.participants.deployed)

    def check(client: int, reply: Message) -> Update:
        start, examples = sent_to[client].received, sampled[client].examples
        return check_update(run.runtime, number, client, reply, start, examples, limit)

    updates = check_replies(replies, failed, check)
    steps = state.memory.get(STEPS, np.zeros(federation.clients, dtype=np.int64))
    updates, steps = check_steps(updates, failed, steps)
    for client, reason in sorted(failed.items()):
        log.warning("round %d: client %d failed: %s", number, client, reason)
    # A client without budget is not a failure of the run. With central privacy a Poisson sample
    # may be small, and the end of a run must not reveal who failed.
    spent = len(without_budget(run, failed))
    needed = max(federation.min_success - spent, int(spent < len(failed)))
    if len(updates) < needed and not state.central:
        reasons = "; ".join(f"client {c}: {failed[c]}" for c in sorted(failed)[:3])
        raise RunFailed(
            f"round {number}: {len(updates)} of {len(sampled)} clients succeeded, "
            f"federation.min_success is {federation.min_success} ({reasons})"
        )
    return updates, failed, steps


def without_budget(run: Run, failed: Mapping[int, str]) -> list[int]:
    """Return the clients whose privacy budget is spent; only clients with a ledger have one."""
    privacy = run.experiment.privacy
    charges = privacy.examples or privacy.local
    return [client for client in failed if charges and budget_spent(failed[client])]


def finish(run: Run, state: ServerState) -> None:
    """Write the result, after an evaluation if the run ended before its last round.

    Raises:
        RunFailed: no client has the privacy budget for a single round.
    """
    folder, identity = run.folder, state.participants.identity
    if state.ended:
        log.warning("the run ends after round %d: %s", state.round, state.ended)
    if not state.round:
        raise RunFailed(
            f"no round was possible: no client has the privacy budget for one ({state.ended})"
        )
    last, ledger = folder.rounds()[-1], ByteLedger()
    if last["metrics"] is None:
        last |= measure(run, state.round, state.vector, state.participants, ledger, last=True)
        # As a part of the next round: if this run is resumed, its lines are dropped.
        folder.save_bytes(ledger.lines(state.round + 1))
    folder.report("finished", state.round, 1, 1)
    folder.finish(
        describe_result(run.runtime, folder, state, last, identity, ledger.round_bytes()),
        state.vector,
        describe_vector(run.runtime, identity),
    )
