"""The Flower ServerApp: read ``main`` top to bottom for the whole life of a run.

Its run config: ``experiment`` (TOML) and ``out`` (the run folder, made before the run; in a
deployment the run's name). A run whose folder has a checkpoint goes on from there, to the same
bits.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence

import numpy as np
from flwr.app import Context, Message
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from fedpeft.config import Experiment
from fedpeft.errors import RunFailed
from fedpeft.privacy.ledger import BudgetSpent
from fedpeft.privacy.statement import read_statement, so_far
from fedpeft.randomness import generator
from fedpeft.runtime import COMMON, Runtime, runtime_of
from fedpeft.trained import describe_vector
from fedpeft.vector import decode
from server.deployed import opened, registry, run_name
from server.evaluation import measure
from server.exchange import budget_spent
from server.ledger import ByteLedger
from server.nodes import Node, Nodes
from server.numbers import numbers
from server.privacy import CentralPrivacy
from server.result import describe_result
from server.roster import Roster
from server.round import Round, Update, check_all
from server.runfolder import Checkpoint, RunFolder
from server.spending import Spending
from server.strategies import aggregate, build_strategy, restore_strategy, strategy_state
from server.waiting import wait_for_nodes

log = logging.getLogger(__name__)
app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Open the run's folder and run its federation in it."""
    with opened(context) as folder:
        federate(grid, folder, runtime_of(str(context.run_config["experiment"])))


def federate(grid: Grid, folder: RunFolder, runtime: Runtime) -> None:
    """Run a federation from its first round, or from its checkpoint, to its result."""
    experiment = runtime.experiment
    check(folder, runtime)
    strategy = build_strategy(experiment.federation)
    central = CentralPrivacy.of(experiment, folder.path)
    begin = runtime.trainable.initial(experiment.seed)[~runtime.trainable.personal]
    state = folder.checkpoint() or Checkpoint(0, begin)
    restore_strategy(strategy, state.strategy)
    spending = Spending.restored(experiment, state.strategy)
    if central:
        central.restore(state.strategy, state.round)
    roster = Roster.of(folder.path)
    nodes = gather(grid, folder, experiment, roster)
    privacy = so_far(folder.rounds()[-1] if state.round else None, [])
    ended = ""
    for number in range(state.round + 1, experiment.federation.rounds + 1):
        started = time.monotonic()
        run = Round(number, grid, runtime, folder, ByteLedger(), nodes.run)
        nodes.refresh(run.ledger)
        folder.pin(nodes.identity)
        try:
            nodes.require_willing()
            own = [central.charge(number, state.vector)] if central else []
        except BudgetSpent as error:
            ended = str(error)
            break
        asked = choose(nodes.willing, experiment, number, central)
        good, failed = train(run, asked, state.vector, spending)
        nodes.retire(client for client in failed if budget_spent(failed[client]))
        if not good and not nodes.willing:
            ended = failed[min(failed)]
            break
        vector = combine(strategy, central, state.vector, good, asked, run)
        privacy = so_far(privacy, [*own, *(each for u in good.values() for each in u.statements)])
        line = {
            "round": number,
            "clients": len(good),
            "failed": [{"client": c, "reason": failed[c]} for c in sorted(failed)],
            "loss": mean_loss(good, asked, experiment.federation.weighting),
            **measure(run, nodes.clients, vector),
            "seconds": time.monotonic() - started,
            "bytes": run.ledger.round_bytes(),
            **privacy,
        }
        seconds = state.seconds + time.monotonic() - started
        memory = strategy_state(strategy) | spending.state() | (central.state() if central else {})
        state = Checkpoint(number, vector, memory, seconds)
        folder.save_round(line, run.ledger.lines(number), state)
        roster.note(nodes, good, failed)
        for client in failed:
            nodes.forget(client)
    if ended:
        log.warning("the run ends after round %d: %s", state.round, ended)
    if not state.round:
        raise RunFailed(f"no round was done, as nobody has the privacy budget for one: {ended}")
    finish(grid, runtime, folder, nodes, state)


def check(folder: RunFolder, runtime: Runtime) -> None:
    """Keep what the run's bits depend on, or compare it with what its folder keeps.

    A server that evaluates loads backbone and data for it: a mistake in them shows here, not when
    the clients have spent their privacy. One that does not needs neither.
    """
    evaluates = runtime.experiment.federation.evaluation == "server"
    folder.pin(runtime.identity if evaluates else runtime.plan)
    if evaluates:
        _ = runtime.dev


def gather(grid: Grid, folder: RunFolder, experiment: Experiment, roster: Roster) -> Nodes:
    """Wait for the nodes of a run; who was which client before stays that."""
    common = {key: value for key, value in folder.pinned().items() if key in COMMON}
    name = run_name(folder)
    known, wanted = registry(), experiment.federation.clients

    def missing(connected: int, names: Sequence[str]) -> None:
        folder.report("wait", 1, connected, wanted, names)

    wait_for_nodes(grid, experiment.federation, known, missing)
    return Nodes(grid, experiment, common, known, roster.numbers, run=name, note=folder.note)


def finish(
    grid: Grid, runtime: Runtime, folder: RunFolder, nodes: Nodes, state: Checkpoint
) -> None:
    """Write the result; a run that ended early may have to be measured first."""
    found = folder.rounds()[-1]
    if found["score"] is None:
        run = Round(state.round, grid, runtime, folder, ByteLedger(), nodes.run)
        found |= measure(run, nodes.clients, state.vector, last=True)
    folder.report("finished", state.round, 1, 1)
    folder.finish(
        describe_result(runtime, folder, state, found, nodes.identity),
        state.vector,
        describe_vector(runtime, nodes.identity),
    )


def choose(
    clients: Mapping[int, Node], experiment: Experiment, number: int, central: CentralPrivacy | None
) -> dict[int, Node]:
    """Return the clients of a round; where clients are protected, by Poisson sampling."""
    if central:
        return central.sample(clients, number)
    return sample(clients, experiment.seed, number, experiment.clients_per_round)


def sample(clients: Mapping[int, Node], seed: int, number: int, count: int) -> dict[int, Node]:
    """Return the clients of a round, drawn by a generator of (seed, round), in client order."""
    pool = sorted(clients)
    draw = generator(seed, "sample", number)
    chosen = draw.choice(pool, min(count, len(pool)), replace=False)
    return {client: clients[client] for client in sorted(chosen.tolist())}


def weight(node: Node, weighting: str) -> float:
    """Return how much a client counts in the average."""
    return float(node.examples) if weighting == "examples" else 1.0


def combine(
    strategy: FedAvg,
    central: CentralPrivacy | None,
    current: np.ndarray,
    good: Mapping[int, Update],
    asked: Mapping[int, Node],
    run: Round,
) -> np.ndarray:
    """Return the next task vector [P] of the strategy, from updates in client order.

    Raises:
        RunFailed: it is not finite.
    """
    weighting = run.runtime.experiment.federation.weighting
    updates = [(good[c].vector, weight(asked[c], weighting)) for c in good]
    if not updates and not central:  # all that were asked have spent their budgets
        return current
    if central:  # the strategy works on what may be released: a mean with noise
        mean = central.mean_update([vector - current for vector, _ in updates])
        updates = [((current + mean).astype(current.dtype), 1.0)]
    vector = aggregate(strategy, run.number, current, updates)
    if not np.isfinite(vector).all():
        raise RunFailed(
            f"round {run.number}: the aggregated vector is not finite; "
            f"federation.max_update_norm limits what a client can add"
        )
    return vector


def mean_loss(
    good: Mapping[int, Update], asked: Mapping[int, Node], weighting: str
) -> float | None:
    """Return the clients' weighted mean training loss, or None where it stays with them."""
    losses = [update.loss for update in good.values() if update.loss is not None]
    if not losses:
        return None
    return float(np.average(losses, weights=[weight(asked[c], weighting) for c in good]))


def train(
    run: Round, asked: Mapping[int, Node], vector: np.ndarray, spending: Spending
) -> tuple[dict[int, Update], dict[int, str]]:
    """Have clients train; return the good updates in client order, and why others failed.

    Raises:
        RunFailed: fewer good updates than ``federation.min_success``.
    """
    replies, failed = run.ask("train", vector, asked)
    good = check_all(replies, failed, lambda reply: check_update(run.runtime, reply, vector))
    good = spending.believed(good, failed)
    for client, reason in sorted(failed.items()):
        log.warning("round %d: client %d failed: %s", run.number, client, reason)
    experiment = run.runtime.experiment
    # With central privacy a Poisson sample may be small, and who failed must not show. Clients
    # without budget are no fault of the run.
    spent = sum(map(budget_spent, failed.values()))
    needed = max(experiment.federation.min_success - spent, int(spent < len(failed)))
    needed = 0 if experiment.privacy.central else needed
    if len(good) < needed:
        reasons = "; ".join(f"client {c}: {failed[c]}" for c in sorted(failed)[:3])
        raise RunFailed(
            f"round {run.number}: {len(good)} of {len(asked)} clients succeeded, "
            f"federation.min_success is {experiment.federation.min_success} ({reasons})"
        )
    return good, failed


def check_update(runtime: Runtime, reply: Message, start: np.ndarray) -> Update:
    """Return what a reply says; nothing in it is trusted.

    Raises:
        ValueError: wrong experiment, length or number format, a NaN, too large an update.
    """
    experiment, content = runtime.experiment, reply.content
    if content["config"]["experiment"] != runtime.digest:
        raise ValueError("the reply belongs to another experiment")
    array = numbers(content["arrays"]["vector"])
    vector = decode(array, experiment.wire.codec, len(start), str(start.dtype))
    limit = experiment.federation.max_update_norm
    if limit:
        # In float64: in float32 the norm of millions of numbers comes out too small.
        norm = float(np.linalg.norm(np.subtract(vector, start, dtype=np.float64)))
        if norm > limit:
            raise ValueError(
                f"update norm {norm:.4g} is above federation.max_update_norm = {limit:g}"
            )
    privacy = experiment.privacy
    protected = {"example": privacy.examples, "client": privacy.local}
    said = [read_statement(content["config"][u], u) for u, own in protected.items() if own]
    if privacy.unit != "none":
        return Update(vector, None, said)
    loss = float(content["metrics"]["loss"])
    if not np.isfinite(loss):
        raise ValueError(f"training loss is {loss}")
    return Update(vector, loss, said)
