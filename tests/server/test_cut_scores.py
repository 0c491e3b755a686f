"""What was cut before a score: counted alike at clients and server, and stated."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from messaging import changed
from outcomes import result_of
from rich.console import Console

from fedpeft.experiment.config import Experiment
from fedpeft.runs.folder import RunFolder
from fedpeft.updates import sums
from simulations.results import print_result

Quick = Callable[..., Experiment]
Federate = Callable[..., RunFolder]


def tagged(folder: Path) -> str:
    """Write texts of 30 one-word names; with 12 tokens, 10 of each are read."""
    path = folder / "tagged.jsonl"
    names = ["good", "bad", "dull"] * 10
    tags = [f"{'U' if at % 2 else 'B'}_PER" for at in range(30)]
    for at in range(1, 30, 3):
        tags[at] = "L_PER"
    rows = [{"text": names, "label": tags}, {"text": ["film"], "label": ["O"]}] * 20
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.fixture
def settings(tmp_path: Path) -> list[str]:
    return [
        *("task.name=custom", "task.kind=tags", f"task.train={tagged(tmp_path)}"),
        *("task.max_length=12", "task.train_limit=0", "task.eval_limit=0", "local.lr=0.05"),
    ]


def test_words_beyond_the_limit_are_counted_and_missed(
    quick: Quick, federate: Federate, settings: list[str]
) -> None:
    """Half of the held-out rows are long; a model that has learned all it reads is not perfect."""
    folders = [
        federate(quick(*settings, f"federation.evaluation={place}"), out=place)
        for place in ("server", "clients")
    ]
    here, there = (folder.rounds() for folder in folders)
    for one, other in zip(here, there, strict=True):
        assert one["metrics"] == other["metrics"]
        assert one["caveats"] == other["caveats"]
    found = here[-1]["caveats"]
    assert found["words_unread"] == 20 * found["texts_cut"] > 0
    assert here[-1]["metrics"]["recall"] <= 1 / 3 + 1e-9
    result = result_of(folders[0])
    assert result["caveats"] == found == result_of(folders[1])["caveats"]
    assert result["remarks"] == [
        "tags: BILOU",
        f"cut at task.max_length = 12 tokens: {found['texts_cut']} of 4 texts",
        f"words without a tag, because they are cut or have no token: {found['words_unread']}; "
        "they count as missed",
    ]
    shown = io.StringIO()
    print_result(Console(file=shown), result, folders[0], 2)
    assert "\n".join(result["remarks"]) in shown.getvalue()


def test_a_run_that_cuts_nothing_states_nothing(quick: Quick, federate: Federate) -> None:
    folder = federate(quick("federation.evaluation=clients"))
    assert [line["caveats"] for line in folder.rounds()] == [{}, {}]
    assert (result_of(folder)["caveats"], result_of(folder)["remarks"]) == ({}, [])


@pytest.mark.parametrize(
    ("counts", "reason"),
    [
        ([14, 0, 0, 0, 0], "impossible for 13 examples"),
        ([0.5, 0, 0, 0, 0], "impossible for 13 examples"),
        ([0, -1, 0, 0, 0], "impossible for 13 examples"),
        ([0, 1e12, 0, 0, 0], "impossible for 13 examples"),
        ([np.nan, 0, 0, 0, 0], "NaN"),
        ([0, 0, 0], "has 24 bytes, expected 40"),
    ],
)
def test_impossible_counts_are_refused(
    quick: Quick, federate: Federate, counts: list[float], reason: str
) -> None:
    experiment = quick("federation.evaluation=clients", "federation.rounds=1")
    sent = np.array(counts, np.float64).tobytes()
    folder = federate(experiment, lambda reply: changed(reply, c=sent), kind="evaluate", client=1)
    assert folder.rounds()[0]["evaluated"] == 27
    assert any(reason in line for line in folder.noted())
    assert folder.rounds()[0]["caveats"] == {"clients_missing": 1}
    assert result_of(folder)["remarks"] == ["clients whose evaluation failed, not in the score: 1"]


SECURE = ["federation.secure=true", "federation.clients=5", "secure.colluders=1"]


def test_updates_that_drown_in_the_rounding_of_a_secure_sum_are_stated(
    quick: Quick, federate: Federate
) -> None:
    wide = federate(quick(*SECURE, "federation.max_update_norm=50"), out="wide")
    error = wide.rounds()[-1]["caveats"]["rounding"]
    assert error > 5
    (remark,) = result_of(wide)["remarks"]
    assert remark.startswith(f"rounding to wire.up = 'uniform4' adds an error of {error:.2g} times")
    assert "lower federation.max_update_norm = 50" in remark
    usual = federate(quick(*SECURE), out="usual")
    assert usual.rounds()[-1]["caveats"]["rounding"] < 0.5
    assert result_of(usual)["remarks"] == []


@pytest.mark.parametrize("bits", [1, 4, 8])
def test_the_stated_error_is_that_of_rounding(quick: Quick, bits: int) -> None:
    """Against sums of updates that are far shorter than the range of the levels."""
    experiment = quick(*SECURE, f"wire.up=uniform{bits}")
    size, clients, clip_norm = 4096, 5, 50.0 * 2**bits
    draw = np.random.default_rng(bits)
    changes = draw.normal(size=(clients, size)) / size**0.5  # of norm 1
    encoded = [
        sums.encoded(experiment, 1, client, change, 0.0, clip_norm, 1.0)
        for client, change in enumerate(changes)
    ]
    levels, facts = (np.sum(part, axis=0) for part in zip(*encoded, strict=True))
    mean = sums.decoded(experiment, 1, levels, facts, clients, clip_norm, clients)
    norms = np.linalg.norm(changes, axis=1)
    actual = np.linalg.norm(mean.change - changes.mean(0)) / norms.mean()
    stated = sums.rounding_error(experiment, size, clients, clip_norm, norms.mean())
    assert actual == pytest.approx(stated, rel=0.05)
