"""The Flower ServerApp: a state, a function that plays one round, and a loop.

Run config: ``experiment`` (TOML) and ``out``, the run folder, which must exist; in a deployment the
run's name. A run with a checkpoint in its folder continues from it, to the same bits.
"""

from __future__ import annotations

import logging
import time
from dataclasses import replace

import numpy as np
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedpeft.budget import chosen, message_bytes
from fedpeft.errors import RunFailed
from fedpeft.experiment.config import parsed
from fedpeft.privacy.ledger import BudgetSpent
from fedpeft.privacy.statement import so_far
from fedpeft.runtime import COMMON, Runtime, runtime_of
from fedpeft.trained import describe_vector
from server.byte_ledger import ByteLedger
from server.central_privacy import CentralPrivacy
from server.checkpoints import Checkpoint
from server.clipping import clip, counted
from server.clock import Clock, RealClock
from server.combining import combine
from server.deployed import opened, registry, run_name, state_folder
from server.evaluation import measure
from server.fednova import normalized
from server.nested import completed
from server.nodes import Nodes
from server.participants import Participants
from server.records import Learned, RoundLine
from server.result import describe_result
from server.roster import read_roster, write_roster
from server.run import Run
from server.runfolder import RunFolder
from server.start import begin, started
from server.state import ServerState
from server.training import Trained, silent_nodes, train, without_budget
from server.unheard import unheard
from server.updates import mean_loss
from server.wire_bytes import WireMeter

log = logging.getLogger(__name__)
app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Open the folder of a run and play all rounds that are left."""
    with opened(context) as folder:
        config = context.run_config
        content = str(config.get("content", ""))  # of a simulation: its clients read the same
        runtime = runtime_of(parsed(str(config["experiment"])), content=content)
        pin_identity(folder, runtime)
        clock = grid if isinstance(grid, Clock) else RealClock()
        run = Run(grid, runtime, folder, run_name(folder), clock)
        state = begin(run, start(run))
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

    trained = train(run, state, ledger)
    sent, updates, failed = trained.sent, trained.updates, trained.failed
    participants.retire(without_budget(run, failed))
    if not updates and not len(participants.with_budget):
        return replace(state, ended=failed[min(failed)].text)

    vector, memory, learned = aggregate(run, state, trained)
    measured = measure(run, number, vector, state.memory, participants, ledger)
    statements += [spent for update in updates.values() for spent in update.statements]
    statements += unheard(run.experiment, number, silent_nodes(run, state, trained))
    privacy = so_far(state.privacy, statements)

    ledger.wire = state.wire.since_last(
        {client: node.node_id for client, node in participants.clients.items()}
    )
    seconds = time.monotonic() - began
    line: RoundLine = {
        "round": number,
        **trained.outcome(),
        **learned,
        **measured,
        "caveats": {**measured["caveats"], **trained.caveats},
        "seconds": seconds,
        "virtual": run.virtual,
        "bytes": ledger.round_bytes(),
        "epsilon": privacy["epsilon"],
        "privacy": privacy["privacy"],
    }
    memory |= trained.memory | (central.state() if central else {}) | started(state.memory)
    after = replace(
        state,
        round=number,
        vector=vector,
        memory=memory,
        seconds=state.seconds + seconds,
        privacy=privacy,
        flights=trained.flights,
    )
    run.folder.save_round(line, ledger.lines(number), after)
    if participants.deployed:
        write_roster(run.folder.path, number, participants, updates, failed)
    # A client that is late took part; only what it holds is unknown, if it holds anything.
    participants.forget(client for client in failed if sent.name or client not in trained.late)
    return after


def aggregate(
    run: Run, state: ServerState, trained: Trained
) -> tuple[np.ndarray, dict[str, np.ndarray], Learned]:
    """Return the next task vector [P], the strategy's memory, and facts for the round's line."""
    experiment, sent, updates = run.experiment, trained.sent, trained.different
    nodes = counted(experiment, trained.nodes)
    normal = normalized(experiment, sent, updates, nodes)
    limited, clipped = clip(experiment, sent, normal, nodes)
    comparable = completed(run, sent, limited, nodes)
    vector, memory = combine(run, state, sent.received, comparable, nodes)
    loss = mean_loss(trained.updates, nodes, experiment.federation.weighting)
    return vector, memory, {"clipped": clipped, "loss": loss}


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
        caveats = last["caveats"]  # of the training
        last |= measure(
            run, state.round, state.vector, state.memory, state.participants, ledger, last=True
        )
        last["caveats"] |= caveats
        # As a part of the next round: if this run is resumed, its lines are dropped.
        folder.save_bytes(ledger.lines(state.round + 1))
    folder.report("finished", state.round, 1, 1)
    folder.finish(
        describe_result(run.runtime, folder, state, last, identity, ledger.round_bytes()),
        state.vector,
        describe_vector(run.runtime, identity),
    )
