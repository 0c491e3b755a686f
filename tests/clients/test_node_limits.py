"""A server cannot exhaust a node: sizes are refused before anything of that size exists."""

from __future__ import annotations

import os
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from messaging import arriving, handshake_request
from workers import handshake, node_context, state_folder, task_vector

from clients.folder import NodeFolder, NodeSettings
from deployment.node import relay
from fedpeft.errors import UserError
from fedpeft.experiment.config import Experiment
from fedpeft.runtime import runtime_of
from server.flower import new_run

Quick = Callable[..., Experiment]
MEBIBYTE = 1 << 20


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """The state folder of a node with default limits."""
    new_run()
    return state_folder(tmp_path / "state")


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        (["lora", "rank=1000000"], "method 'lora' has 256000066 trained numbers, and this node"),
        (["houlsby", "bottleneck=1000000"], "trained numbers, and this node allows 50000000"),
        (["prefix", "length=1000000"], "trained numbers"),
        (["prefix", "hidden=1000000"], "trained numbers"),
        (["prompt", "length=1000000", "d=16"], ""),
        (["vera", "rank=1000000"], ""),
        (["uni_lora", "rank=1000000", "d=16"], ""),
    ],
)
def test_a_method_that_is_too_large_is_refused_before_it_is_built(
    state: Path, quick: Quick, method: list[str], expected: str
) -> None:
    """The refusal allocates next to nothing; the rest is small enough for the default limits."""
    name, *settings = method
    keys = [f"method.{setting}" for setting in settings if setting.partition("=")[0] != "d"]
    asked = handshake(quick_of(name, keys))
    if not expected:
        limited = replace(NodeSettings.read(state), max_vector=1_000_000)
        limited.write(state)
        expected = "and this node allows"
    relay.app(handshake(quick()), node_context(state))  # imports and the backbone
    tracemalloc.start()
    reply = relay.app(asked, node_context(state))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert reply.error.reason.startswith("Refusal: method '") and expected in reply.error.reason
    assert peak < 20 * MEBIBYTE


def quick_of(method: str, settings: list[str]) -> Experiment:
    shared = ["backbone=tiny", "representation=mask", "federation.clients=3", "engine.threads=1"]
    return Experiment.load("", [*shared, f"method.name={method}", *settings])


def test_an_operator_allows_larger_vectors(state: Path) -> None:
    full = quick_of("full", [])
    size = runtime_of(full).vector_size
    assert size == runtime_of(full).parameters.layout.size
    for most, accepted in ((size, True), (size - 1, False)):
        replace(NodeSettings.read(state), max_vector=most).write(state)
        assert relay.app(handshake(full), node_context(state)).has_content() == accepted


def test_projections_that_are_stored_count_and_others_do_not(state: Path) -> None:
    replace(NodeSettings.read(state), max_vector=100).write(state)
    for how, accepted in (("stored", False), ("regenerated", True)):
        slash = quick_of("slash", ["method.d=32", "head.d=8", f"engine.projections={how}"])
        reply = relay.app(handshake(slash), node_context(state))
        assert reply.has_content() == accepted
    assert "this node allows 100 (`fedpeft node up --max-vector`)" in str(
        relay.app(handshake(quick_of("lora", [])), node_context(state)).error.reason
    )


def test_gradients_of_single_examples_count(state: Path) -> None:
    replace(NodeSettings.read(state), max_vector=1000).write(state)
    private = ["privacy.unit=example", "privacy.noise_multiplier=1"]
    for batch, accepted in ((32, True), (1024, False)):
        asked = quick_of("lora", [*private, f"privacy.physical_batch={batch}"])
        assert relay.app(handshake(asked), node_context(state)).has_content() == accepted


def test_directions_of_zeroth_order_count(state: Path) -> None:
    replace(NodeSettings.read(state), max_vector=1000).write(state)
    for count, accepted in ((20, True), (1000, False)):
        asked = quick_of("lora", [f"local.perturbations={count}"])
        assert relay.app(handshake(asked), node_context(state)).has_content() == accepted


@pytest.mark.parametrize(
    "setting",
    [
        "method.d=1000001",
        "head.d=1000001",
        "federation.rounds=1000001",
        "local.epochs=10001",
        "local.steps=1000001",
        "local.batch_size=1000001",
        "local.perturbations=10001",
        "task.max_length=1000001",
        "engine.cache_mb=1000001",
        "privacy.physical_batch=1000001",
        "privacy.participations=1000001",
        f"seed={2**64}",
    ],
)
def test_sizes_that_no_run_needs_are_not_valid_settings(quick: Quick, setting: str) -> None:
    with pytest.raises(UserError, match=rf"^{setting.partition('=')[0]} = \d+: expected less than"):
        quick(setting)


@pytest.mark.parametrize(
    ("kind", "number", "expected"),
    [
        ("train", 0, "round 0: expected 1 to 2"),
        ("train", -1, "round -1: expected 1 to 2"),
        ("train", 3, "round 3: expected 1 to 2"),  # the learning rate would be negative
        ("train", 2**62, "expected 1 to 2"),
        ("evaluate", -1, "round -1: expected 0 to 2"),
        ("evaluate", 3, "round 3: expected 0 to 2"),
    ],
)
def test_a_round_that_the_run_does_not_have_is_refused(
    state: Path, quick: Quick, kind: str, number: int, expected: str
) -> None:
    experiment, context = quick(), node_context(state)
    assert relay.app(handshake(experiment), context).has_content()
    start = runtime_of(experiment).parameters.initial(0)
    reply = relay.app(task_vector(kind, experiment, start, number), context)
    assert reply.error.reason.startswith("ClientError: round ") and expected in reply.error.reason


@pytest.mark.parametrize("number", [-2, 3, 2**62])
def test_a_client_number_that_the_run_does_not_have_is_refused(
    tmp_path: Path, state: Path, quick: Quick, number: int
) -> None:
    own = tmp_path / "own.tsv"
    own.write_text("text\tlabel\n" + "fine\tgood\nsad\tbad\n" * 5)
    replace(NodeSettings.read(state), data=str(own), partition=None, labels=("bad", "good")).write(
        state
    )
    labels = ["task.labels=bad,good", "task.train_limit=0", "task.eval_limit=0"]
    asked = arriving(
        "query.handshake", handshake_request(quick("task.name=custom", *labels), number)
    )
    reply = relay.app(asked, node_context(state))
    assert reply.error.reason == f"Refusal: client {number}: expected 0 to 2"


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_vector_that_is_not_finite_is_refused(state: Path, quick: Quick, value: float) -> None:
    experiment, context = quick(), node_context(state)
    assert relay.app(handshake(experiment), context).has_content()
    start = runtime_of(experiment).parameters.initial(0)
    start[-1] = value
    for kind in ("train", "evaluate"):
        assert relay.app(task_vector(kind, experiment, start), context).has_error()


def test_personal_parameters_of_old_runs_are_removed(state: Path, quick: Quick) -> None:
    """A server could otherwise fill a node's disk with runs."""
    kept = NodeFolder(state).kept / "personal"
    kept.mkdir(parents=True)
    for number in range(120):
        (kept / f"{number:03d}.safetensors").write_text("")
        os.utime(kept / f"{number:03d}.safetensors", (number, number))
    personal = ["federation.personal=head", "federation.evaluation=clients"]
    experiment, context = quick(*personal), node_context(state)
    assert relay.app(handshake(experiment), context).has_content()
    parameters = runtime_of(experiment).parameters
    shared = parameters.initial(0)[~parameters.personal]
    assert relay.app(task_vector("train", experiment, shared), context).has_content()
    names = sorted(path.name for path in kept.iterdir())
    assert len(names) == 100 and f"{experiment.digest}.safetensors" in names
    assert "020.safetensors" not in names and "021.safetensors" in names
