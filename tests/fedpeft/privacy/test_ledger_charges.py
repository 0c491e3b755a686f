"""The ledger: charges of all rounds, runs and processes compose, within the budget."""

from __future__ import annotations

import math
import sqlite3
import stat
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
from ledgers import DATA, DELTA, NO_NOISE, charged, opened

from fedpeft.errors import UserError
from fedpeft.privacy.accounting import Mechanism, spent
from fedpeft.privacy.ledger import BudgetSpent, read_ledger

NOISY = Mechanism(1.1, 0.02, 40)


def test_charges_are_read_back(path: Path) -> None:
    ledger = opened(path)
    charged(ledger, Mechanism(0.0, 1.0, 7), draw="a")
    ledger.charge("client", NO_NOISE, 1e-3, None, run="second", round_number=9, note={})
    first, second = read_ledger(path).charges
    assert (first.id, first.unit, first.run, first.round) == (1, "example", "first", 1)
    assert (
        first.draw == "a"
        and first.mechanism == Mechanism(0.0, 1.0, 7)
        and first.time.endswith("+00:00")
    )
    assert first.note == {"clipping": "flat", "clip": 0.5} and first.delta == DELTA
    assert (second.id, second.unit, second.delta, second.draw) == (2, "client", 1e-3, None)


def test_rounds_and_restarts_compose_as_prv_accountant_composes_them(path: Path) -> None:
    from prv_accountant import PoissonSubsampledGaussianMechanism, PRVAccountant

    mechanisms = [Mechanism(1.1, 0.02, 40), Mechanism(0.9, 0.01, 20), Mechanism(1.1, 0.02, 10)]
    for number, mechanism in enumerate(mechanisms):  # each time a client that has just started
        total = charged(opened(path), mechanism, round_number=number)
    steps = [each.steps for each in mechanisms]
    accountant = PRVAccountant(
        prvs=[
            PoissonSubsampledGaussianMechanism(
                noise_multiplier=each.noise_multiplier, sampling_probability=each.sampling_rate
            )
            for each in mechanisms
        ],
        max_self_compositions=steps,
        eps_error=0.01,
        delta_error=DELTA / 1000,
    )
    low, estimate, _ = accountant.compute_epsilon(DELTA, steps)
    assert total == spent(read_ledger(path).mechanisms("example"), DELTA)
    assert total.accountant == "prv"
    assert total.epsilon >= low, "never below the true one"
    assert total.epsilon - total.epsilon_error == pytest.approx(estimate, abs=0.02 * estimate)
    alone = [spent([each], DELTA).epsilon for each in mechanisms]
    assert max(alone) < total.epsilon < sum(alone)


def test_units_are_composed_separately(path: Path) -> None:
    ledger = opened(path)
    charged(ledger)
    ledger.charge("client", NOISY, DELTA, None, run="first", round_number=1, note={})
    contents = read_ledger(path)
    assert spent(contents.mechanisms("example"), DELTA).epsilon == math.inf
    assert contents.mechanisms("client") == [NOISY]


def test_a_budget_is_never_exceeded_and_a_refusal_writes_nothing(path: Path) -> None:
    ledger = opened(path)
    limit = spent([NOISY, NOISY], DELTA).epsilon
    charged(ledger, NOISY, budget=limit)
    assert charged(ledger, NOISY, budget=limit).epsilon == limit
    before = path.read_bytes()
    with pytest.raises(BudgetSpent, match=rf"epsilon {limit:.4g} .* the budget of {limit:g}"):
        charged(ledger, NOISY, budget=limit)
    with pytest.raises(BudgetSpent):
        charged(ledger, NOISY, budget=math.nan)
    assert path.read_bytes() == before
    assert charged(ledger, NOISY, budget=2 * limit).epsilon > limit


def test_the_same_draw_of_the_same_mechanism_is_paid_once(path: Path) -> None:
    ledger = opened(path)
    first = charged(ledger, NOISY, draw="seed 0 round 1")
    assert charged(opened(path), NOISY, round_number=2, budget=0, draw="seed 0 round 1") == first
    assert len(read_ledger(path).charges) == 1
    other = Mechanism(NOISY.noise_multiplier, NOISY.sampling_rate, NOISY.steps + 1)
    charged(ledger, other, draw="seed 0 round 1")
    charged(ledger, NOISY, draw="seed 0 round 2")
    charged(ledger, NOISY, draw="seed 0 round 1", clipping="automatic")  # other bits
    charged(ledger, NOISY)
    charged(ledger, NOISY)  # without a draw, always new
    ledger.charge(
        "client", NOISY, DELTA, None, run="first", round_number=1, note={}, draw="seed 0 round 1"
    )
    assert len(read_ledger(path).charges) == 7


@pytest.mark.parametrize("budget", [None, 8.0])
@pytest.mark.parametrize("delta", [0.0, 1.0, math.nan])
def test_a_wrong_delta_is_not_written(path: Path, delta: float, budget: float | None) -> None:
    ledger = opened(path)
    with pytest.raises(UserError, match="delta"):
        ledger.charge("example", NOISY, delta, budget, run="first", round_number=1, note={})
    assert not read_ledger(path).charges


def test_another_owner_or_other_data_are_refused(full: Path) -> None:
    with pytest.raises(UserError, match=r"3\.db' belongs to client 3, not to client 4; choose"):
        opened(full, owner="client 4")
    with pytest.raises(UserError, match="about other training data; use that data") as refused:
        opened(full, data="cd" * 32)
    assert "abab" not in str(refused.value)
    assert "cdcd" not in str(refused.value)
    assert len(read_ledger(full).charges) == 4


def test_only_the_user_can_read_a_ledger(full: Path) -> None:
    def mode(path: Path) -> int:
        return stat.S_IMODE(path.stat().st_mode)

    assert (mode(full), mode(full.parent)) == (0o600, 0o700)
    assert [each.name for each in full.parent.iterdir()] == ["3.db"], "nothing else is left"
    full.chmod(0o644)
    opened(full)
    assert mode(full) == 0o600


def test_reading_a_ledger_changes_nothing(full: Path) -> None:
    before = full.read_bytes()
    full.chmod(0o444)
    full.parent.chmod(0o500)
    assert len(read_ledger(full).charges) == 4
    full.parent.chmod(0o700)
    assert full.read_bytes() == before
    assert [each.name for each in full.parent.iterdir()] == ["3.db"]
    with pytest.raises(UserError, match="no privacy ledger"):
        read_ledger(full.with_name("4.db"))
    assert not full.with_name("4.db").exists()


def test_a_deleted_ledger_is_not_recreated_by_a_charge(full: Path) -> None:
    ledger = opened(full)
    full.unlink()
    with pytest.raises(UserError, match="cannot be used now"):
        charged(ledger)
    assert not full.exists()


def test_a_place_that_cannot_hold_a_ledger_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be used"):
        opened(tmp_path / "file" / "3.db")
    with pytest.raises(UserError, match="cannot be used"):
        opened(tmp_path)
    with pytest.raises(UserError, match="cannot be used"):
        (tmp_path / "link").symlink_to(tmp_path / "nowhere")
        opened(tmp_path / "link")


def test_concurrent_charges_are_all_recorded(path: Path) -> None:
    """They also make the file at once."""
    code = (
        "import sys; from pathlib import Path; from fedpeft.privacy.ledger import PrivacyLedger\n"
        "from fedpeft.privacy.accounting import Mechanism\n"
        "print(flush=True); sys.stdin.readline()\n"
        f"ledger = PrivacyLedger(Path(sys.argv[1]), 'client 3', '{DATA}')\n"
        "for round in range(30): ledger.charge('example', Mechanism(0.0, 0.5, 3), 1e-5, None, "
        "run=sys.argv[2], round_number=round, note={})"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    command = [sys.executable, "-c", code, str(path)]
    children = [subprocess.Popen([*command, run], **pipes) for run in ("left", "right")]
    for child in children:
        assert child.stdout.readline() == b"\n"  # all have started
    for child in children:
        child.stdin.write(b"go\n")
        child.stdin.flush()
    ends = [child.communicate()[1] for child in children]
    assert ends == [b"", b""]
    rounds = sorted((each.run, each.round) for each in read_ledger(path).charges)
    assert rounds == [(run, number) for run in ("left", "right") for number in range(30)]


def test_a_charge_waits_for_another_process(full: Path) -> None:
    """Had it read the ledger before the other one commits, it would not know all of it."""
    ledger = opened(full)
    with closing(sqlite3.connect(full, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with ThreadPoolExecutor() as pool:
            waiting = pool.submit(charged, ledger)
            time.sleep(0.2)
            assert not waiting.done()
            other.rollback()
            waiting.result()
    assert len(read_ledger(full).charges) == 5


def test_a_budget_is_judged_at_the_smallest_delta_in_the_ledger(tmp_path: Path) -> None:
    """A later run with a larger delta would spend more than the budget at the first delta."""
    ledger, mechanism = opened(tmp_path / "privacy.sqlite"), Mechanism(2.0, 0.2, 10)
    spend = partial(ledger.charge, "example", mechanism, run="run", round_number=1, note={})
    spend(1e-6, None)
    budget = spent([mechanism], 1e-6).epsilon * 1.01
    for delta in (1e-2, 1e-6, 1e-9):
        with pytest.raises(BudgetSpent, match="above the budget of"):
            spend(delta, budget)
    spend(1e-2, None)
    assert [charge.delta for charge in ledger.charges("example")] == [1e-6, 1e-2]


def test_the_owners_limit_holds_at_the_owners_delta(tmp_path: Path) -> None:
    ledger, mechanism = opened(tmp_path / "privacy.sqlite"), Mechanism(2.0, 0.2, 10)
    limit = spent([mechanism], 1e-6).epsilon * 1.01, 1e-6
    spend = partial(ledger.charge, "example", mechanism, run="run", round_number=1, note={})
    spend(1e-2, None, limit)
    with pytest.raises(BudgetSpent, match="delta 1e-06"):
        spend(1e-2, None, limit)
    with pytest.raises(UserError, match="delta = 0: expected"):
        spend(1e-2, None, (1.0, 0.0))
    assert len(ledger.charges("example")) == 1
