"""Runs whose updates are summed under masks: the vector, lost clients, what the server sees."""

from __future__ import annotations

import json
import logging
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Message
from messaging import changed, vector_of
from safetensors.numpy import load_file

from fedpeft.errors import RunFailed, UserError
from fedpeft.experiment.config import Experiment
from fedpeft.runs.folder import RunFolder
from fedpeft.runtime import runtime_of
from fedpeft.updates import sums
from simulations.simulation import complete

Quick = Callable[..., Experiment]
Federate = Callable[..., RunFolder]
SECURE = ["federation.secure=true", "federation.clients=5", "secure.colluders=1"]


def final(folder: RunFolder) -> np.ndarray:
    return load_file(folder.path / "vector.safetensors")["vector"]


@pytest.mark.parametrize(
    "settings",
    [
        [],
        ["wire.up=uniform1"],
        ["wire.up=uniform8", "federation.weighting=examples", "partition.kind=quantity"],
        ["federation.max_update_norm=0.01", "wire.down=eden8"],
    ],
    ids=["usual", "one bit", "weights", "bound"],
)
def test_the_vector_is_that_of_the_plain_sum_of_levels(
    quick: Quick, federate: Federate, settings: list[str]
) -> None:
    experiment = quick(*SECURE, "federation.rounds=1", *settings)
    secure = federate(experiment, out="secure")
    # The same training with plain updates, which the test quantizes and adds up itself.
    changes: list[np.ndarray] = []

    def keep(reply: Message) -> Message:
        changes.append(vector_of(reply))
        return reply

    plain = [setting for setting in settings if not setting.startswith(("wire.up", "federation.m"))]
    ordinary = quick("federation.clients=5", "federation.rounds=1", *plain)
    federate(ordinary, keep, out="plain")
    runtime, clients = runtime_of(experiment), range(5)
    start = runtime.parameters.initial_shared(0)
    sizes = json.loads((secure.path / "partition.json").read_text())["clients"]
    counts = [len(rows["rows"]) if isinstance(rows, dict) else len(rows) for rows in sizes]
    weights = counts if "federation.weighting=examples" in settings else [1] * 5
    shares = [weight / max(weights) for weight in weights]
    steps = max(-(-count // 8) for count in counts)
    clip_norm = sums.first_clip_norm(experiment, len(start), steps)
    encoded = [
        sums.encoded(experiment, 1, c, changes[c].astype(float) - start, 0, clip_norm, shares[c])[0]
        for c in clients
    ]
    total = np.sum(encoded, axis=0)
    facts = np.zeros(2, np.uint64)
    mean = sums.decoded(experiment, 1, total, facts, 5, clip_norm, sum(shares))
    if "wire.down=eden8" in settings:  # clients start near the server's vector
        np.testing.assert_allclose(final(secure), start + mean.change, atol=1e-3)
    else:
        np.testing.assert_array_equal(final(secure), (start + mean.change).astype(np.float32))


def test_losses_and_norms_are_known_as_means_only(quick: Quick, federate: Federate) -> None:
    seen: list[dict[str, object]] = []

    def look(reply: Message) -> Message:
        seen.append(dict(reply.content["m"]))
        return reply

    secure = federate(quick(*SECURE), look, out="secure")
    assert {key for fields in seen for key in fields} == {"v"}
    plain = federate(quick("federation.clients=5"), out="plain")
    losses = [folder.rounds()[0]["loss"] for folder in (secure, plain)]
    assert losses[0] == pytest.approx(losses[1], abs=1e-6)


def test_updates_stay_near_those_without_masks(quick: Quick, federate: Federate) -> None:
    runs = [
        federate(
            quick(*settings, "federation.clients=5", "task.train_limit=120"), out=f"run{place}"
        )
        for place, settings in enumerate(([*SECURE, "wire.up=uniform8"], []))
    ]
    secure, plain = map(final, runs)
    start = runtime_of(quick("federation.clients=5")).parameters.initial_shared(0)
    assert np.linalg.norm(secure - plain) < 0.05 * np.linalg.norm(plain - start)


def gone(reply: Message) -> Message:
    raise ValueError("lost")


@pytest.mark.parametrize("kind", ["query.prepare", "train", "query.unmask"])
def test_a_client_may_be_lost_in_each_exchange(quick: Quick, federate: Federate, kind: str) -> None:
    """Four of five have to stay; the sum is of those whose update arrived."""
    folder = federate(quick(*SECURE), gone, kind, client=2, rounds=[1])
    first, second = folder.rounds()
    lost = kind != "query.unmask"
    assert first["clients"] == 5 - lost and second["clients"] == 5
    assert [failed["client"] for failed in first["failed"]] == [2] * lost


def test_a_round_that_loses_too_many_clients_leaves_the_vector(
    quick: Quick, federate: Federate, caplog: pytest.LogCaptureFixture
) -> None:
    both = iter([True, True])  # the first two replies of round 1

    def lose(reply: Message) -> Message:
        if next(both, False):
            raise ValueError("lost")
        return reply

    experiment = quick(*SECURE)
    with caplog.at_level(logging.WARNING, "server.secure.secure_round"):
        folder = federate(experiment, lose, rounds=[1])
    assert "round 1 is without a sum" in caplog.text and "the threshold is 4" in caplog.text
    first, second = folder.rounds()
    assert (first["clients"], second["clients"]) == (0, 5)
    assert len(first["failed"]) == 5


def test_a_round_in_which_no_client_masks_an_update_ends_the_run(
    quick: Quick, federate: Federate
) -> None:
    """Not only for lack of others: all of them failed."""
    with pytest.raises(RunFailed, match=r"round 1: 0 of 5 clients succeeded, .* \(client 0: "):
        federate(quick(*SECURE), gone)


def test_too_few_preparations_end_the_run_before_anything_is_trained(
    quick: Quick, federate: Federate
) -> None:
    with pytest.raises(RunFailed, match="0 of 5 clients prepared a sum under masks, the threshold"):
        federate(quick(*SECURE), gone, "query.prepare")


def test_a_wrong_share_is_refused_and_the_others_suffice(
    quick: Quick, federate: Federate, caplog: pytest.LogCaptureFixture
) -> None:
    def wrong(reply: Message) -> Message:
        shares = bytes(reply.content["m"]["s"])
        return changed(reply, s=bytes([shares[0] ^ 1]) + shares[1:])

    experiment = quick(*SECURE)
    expected = final(federate(experiment, out="honest"))
    with caplog.at_level(logging.WARNING, "server.secure.secure_round"):
        folder = federate(experiment, wrong, "query.unmask", client=3, out="wrong")
    assert "client 3 revealed nothing: refused: its share of client 0" in caplog.text
    np.testing.assert_array_equal(final(folder), expected)


def test_a_masked_update_of_a_wrong_length_is_refused(quick: Quick, federate: Federate) -> None:
    folder = federate(quick(*SECURE), lambda reply: changed(reply, v=b"abc"), client=1, rounds=[1])
    [failed] = folder.rounds()[0]["failed"]
    assert failed["client"] == 1 and "a masked update has 3 bytes, expected" in failed["reason"]


def test_examples_are_protected_beneath_the_masks(quick: Quick, federate: Federate) -> None:
    private = ["privacy.unit=example", "privacy.noise_multiplier=1", "privacy.reproducible=true"]
    folder = federate(quick(*SECURE, *private))
    assert folder.rounds()[-1]["epsilon"] > 0 and folder.rounds()[-1]["loss"] is None


def test_devices_may_lose_clients(quick: Quick) -> None:
    devices = ["devices.step_seconds=1", "devices.dropout=0.1"]
    with tempfile.TemporaryDirectory() as scratch:
        complete(quick(*SECURE, "federation.rounds=6", *devices), Path(scratch) / "run")
        lines = RunFolder(Path(scratch) / "run").rounds()
    counts = [line["clients"] for line in lines]
    assert {*counts} <= {0, 4, 5} and min(counts) < 5
    assert all(line["virtual"] for line in lines)


def test_a_round_without_a_sum_is_paid_for(quick: Quick, federate: Federate) -> None:
    both = iter([True, True])  # the first two replies of round 2

    def lose(reply: Message) -> Message:
        if next(both, False):
            raise ValueError("lost")
        return reply

    private = ["privacy.unit=example", "privacy.noise_multiplier=1"]
    folder = federate(quick(*SECURE, *private), lose, rounds=[2])
    first, second = folder.rounds()
    assert (first["clients"], second["clients"]) == (5, 0)
    assert second["privacy"]["example"]["steps"] == 2 * first["privacy"]["example"]["steps"]
    assert second["epsilon"] > first["epsilon"]


def test_personal_parameters_stay_at_the_clients(quick: Quick, federate: Federate) -> None:
    personal = ["federation.personal=head", "federation.evaluation=clients"]
    folder = federate(quick(*SECURE, *personal))
    assert folder.rounds()[-1]["clients"] == 5 and folder.rounds()[-1]["score"] is not None


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (["wire.up=eden4"], "the levels of wire.up = 'eden4' do not add up; expected uniform1"),
        (["wire.up=uniform9"], "wire.up = 'uniform9'"),
        (["federation.strategy=krum"], "strategy 'krum' compares updates, and there is one sum"),
        (["federation.strategy=fedmedian"], "strategy 'fedmedian' compares updates, and there"),
        (["federation.mode=async", "federation.buffer=2"], "expected federation.mode = 'sync'"),
        (["federation.clients=2"], "2 clients in a sum; expected 3 to 4096"),
        (["secure.threshold=3"], "secure.threshold = 3: expected 4 to 5"),
        (
            ["federation.clients=300", "secure.colluders=15", "secure.threshold=200"],
            "secure.threshold = 200: expected 2[0-9][0-9] to 300, because with 300 clients a round",
        ),
        (["secure.colluders=4"], "secure.colluders = 4: of 5 clients in a round"),
        (
            ["federation.partial=true", "federation.deadline=9"],
            "steps of single clients stay hidden",
        ),
        (["wire.head=eden1"], "leave out wire.head"),
        (
            ["adversary.fraction=0.2", "adversary.attack=scaling"],
            "changes updates that nobody sees; expected adversary.attack = 'label_flip'",
        ),
        (["wire.down=delta1"], "clients mask for those who received the same"),
        (
            ["privacy.unit=client", "privacy.client_noise_multiplier=1"],
            "privacy.client_noise = 'server' is noise on single updates",
        ),
    ],
)
def test_settings_that_need_single_updates_are_refused(
    quick: Quick, settings: list[str], expected: str
) -> None:
    with pytest.raises(UserError, match=expected):
        quick(*SECURE, *settings)


def test_levels_and_thresholds_need_secure_sums(quick: Quick) -> None:
    with pytest.raises(UserError, match=r"set federation.secure = true"):
        quick("wire.up=uniform4")
    with pytest.raises(UserError, match=r"has no effect without federation.secure = true"):
        quick("secure.colluders=2")
