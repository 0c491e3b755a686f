"""kill -9 during private training: the reported privacy is never less than the spent."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from flwr.app import Context, Message, RecordDict
from messaging import arriving, content_of, handshake_request, request
from workers import eventually

from clients.app import app
from clients.data.client_data import KEPT_FOLDER, LEDGER_FOLDER, simulated_ledger
from fedpeft.errors import UserError
from fedpeft.experiment.config import Experiment
from fedpeft.privacy.accounting import Mechanism, spent
from fedpeft.privacy.ledger import PrivacyLedger, read_ledger
from fedpeft.privacy.statement import Composition
from fedpeft.runtime import runtime_of
from fedpeft.wire.messages import TrainReply
from server.flower import new_run

KILLS = 50
SIGMA, BATCH, EXAMPLES, STEPS, DELTA = 1.2, 6, 30, 2, 1e-3


def ask(kind: str, fields: object, context: Context) -> Message:
    return app(arriving(kind, fields, context.node_id), context)


def node(folder: Path, ledgers: str) -> Context:
    shared = {"partition-id": 0, "num-partitions": 1}
    files = {
        LEDGER_FOLDER: str(folder / ledgers),
        KEPT_FOLDER: str(folder / "kept"),
    }
    return Context(1, 1000, {**shared, **files}, RecordDict(), {})


def answers(experiment: Experiment, context: Context) -> Iterator[Composition]:
    """Train forever; yield the charges that each reply reports."""
    assert ask("query.handshake", handshake_request(experiment), context).has_content()
    start = runtime_of(experiment).parameters.initial(0)
    while True:
        reply = ask("train", request(experiment, start), context)
        assert reply.has_content(), reply.error
        yield Composition.from_bytes(content_of(reply, TrainReply).example)


def train_for_ever(experiment: Experiment, context: Context, released: Path) -> None:
    """Train; write a line to ``released`` for each reply that left the client."""
    for composition in answers(experiment, context):
        with open(released, "a") as lines:
            steps = sum(mechanism.steps for mechanism in composition.mechanisms)
            lines.write(f"{steps} {spent(composition.mechanisms, DELTA).epsilon}\n")


def lines_of(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def killed(work: Callable[[], None], ready: Callable[[], bool], seconds: float) -> None:
    """Run ``work`` in a forked process, and kill it some seconds after ``ready``."""
    child = os.fork()
    if not child:  # pragma: no cover - never returns to pytest
        try:
            work()
        finally:
            os._exit(1)
    try:
        eventually(ready)
        time.sleep(seconds)
    finally:
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status), "the child ended by itself: see its error above"


@pytest.mark.long
def test_a_killed_client_never_releases_more_than_its_ledger_holds(
    quick: Callable[..., Experiment], tmp_path: Path
) -> None:
    experiment = quick(
        "federation.clients=1",
        f"task.train_limit={EXAMPLES}",
        "privacy.unit=example",
        f"privacy.noise_multiplier={SIGMA}",
        f"privacy.delta={DELTA}",
        f"local.batch_size={BATCH}",
        f"local.steps={STEPS}",
    )
    new_run()
    # All that is imported and computed once is there before the children are made.
    spent(next(answers(experiment, node(tmp_path, "warm-up"))).mechanisms, DELTA)
    data = read_ledger(simulated_ledger(tmp_path / "warm-up", 0)).data
    context = node(tmp_path, "privacy")
    ledger, released = simulated_ledger(tmp_path / "privacy", 0), tmp_path / "released.txt"
    never = tmp_path / "never.txt"  # nobody reads it, so a reply waits there
    os.mkfifo(never)
    chance, done = random.Random(3), 0

    def more() -> bool:
        return len(lines_of(released)) > done

    def charged_more() -> bool:
        with suppress(UserError):  # until the next start has repaired it
            return len(read_ledger(ledger).mechanisms("example")) > before
        return False

    for kill in range(KILLS):
        killed(lambda: train_for_ever(experiment, context, released), more, chance.uniform(0, 0.3))
        lines = lines_of(released)
        # The next start takes back what a kill left half-written.
        PrivacyLedger(ledger, "client 0", data)  # recovers the file, as the next start does
        charged = read_ledger(ledger).mechanisms("example")
        done = len(lines)
        assert done <= len(charged) <= done + kill + 1
        for number, line in enumerate(lines, start=1):  # an answer counts all before it
            assert int(line.split()[0]) >= STEPS * number
    before = len(charged)
    killed(lambda: train_for_ever(experiment, context, never), charged_more, 0)
    charged = read_ledger(ledger).mechanisms("example")
    assert done >= KILLS and len(charged) > done
    true = spent([Mechanism(SIGMA, BATCH / EXAMPLES, STEPS * done)], DELTA)
    assert spent(charged, DELTA).epsilon > true.epsilon
    assert float(lines[-1].split()[1]) >= true.epsilon - 1e-9
