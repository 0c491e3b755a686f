"""Downlinks of steps: steps for clients that took part, more for those that missed rounds."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message
from messaging import changed
from outcomes import final_vector
from safetensors.numpy import load_file

from fedpeft.errors import RunFailed
from fedpeft.experiment.config import Experiment
from fedpeft.runs.folder import RunFolder
from fedpeft.runtime import Runtime, runtime_of
from fedpeft.training import When, train_cohort
from fedpeft.updates.transfer import decode_step, encode_step
from fedpeft.wire.messages import INITIAL_REFERENCE
from server.exchange.downlink import Broadcast, broadcast

Quick = Callable[..., Experiment]
Federate = Callable[..., RunFolder]
ReadLines = Callable[[Path], list[dict[str, Any]]]
SIZE = 82
STEP, WHOLE = 4 + 11, 4 * SIZE  # delta1, float32
SLOPES = [
    *("local.perturbations=2", "local.steps=1", "local.optimizer=sgd", "local.max_grad_norm=0"),
    *("wire.up=scalars", "wire.down=scalars"),
]


def trained(lines: list[dict[str, Any]]) -> list[tuple[int, int, int]]:
    """Return round, client and bytes down of each training."""
    return [
        (line["round"], line["client"], line["down"]["payload"])
        for line in lines
        if line["kind"] == "train"
    ]


def walk(runtime: Runtime, rounds: int) -> list[Broadcast]:
    """Return the broadcasts of a vector that moves at random."""
    draw, memory, sent = np.random.default_rng(0), dict[str, np.ndarray](), []
    vector = runtime.parameters.initial_shared(0)
    for number in range(1, rounds + 1):
        vector = vector + draw.standard_normal(vector.size).astype(vector.dtype)
        sent.append(broadcast(runtime, memory, number, vector))
        memory = sent[-1].memory()
    return sent


@pytest.mark.parametrize(("clients", "rounds"), [(3, 12), (10, 40)])
def test_a_client_gets_all_steps_since_its_last_round(
    quick: Quick, federate: Federate, read_lines: ReadLines, clients: int, rounds: int
) -> None:
    """One client is asked a round; a client at round 0 holds the initial vector."""
    settings = (f"federation.clients={clients}", "federation.per_round=1")
    length = (f"federation.rounds={rounds}", f"output.eval_every={rounds}")
    folder = federate(quick("wire.down=delta1", *settings, *length))
    held = dict.fromkeys(range(clients), 0)
    sent = trained(read_lines(folder.path / "bytes.jsonl"))
    assert len(sent) == rounds
    for number, client, payload in sent:
        assert payload == min(STEP * (number - held[client]), WHOLE)
        held[client] = number
    assert max(payload for _, _, payload in sent) > STEP
    counted = sum(line["bytes"]["down"]["payload"] for line in folder.rounds())
    assert counted == sum(payload for _, _, payload in sent)


def test_a_client_gets_the_slopes_of_all_rounds_it_missed(
    quick: Quick, federate: Federate, read_lines: ReadLines
) -> None:
    """Catching up costs no bits: a run in which all clients hear each round ends the same."""
    settings = ("federation.fraction=0.34", "federation.rounds=12", "output.eval_every=12")
    folder = federate(quick(*SLOPES, *settings))
    held = dict.fromkeys(range(3), 0)
    sent = trained(read_lines(folder.path / "bytes.jsonl"))
    for number, client, payload in sent:
        assert payload == 2 * 4 * (number - 1 - held[client])
        held[client] = number - 1
    assert max(payload for _, _, payload in sent) > 2 * 4
    exact = federate(quick(*SLOPES, *settings, "wire.down=float32"), out="exact")
    np.testing.assert_allclose(final_vector(folder), final_vector(exact), rtol=0, atol=1e-5)


@pytest.mark.parametrize("count", [40, 41, 42])
def test_more_slopes_than_half_a_vector_are_sent_once(
    quick: Quick, federate: Federate, read_lines: ReadLines, count: int
) -> None:
    """At 41 two steps are as long as the vector of 82 numbers, which is sent instead."""
    settings = ("federation.fraction=0.34", "federation.rounds=12", "output.eval_every=12")
    folder = federate(quick(*SLOPES, *settings, f"local.perturbations={count}"))
    held = dict.fromkeys(range(3), 0)
    for number, client, payload in trained(read_lines(folder.path / "bytes.jsonl")):
        assert payload == min(count * 4 * (number - 1 - held[client]), WHOLE)
        held[client] = number - 1


def test_slopes_as_long_as_the_vector_are_not_taken_for_it(
    quick: Quick, federate: Federate, read_lines: ReadLines
) -> None:
    settings = [*SLOPES, f"local.perturbations={SIZE}", "federation.rounds=3"]
    folder, exact = (
        federate(quick(*settings, down), out=down)
        for down in ("wire.down=scalars", "wire.down=float32")
    )
    payloads = [p for _, _, p in trained(read_lines(folder.path / "bytes.jsonl"))]
    assert payloads == [0] * 3 + [WHOLE] * 6
    np.testing.assert_allclose(final_vector(folder), final_vector(exact), rtol=0, atol=1e-5)


def test_a_client_gets_the_whole_vector_where_that_is_shorter(quick: Quick) -> None:
    sent = walk(runtime_of(quick("wire.down=delta1", "federation.rounds=40")), 40)
    names = [INITIAL_REFERENCE, *(each.name for each in sent)]
    last = sent[-1]
    assert last.payload(names[-1]) == b""  # a repeated round
    lengths = [len(last.payload(name)) for name in names]
    assert lengths == [min(WHOLE, STEP * missed) for missed in range(40, -1, -1)]
    assert last.payload(b"another") == last.whole and len(last.whole) == WHOLE
    assert sum(array.nbytes for array in last.memory().values()) < 3 * WHOLE


@pytest.mark.parametrize("codec", ["delta0.5", "delta1", "delta2", "delta4"])
def test_errors_do_not_add_up(quick: Quick, codec: str) -> None:
    """After a walk of 40 rounds the reference is about as far from the vector as after 10."""
    runtime = runtime_of(quick(f"wire.down={codec}", "federation.rounds=40"))
    draw, memory, distances = np.random.default_rng(0), dict[str, np.ndarray](), []
    vector = runtime.parameters.initial_shared(0)
    for number in range(1, 41):
        vector = vector + draw.standard_normal(vector.size).astype(vector.dtype)
        sent = broadcast(runtime, memory, number, vector)
        memory = sent.memory()
        distances.append(np.linalg.norm(sent.received - vector))
    assert np.mean(distances[-5:]) < 1.5 * np.mean(distances[8:13])


def test_a_run_equals_one_written_out(quick: Quick, federate: Federate) -> None:
    settings = ("federation.clients=1", "engine.dtype=float64", "federation.rounds=3")
    experiment = quick("wire.down=delta1", "wire.up=float64", *settings)
    runtime, folder = runtime_of(experiment), federate(experiment)
    vector = reference = runtime.parameters.initial(experiment.seed)
    for number in (1, 2, 3):
        step = encode_step(runtime, number, vector, reference)
        reference = decode_step(runtime, number, reference, step)
        update = train_cohort(
            *(runtime.model, reference[None], [runtime.train], [0], experiment.local),
            When(experiment.seed, number, 3),
        ).vectors[0]
        vector = vector + (update - reference)
    np.testing.assert_allclose(final_vector(folder), vector, rtol=0, atol=1e-12)


def test_a_refused_client_continues_from_what_it_holds(
    quick: Quick, federate: Federate, read_lines: ReadLines
) -> None:
    """The handshake after a failure names the reference of the failed round."""

    def spoil(reply: Message) -> Message:
        return changed(reply, v=b"no vector")

    folder = federate(quick("wire.down=delta1", "federation.rounds=3"), spoil, client=1, rounds=[1])
    assert [line["clients"] for line in folder.rounds()] == [2, 3, 3]
    assert {p for _, _, p in trained(read_lines(folder.path / "bytes.jsonl"))} == {STEP}


@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize(
    ("settings", "repeated"),
    [(["wire.up=topk0.1", "wire.down=delta1"], 3 * STEP), (SLOPES, 2 * 2 * 4)],
    ids=["delta", "slopes"],
)
def test_a_resumed_run_ends_in_the_same_bits(
    quick: Quick,
    federate: Federate,
    read_lines: ReadLines,
    settings: list[str],
    repeated: int,
    lost: bool,
) -> None:
    """Also where clients have lost their references: they get all steps from the initial vector."""
    experiment = quick(*settings, "federation.rounds=4")
    whole = federate(experiment, out="whole")

    def broken(reply: Message) -> Message:
        raise OSError("lost")

    with pytest.raises(RunFailed, match="round 3: 0 of 3"):
        federate(experiment, broken, rounds=[3], out="again")
    kept = whole.path.parent / "again" / "kept" / "reference"
    if lost:
        shutil.rmtree(kept)
    again = federate(experiment, out="again", resume=True)
    assert final_vector(whole).tobytes() == final_vector(again).tobytes()
    third = [p for n, _, p in trained(read_lines(again.path / "bytes.jsonl")) if n == 3]
    # Without a loss, clients hold the vector of the round that is repeated.
    assert third[-3:] == [repeated if lost else 0] * 3


def test_topk_sends_later_what_it_left_out(quick: Quick, federate: Federate) -> None:
    """One client: the vector and what is unsent add up to all changes."""
    experiment = quick(
        "wire.up=topk0.1", "federation.clients=1", "federation.rounds=3", "task.train_limit=120"
    )
    runtime, folder = runtime_of(experiment), federate(experiment)
    unsent = load_file(folder.path / "kept" / "unsent" / "client-00000.safetensors")
    assert sorted(unsent) == ["2/vector", "3/vector"]
    vector = total = runtime.parameters.initial(experiment.seed)
    rest = np.zeros(SIZE, np.float32)
    for number in (1, 2, 3):
        update = train_cohort(
            *(runtime.model, vector[None], [runtime.train], [0], experiment.local),
            When(experiment.seed, number, 3),
        ).vectors[0]
        change = update - vector + rest
        total = total + (update - vector)
        largest = np.argsort(-np.abs(change), kind="stable")[:8]
        vector = vector.copy()
        vector[largest] += change[largest]
        rest = change.copy()
        rest[largest] = 0
    # bfloat16 rounds what is sent, and the unsent part takes up the difference.
    near = 2**-7 * np.linalg.norm(total - runtime.parameters.initial(experiment.seed))
    assert np.linalg.norm(final_vector(folder) - vector) < near
    assert np.linalg.norm(final_vector(folder) + unsent["3/vector"] - total) < near
    assert np.count_nonzero(rest) > SIZE // 2
