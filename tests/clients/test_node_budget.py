"""The privacy that a node has left, against the accountant."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from ledgers import DELTA, NO_NOISE, charged, opened
from workers import eventually, state_folder

from clients.folder import NodeFolder, NodeSettings
from clients.privacy.budget import Budget, describe_units
from fedpeft.privacy import ledger_store
from fedpeft.privacy.accounting import Mechanism, spent
from fedpeft.privacy.ledger_store import read_ledger
from fedpeft.privacy.plan import default_delta

ROUND = Mechanism(2.0, 0.1, 5)


def described(path: Path, mechanisms: Sequence[Mechanism], **settings: Any) -> list[dict[str, Any]]:
    """Describe a ledger with these charges, in rounds from 1."""
    for number, mechanism in enumerate(mechanisms, start=1):
        charged(opened(path), mechanism, round_number=number)
    contents = read_ledger(path) if mechanisms else None
    return describe_units(contents, NodeSettings("", **settings))


def test_spent_next_and_the_rounds_that_fit_are_the_accountants(tmp_path: Path) -> None:
    limit, delta = 2.0, 1e-4
    settings = {"max_epsilon": limit, "delta": delta}
    [unit] = described(tmp_path / "ledger", [ROUND] * 3, **settings)
    assert unit["unit"] == "example" and unit["limit"] == limit
    assert (unit["delta"], unit["guessed"]) == (delta, False)
    assert unit["spent"] == spent([ROUND] * 3, delta).epsilon
    assert unit["next"] == spent([ROUND] * 4, delta).epsilon
    assert unit["last"] == {"run": "first", "round": 3}
    assert unit["fits"] > 0 and not unit["capped"]
    assert spent([ROUND] * (3 + unit["fits"]), delta).epsilon <= limit
    assert spent([ROUND] * (4 + unit["fits"]), delta).epsilon > limit


def test_a_round_that_does_not_fit(tmp_path: Path) -> None:
    delta = default_delta(3000)
    limit = spent([ROUND], delta).epsilon + 1e-3
    [unit] = described(tmp_path / "ledger", [ROUND], max_epsilon=limit, examples=3000)
    assert (unit["delta"], unit["guessed"], unit["fits"]) == (delta, False, 0)
    assert unit["spent"] <= limit < unit["next"]


def test_without_a_limit_only_what_is_spent_is_known(tmp_path: Path) -> None:
    [unit] = described(tmp_path / "ledger", [ROUND])
    assert unit["spent"] == spent([ROUND], DELTA).epsilon
    assert (unit["limit"], unit["fits"], unit["guessed"]) == (None, None, False)


def test_a_delta_that_depends_on_the_rows_is_not_made_up(tmp_path: Path) -> None:
    [unit] = described(tmp_path / "ledger", [ROUND], max_epsilon=5.0, examples="exact")
    assert (unit["delta"], unit["guessed"]) == (DELTA, True)


def test_before_the_first_charge_nothing_is_spent(tmp_path: Path) -> None:
    assert described(tmp_path / "ledger", []) == []
    [unit] = described(tmp_path / "ledger", [], max_epsilon=5.0, examples=3000)
    assert (unit["spent"], unit["limit"], unit["next"]) == (0.0, 5.0, None)


def test_training_without_noise_has_no_bound(tmp_path: Path) -> None:
    [unit] = described(tmp_path / "ledger", [NO_NOISE], max_epsilon=5.0)
    assert (unit["spent"], unit["next"], unit["fits"]) == (None, None, None)


def test_the_result_follows_the_ledger(tmp_path: Path) -> None:
    folder = NodeFolder(state_folder(tmp_path / "state"))
    settings, budget = NodeSettings.read(folder.path), Budget(folder)
    eventually(lambda: budget.latest(settings) == ([], ""))
    charged(opened(folder.ledger), ROUND)
    eventually(lambda: bool(budget.latest(settings)[0]))
    units, problem = budget.latest(settings)
    assert units == describe_units(read_ledger(folder.ledger), settings) and problem == ""
    content = bytearray(folder.ledger.read_bytes())
    content[-5] ^= 1
    folder.ledger.write_bytes(content)
    os.utime(folder.ledger)
    eventually(lambda: "is damaged" in budget.latest(settings)[1])
    assert budget.latest(settings)[0] == []  # the earlier numbers are no longer shown


def test_a_ledger_that_is_in_use_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its file need not change when the one who writes it is done."""
    monkeypatch.setattr(ledger_store, "_BUSY_SECONDS", 0.1)
    folder = NodeFolder(state_folder(tmp_path / "state"))
    charged(opened(folder.ledger), ROUND)
    settings, budget = NodeSettings.read(folder.path), Budget(folder)
    with closing(sqlite3.connect(folder.ledger, isolation_level=None)) as writer:
        writer.execute("BEGIN EXCLUSIVE")
        eventually(lambda: "cannot be used now" in budget.latest(settings)[1])
        assert budget.latest(settings)[0] is None  # not "nothing was spent"
        writer.execute("ROLLBACK")
    eventually(lambda: bool(budget.latest(settings)[0]))
    assert budget.latest(settings)[1] == ""
