"""kill -9 at random points: what was trained on always stands in the ledger."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedpeft.privacy.ledger import PrivacyLedger, read_ledger

KILLS = 60
OWNER, DATA = "client 3", "ab" * 32

# Composing a mechanism without noise takes no time, so the kills fall into the writing. The line
# stands for work that was released: it is on the disk only after ``charge`` has returned.
CHILD = f"""
import os, sys
from pathlib import Path
from fedpeft.privacy.accounting import Mechanism
from fedpeft.privacy.ledger import PrivacyLedger

ledger, work, run = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
ledger = PrivacyLedger(ledger, "{OWNER}", "{DATA}")
for round in range(1_000_000):
    ledger.charge(
        "example", Mechanism(0.0, 0.01, 1), 1e-5, None, run=run, round_number=round, note={{}}
    )
    with open(work, "a") as lines:
        lines.write(f"{{run}} {{round}}\\n")
        lines.flush()
        os.fsync(lines.fileno())
    print(flush=True)
"""


def killed_child(ledger: Path, work: Path, run: str, rounds: int, share: float) -> None:
    """Start a child and kill it after some rounds and a share of the next one's usual time."""
    command = [sys.executable, "-c", CHILD, str(ledger), str(work), run]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None and child.stdout.readline() == b"\n"
        start = time.perf_counter()
        for _ in range(rounds):
            assert child.stdout.readline() == b"\n"
        time.sleep(share * (time.perf_counter() - start) / rounds)
        child.send_signal(signal.SIGKILL)
    assert child.returncode == -signal.SIGKILL, "it was still at work"


@pytest.mark.long
def test_no_kill_loses_a_charge(tmp_path: Path) -> None:
    ledger, work = tmp_path / "ledgers" / "3.db", tmp_path / "work.txt"
    chance, interrupted, released = random.Random(4), 0, 0
    for kill in range(KILLS):
        rounds = chance.randint(1, 3)
        killed_child(ledger, work, f"run {kill}", rounds, chance.uniform(0, 1))
        released += 1 + rounds
        interrupted += Path(f"{ledger}-journal").exists()
        PrivacyLedger(ledger, OWNER, DATA)  # the next start
        charges = read_ledger(ledger).charges
        held = {f"{each.run} {each.round}" for each in charges}
        done = set(work.read_text().splitlines())
        assert len(done) >= released
        assert done <= held, f"kill {kill}: trained without a charge"
        assert len(held) == len(charges) <= len(done) + kill + 1, "at most one too many a kill"
    assert interrupted, "no kill fell into a commit"
