"""kill -9 in the middle of real private training: what is said is never below what was done."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict

from clients.app import app
from clients.data import LEDGER_FOLDER, PARTITION_FILE, PERSONAL_FOLDER, ledger_path
from fedpeft.config import Experiment
from fedpeft.privacy.accounting import Mechanism, spent
from fedpeft.privacy.ledger import PrivacyLedger, read_ledger
from fedpeft.runtime import runtime_of
from server.flower import from_wire, give_id, new_run, to_wire

KILLS = 50
SIGMA, BATCH, EXAMPLES, STEPS, DELTA = 1.2, 6, 30, 2, 1e-3


def ask(kind: str, content: RecordDict, context: Context) -> Message:
    message = Message(content, dst_node_id=context.node_id, message_type=kind)
    give_id(message)
    return app(from_wire(to_wire(message)), context)


def node(folder: Path, ledgers: str) -> Context:
    shared = {"partition-id": 0, "num-partitions": 1}
    files = {
        PARTITION_FILE: str(folder / "partition.json"),
        LEDGER_FOLDER: str(folder / ledgers),
        PERSONAL_FOLDER: str(folder / "personal"),
    }
    return Context(1, 1000, {**shared, **files}, RecordDict(), {})


def answers(experiment: Experiment, context: Context) -> Iterator[dict[str, Any]]:
    """Train for ever; yield what the client says of its privacy in each answer."""
    config = ConfigRecord({"experiment": experiment.to_toml(), "client": -1})
    content = RecordDict({"config": config})
    assert ask("query.handshake", content, context).has_content()
    start = runtime_of(experiment.to_toml()).model.initial(0)
    content = RecordDict(
        {
            "arrays": ArrayRecord({"vector": Array(start)}),
            "config": ConfigRecord({"experiment": experiment.digest, "round": 1}),
        }
    )
    while True:
        reply = ask("train", content, context)
        assert reply.has_content(), reply.error
        yield json.loads(str(reply.content["config"]["example"]))


def train_for_ever(experiment: Experiment, context: Context, released: Path) -> None:
    """Train; each line of ``released`` stands for an answer that has left."""
    for said in answers(experiment, context):
        with open(released, "a") as lines:
            lines.write(f"{said['steps']} {said['epsilon']}\n")


def killed(work: Callable[[], None], seconds: float) -> None:
    """Do ``work`` in a child made from this process, and kill it after some seconds."""
    child = os.fork()
    if not child:  # pragma: no cover - never returns to pytest
        try:
            work()
        finally:
            os._exit(1)
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status), "the child ended by itself: see its error above"


@pytest.mark.slow
def test_no_kill_makes_a_client_tell_less_than_it_spent(
    quick: Callable[..., Experiment], tmp_path: Path
) -> None:
    experiment = quick(
        "privacy.unit=example",
        f"privacy.noise_multiplier={SIGMA}",
        f"privacy.delta={DELTA}",
        f"local.batch_size={BATCH}",
        f"local.steps={STEPS}",
    )
    (tmp_path / "partition.json").write_text(json.dumps({"clients": [[*range(EXAMPLES)]]}))
    new_run()
    # All that is imported and computed once is there before the children are made.
    next(answers(experiment, node(tmp_path, "warm-up")))
    data = read_ledger(ledger_path(tmp_path / "warm-up", 0)).data
    context = node(tmp_path, "privacy")
    ledger, released = ledger_path(tmp_path / "privacy", 0), tmp_path / "released.txt"
    chance, done = random.Random(3), 0
    for kill in range(KILLS):
        killed(lambda: train_for_ever(experiment, context, released), chance.uniform(0.1, 0.9))
        lines = released.read_text().splitlines() if released.exists() else []
        # The next start takes back what a kill left half-written.
        charged = PrivacyLedger(ledger, "client 0", data).mechanisms("example")
        done = len(lines)
        assert done <= len(charged) <= done + kill + 1
        for number, line in enumerate(lines, start=1):  # an answer counts all before it
            assert int(line.split()[0]) >= STEPS * number
    assert done >= KILLS, "the kills came before anything was done"
    assert len(charged) > done, "no kill fell between a charge and its answer"
    true = spent([Mechanism(SIGMA, BATCH / EXAMPLES, STEPS * done)], DELTA)
    assert spent(charged, DELTA).epsilon > true.epsilon
    assert float(lines[-1].split()[1]) >= true.epsilon - 1e-9
